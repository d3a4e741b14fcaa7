"""A job of several ranks in which contenders take turns, step by step. Who has no part in a step sleeps meanwhile."""

import copy
import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from ...ladder.compare import relative
from ...ranks import measure
from ...ranks.collectives import all_gather_json, all_ranks
from ...ranks.crew import MeshCrew
from ...ranks.cut import Cut
from ...ranks.data import Shared
from ...ranks.group import Group
from ...ranks.measure import PipelineCosts
from ...ranks.mesh import Mesh
from ...ranks.shape import Shape
from ...tasks.corpus import Corpus
from ...tasks.language_model import LanguageModel
from ...training.crew import Alone
from ..core.job import TIMEOUT
from ..core.turns import Seconds, in_turn
from .order import Order
from .text import Text
from .trainer import Contender, Note, Trainer

ONE = "1 rank"
WAYS = ("data={}", "data={}:network", "data={}:server")  # as --parallel has them
EXAMPLES = 2  # batches that decide how a pipeline is cut


class Job:
    """This process among those of a job, which all call the same things in the same order."""

    def __init__(self, order: Order, corpus: Corpus, group: Group) -> None:
        self.order, self.corpus, self.group = order, corpus, group
        self.rank, self.everyone = dist.get_rank(), all_ranks()
        self.meshes: dict[Shape, Mesh | None] = {}
        self.remarks: list[str] = []  # for the end of the report; those of the first rank are printed
        self.model = self.text().model

    def text(self, by: str = "streams", batch: int | None = None, size: int | None = None, **changes: Any) -> Text:
        """Some batches, and the job's network, unless its settings change."""
        gc.collect()  # models refer to themselves, by their hooks
        own = {"steps": self.order.steps} if by == "streams" else {"buckets": "none"}
        settings = self.order.settings(by=by, batch=str(batch or self.order.batch), **own, **changes)
        model: LanguageModel | None = None if changes else getattr(self, "model", None)
        return Text(settings, self.corpus, size or self.order.scale.batches, model)

    # --- contenders
    def mesh(self, shape: Shape) -> Mesh | None:
        """Of the first ranks; None on the others. These make a mesh of themselves all the same: torch names a group by
        how many a process has made, so all processes must make as many.
        """
        shape, takes_part = shape.filled(shape.size), self.rank < shape.size
        groups = replace(shape, way="auto", micro=1)  # the same for all of these
        if groups not in self.meshes:
            mine = groups if takes_part else Shape(1)
            ranks = list(range(shape.size)) if takes_part else [self.rank]
            mesh = Mesh(mine.data, mine.layers, timeout=TIMEOUT, ranks=ranks)
            self.meshes[groups] = mesh if takes_part else None
        found = copy.copy(self.meshes[groups])
        if found is not None:
            found.shape = shape
        return found

    def alone(self, task: Text, threads: int = 1, *, cut: Cut | None = None, learns: bool = False) -> Contender:
        """One process. cut: its step is simulated as that of a pipeline which is cut so"""
        trainer = Trainer(task, lambda _: Alone(), learns) if self.rank == 0 else None
        return Contender(ONE if threads == 1 else f"{threads} threads", task, trainer, 1, threads, cut)

    def limit(self, task: Text, ranks: int) -> Contender:
        """Every rank takes its step with its part of the batch, and exchanges nothing: data ranks cannot be faster."""
        trainer = Trainer(task, lambda _: Alone(), share=(self.rank, ranks)) if self.rank < ranks else None
        return Contender(limit_of(ranks), task, trainer, ranks, is_exact=False)

    def together(
        self, parallel: str, task: Text, cut: Cut | None = None, name: str = "", learns: bool = False
    ) -> Contender:
        """The crew of `plait train --parallel`."""
        shape, trainer = Shape.parse(parallel), None
        if mesh := self.mesh(shape):
            share = mesh.data_rank, mesh.shape.data or 1
            trainer = Trainer(
                task, lambda mine: MeshCrew(self.group, mesh, mine, cut, self.order.seed), learns, share=share
            )
        return Contender(name or parallel, task, trainer, shape.size, cut=cut)

    def data(self, task: Text, ranks: int, ways: Sequence[str] = WAYS) -> list[Contender]:
        """The ways of data ranks. Where there is no shared memory, the first is left out: it would be the second."""
        found = [self.together(way.format(ranks), task) for way in ways]
        crew = found[0].trainer.together if found[0].trainer else None
        if all(all_gather_json(crew is None or isinstance(crew.reducer, Shared), self.everyone)):
            return found
        if crew is not None:
            self.remarks.append(f"data={ranks} by shared memory is left out: it would go by {crew.way}.")
        return found[1:]

    # --- pipelines
    def costs(self, task: Text, ranks: int) -> PipelineCosts | None:
        """What the parts of a pipeline cost on these ranks."""
        mesh = self.mesh(Shape(1, ranks))
        rows = [task.rows(indices)[:3] for indices in task.chosen[:EXAMPLES]]
        return measure.measure(task.network(), rows, mesh) if mesh else None

    def cut(self, costs: PipelineCosts | None, task: Text, ranks: int, micro: int = 1) -> Cut | None:
        """The quickest in the simulation; the same on all ranks of the mesh."""
        mesh = self.mesh(Shape(1, ranks, micro=micro))
        if mesh is None or costs is None:
            return None
        return measure.agree(costs, self.examples(task), mesh.shape, mesh)

    def examples(self, task: Text) -> list[Any]:
        return [task.layout(k) for k in range(min(EXAMPLES, task.size))]

    # --- taking turns
    def race(self, contenders: Sequence[Contender], repeats: int | None = None) -> "Race":
        """They take turns batch by batch, each with all its batches once per repeat. One repeat: without a warm-up."""
        repeats, most = repeats or self.order.repeats, max(c.task.size for c in contenders)
        notes: dict[str, list[Note]] = {c.name: [] for c in contenders}
        for c in contenders if repeats > 1 else ():
            self.turn(c, 0)  # it compiles, and fills caches
        for number in range(repeats * most):
            for c in in_turn(contenders, number):
                if number % most < c.task.size:
                    self.turn(c, number % most)
                    notes[c.name] += [c.trainer.note] if c.trainer else []
        every = all_gather_json(notes, self.everyone)
        steps = {name: zip(*(found[name] for found in every if found[name]), strict=True) for name in notes}
        return Race({name: list(found) for name, found in steps.items()}, {c.name: c.task.size for c in contenders})

    def turn(self, c: Contender, k: int, look: Callable[[Trainer], None] | None = None) -> None:
        """One step, with batch k. look: is called while the gradients are still there"""
        if c.trainer is None:
            dist.barrier()
            return
        torch.set_num_threads(c.threads)
        dist.barrier()
        c.timed(c.trainer, c.task.chosen[k])
        if look is not None:
            look(c.trainer)
        c.trainer.rest()
        torch.set_num_threads(1)

    def deviations(self, contenders: Sequence[Contender]) -> dict[str, float]:
        """How far loss and gradients of one batch are from those of one rank, for each contender that is exact."""
        exact = [c for c in contenders if c.is_exact]
        far = {c.name: 0.0 for c in exact}
        references: dict[Text, Trainer] = {}
        for c in exact:
            if c.task not in references:
                references[c.task] = Trainer(c.task, lambda _: Alone())
                references[c.task].step(c.task.chosen[0])

            def look(trainer: Trainer, c: Contender = c) -> None:
                far[c.name] = distance(trainer, references[c.task])

            self.turn(c, 0, look)
        every = all_gather_json(far, self.everyone)
        return {name: max(found[name] for found in every) for name in far}


@dataclass(frozen=True)
class Race:
    """What all steps of all contenders left behind. All ranks are on one machine, with one clock."""

    notes: Mapping[str, Sequence[Sequence[Note]]]  # by contender: (step, rank), only of ranks that took part
    sizes: Mapping[str, int]  # batches of each contender

    def steps(self, name: str) -> list[float]:
        """Seconds of each step, from the first rank's start to the last rank's end."""
        return [max(note["end"] for note in step) - min(note["start"] for note in step) for step in self.notes[name]]

    @cached_property
    def seconds(self) -> Seconds:
        """Of all batches of a contender, once per repeat."""
        found = {name: (self.steps(name), size) for name, size in self.sizes.items()}
        return Seconds(
            {name: [sum(s[k : k + size]) for k in range(0, len(s), size)] for name, (s, size) in found.items()}
        )


def distance(found: Trainer, right: Trainer) -> float:
    """The largest relative difference of the loss, and of the gradients that a rank has."""
    losses, gradients = (found.note["loss"], right.note["loss"]), right.gradients()
    far = [relative(d, gradients[name]) for name, d in found.gradients().items()]
    return float(max([abs(losses[0] - losses[1]) / abs(losses[1]), *far]))


def limit_of(ranks: int) -> str:
    return f"{ranks} ranks, no exchange"
