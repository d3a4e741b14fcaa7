"""A job of several ranks in which contenders take turns, step by step; who has no part in a step sleeps meanwhile."""

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..ladder.compare import relative
from ..ranks.mesh import Mesh
from ..ranks.talk import all_ranks, tell_all
from ..tasks.corpus import Corpus
from ..tasks.settings import LanguageSettings
from .job import TIMEOUT
from .ranks_text import SentenceBatches, Source, StreamBatches
from .ranks_ways import Alone, Net, Way

Row = dict[str, Any]
Seconds = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Order:
    """What is to be measured: the options of the command, filled up."""

    layers: int
    hidden: int
    embedding: int
    batch: int
    steps: int
    ranks: int
    repeats: int
    seed: int
    quick: bool

    @property
    def batches(self) -> int:
        """That one measurement goes over."""
        return 1 if self.quick else 2

    @property
    def chosen(self) -> int:
        """Batches that stand for an epoch."""
        return 2 if self.quick else 8

    @property
    def variants(self) -> list[tuple[int, int]]:
        """Batches and units for which the speed-up of data ranks is measured: more computation, and less."""
        B, H = self.batch, self.hidden
        more = [(2 * B, H)] if self.quick else [(2 * B, H), (4 * B, H)]
        units = [H // 2] if self.quick else [H // 4, H // 2, H * 3 // 2]
        return [(B, H), *more, *((B, max(1, n)) for n in units)]

    @property
    def trained(self) -> int:
        """Steps in which the loss is watched."""
        return 8 if self.quick else 60

    @property
    def global_batches(self) -> tuple[int, ...]:
        """For which the perplexity is compared."""
        return self.batch, 4 * self.batch, 16 * self.batch

    @property
    def most_streams(self) -> int:
        return max(self.batch * self.ranks, *(batch for batch, _ in self.variants))

    def network(self, **changes: Any) -> LanguageSettings:
        sizes = {"layers": self.layers, "hidden": self.hidden, "embedding": self.embedding} | changes
        return LanguageSettings(data="text", seed=self.seed, softmax="full", **sizes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Entry(NamedTuple):
    """A contender. way: None on ranks that have no part in it."""

    name: str
    way: Way | None
    source: Source
    is_exact: bool = True  # its gradients are those of the whole batch


class Job:
    """This process among those of a job, which all call the same things in the same order."""

    def __init__(self, order: Order, corpus: Corpus) -> None:
        self.order, self.corpus = order, corpus
        self.rank, self.cores = dist.get_rank(), os.cpu_count() or 1
        self.everyone, self.meshes = all_ranks(), dict[tuple[str, int], Mesh | None]()
        self.remarks: list[str] = []
        self.picture = b""  # as a PNG file
        self.net = self.make()

    def make(self, **changes: Any) -> Net:
        gc.collect()  # a network refers to itself, by its hooks
        return Net(self.order.network(**changes), len(self.corpus.vocabulary))

    def mesh(self, axis: str, ranks: int) -> Mesh | None:
        """The first ranks along an axis; None on the others, which then have a mesh of themselves, and no use for it:
        torch counts the groups of every process, and they must be as many everywhere.
        """
        if (axis, ranks) not in self.meshes:
            takes_part = self.rank < ranks
            mine: dict[str, Any] = {axis: ranks, "ranks": list(range(ranks))} if takes_part else {"ranks": [self.rank]}
            mesh = Mesh(timeout=TIMEOUT, **mine)
            self.meshes[axis, ranks] = mesh if takes_part else None
        return self.meshes[axis, ranks]

    def alone(self, net: Net, threads: int = 1) -> Way | None:
        return Alone(net, threads) if self.rank == 0 else None

    def streams(self, batch: int | None = None, size: int | None = None) -> StreamBatches:
        order = self.order
        return StreamBatches(self.corpus, batch or order.batch, order.steps, size or order.batches)

    def sentences(self, batch: int | None = None, size: int | None = None) -> SentenceBatches:
        order = self.order
        return SentenceBatches(self.corpus, batch or order.batch, size or order.batches, order.seed)

    def remark(self, text: str) -> None:
        """For the end of the report; what the first rank says is printed."""
        self.remarks.append(text)

    def everywhere(self, holds: bool) -> bool:
        """Whether it holds on all ranks."""
        return all(tell_all(holds, self.everyone))

    def is_oversubscribed(self, busy: int) -> str:
        """busy: threads of all ranks"""
        return "yes" if busy > self.cores else "no"

    # --- taking turns
    def race(self, entries: Sequence[Entry], repeats: int | None = None, look: "Look | None" = None) -> Seconds:
        """Seconds of each contender's batches, once per repeat, from the first rank's start to the last rank's end.

        They take turns batch by batch, there and back. look: sees each contender after each of its steps.
        """
        repeats = repeats or self.order.repeats
        took: dict[str, list[list[tuple[float, float]]]] = {e.name: [[] for _ in range(repeats)] for e in entries}
        for e in entries:
            self.turn(e, 0)  # it compiles, and fills caches
        turns = [(repeat, k) for repeat in range(repeats) for k in range(max(e.source.size for e in entries))]
        for number, (repeat, k) in enumerate(turns):
            for e in entries[:: -1 if number % 2 else 1]:
                if k < e.source.size:

                    def after(way: Way, loss: float, e: Entry = e, repeat: int = repeat) -> None:
                        took[e.name][repeat].append((way.marks["start"], way.marks["end"]))
                        if look is not None:
                            look(e.name, way)

                    self.turn(e, k, after)
        return {name: lasted([told[name] for told in tell_all(took, self.everyone)]) for name in took}

    def turn(self, entry: Entry, k: int, after: Callable[[Way, float], None] | None = None) -> None:
        """One step, with batch k. after: is given the loss as well, while the gradients are still there."""
        way = entry.way
        if way is None:
            dist.barrier()
            return
        rows = way.rows(entry.source, k)
        torch.set_num_threads(way.threads)
        way.enter()
        dist.barrier()
        loss = way.step(rows)
        if after is not None:
            after(way, loss)
        way.leave()
        torch.set_num_threads(1)

    def deviations(self, entries: Sequence[Entry]) -> dict[str, float]:
        """How far loss and gradients of one batch are from those of one rank, for each contender that is exact."""
        entries = [e for e in entries if e.is_exact]
        found: dict[str, float] = {}
        references: dict[Source, tuple[float, dict[Any, torch.Tensor]]] = {}
        for e in entries:
            net = e.way.net if e.way else self.net
            if e.source not in references:
                reference = Alone(net)
                loss = reference.step(e.source.whole(0))
                references[e.source] = loss, {p: p.grad for p in net.parameters if p.grad is not None}
                reference.leave()
            expected, gradients = references[e.source]

            def compare(
                way: Way, loss: float, e: Entry = e, expected: float = expected, gradients: Any = gradients
            ) -> None:
                far = [abs(loss - expected) / abs(expected)]
                far += [relative(p.grad, gradients[p]) for p in way.held if p.grad is not None]
                found[e.name] = max(far)

            self.turn(e, 0, compare)
        every = tell_all({e.name: found.get(e.name, 0.0) for e in entries}, self.everyone)
        return {e.name: max(some[e.name] for some in every) for e in entries}


Look = Callable[[str, Way], None]


def lasted(ranks: Sequence[Sequence[Sequence[tuple[float, float]]]]) -> list[float]:
    """From the spans (rank, repeat, batch) of those ranks that took part. All are on one machine, with one clock."""
    there = [repeats for repeats in ranks if any(repeats)]
    return [
        sum(max(end for _, end in spans) - min(start for start, _ in spans) for spans in zip(*same, strict=True))
        for same in zip(*there, strict=True)
    ]
