"""A job of several ranks, whose contenders take turns. Who has no part in a step sleeps."""

import gc
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...ranks import measure
from ...ranks.collectives import all_gather_json, all_ranks
from ...ranks.crew import MeshCrew
from ...ranks.cut import Cut
from ...ranks.group import Group
from ...ranks.mesh import Mesh
from ...ranks.schedule import split
from ...ranks.shape import Shape
from ...tasks.corpus import Corpus
from ...tasks.language_model import LanguageModel
from ...training.crew import Alone
from ..core import Seconds
from ..core.job import TIMEOUT
from ..core.texts import Text
from ..core.turns import in_turn
from ..questions import RanksOptions
from .contender import Contender, Note

ONE = "1 rank"
LIMIT, EQUAL = "{} ranks, no exchange", ", equal split"
WAYS = ("data={}", "data={}:network", "data={}:server")  # as --parallel has them


class Job:
    """This process among those of a job, which all call the same things in the same order."""

    def __init__(self, order: RanksOptions, corpus: Corpus, group: Group) -> None:
        self.order, self.corpus, self.group, self.rank = order, corpus, group, dist.get_rank()
        self.meshes: dict[Shape, Mesh | None] = {}
        self.model: LanguageModel | None = None
        self.model = self.text().model

    def text(self, by: str = "streams", batch: int | None = None, size: int = 1, **changes: Any) -> Text:
        """So many batches, and the job's network, unless its settings change."""
        gc.collect()  # models refer to themselves, by their hooks
        own = {"steps": self.order.steps} if by == "streams" else {"buckets": "none"}
        settings = self.order.settings(by=by, batch=str(batch or self.order.batch), **own, **changes)
        return Text(settings, self.corpus, size, None if changes else self.model)

    # --- contenders
    def mesh(self, shape: Shape) -> Mesh | None:
        """Of the first ranks; None on the others. These make one of themselves all the same:
        torch names a group by how many a process has made, so all must make as many.
        """
        if shape not in self.meshes:
            takes_part = self.rank < shape.size
            mine, ranks = (shape, list(range(shape.size))) if takes_part else (Shape(1), [self.rank])
            mesh = Mesh(mine.data, mine.layers, way=mine.way, micro=mine.micro, timeout=TIMEOUT, ranks=ranks)
            self.meshes[shape] = mesh if takes_part else None
        return self.meshes[shape]

    def alone(self, task: Text, threads: int = 1) -> Contender:
        name = ONE if threads == 1 else f"{threads} threads"
        return Contender(name, task, None if self.rank else lambda _: Alone(), threads=threads)

    def limit(self, task: Text, ranks: int) -> Contender:
        """Every rank takes its part of the batch, and exchanges nothing."""

        def make(mine: Text) -> Alone:
            mine.share(self.rank, ranks)
            return Alone()

        return Contender(LIMIT.format(ranks), task, make if self.rank < ranks else None, ranks)

    def data(self, task: Text, ranks: int, ways: Sequence[str] = WAYS) -> list[Contender]:
        return [self.together(way.format(ranks), task) for way in ways]

    def pipelines(self, task: Text, ranks: int, equal: bool = False) -> list[Contender]:
        """A pipeline, if there are layers enough. equal: and one whose stages have as many each"""
        if ranks > self.order.layers:
            return []
        found = [self.together(f"layers={ranks}", task)]
        if equal:
            cut, even = found[0].cut, split([1.0] * self.order.layers, ranks)
            found.append(self.together(f"layers={ranks}", task, EQUAL, cut and cut._replace(split=even)))
        return found

    def together(self, parallel: str, task: Text, more: str = "", cut: Cut | None = None) -> Contender:
        """The crew of `plait train --parallel`. more: of its name. cut: None: as it is chosen there"""
        shape, name = Shape.parse(parallel), parallel + more
        mesh = self.mesh(shape)
        if mesh is None:
            return Contender(name, task, None, shape.size)
        if shape.layers > 1 and cut is None:
            cut = measure.choose(task.network(), examples(task), mesh.shape, mesh)

        def make(mine: Text) -> MeshCrew:
            mine.share(mesh.data_rank, mesh.shape.data or 1)
            return MeshCrew(self.group, mesh, mine, cut, self.order.seed)

        return Contender(name, task, make, shape.size, cut=cut)

    def costs(self, task: Text, ranks: int) -> measure.PipelineCosts | None:
        """What the parts of a pipeline cost on these ranks."""
        mesh = self.mesh(Shape(1, ranks))
        return measure.measure(task.network(), examples(task), mesh) if mesh else None

    # --- taking turns
    def race(self, contenders: Sequence[Contender], repeats: int | None = None) -> Seconds:
        """They take turns batch by batch. One repeat: without a warm-up."""
        repeats, most = repeats or self.order.repeats, max(len(c.task.chosen) for c in contenders)
        mine: dict[str, list[Note]] = {c.name: [] for c in contenders}
        for c in contenders if repeats > 1 else ():
            self.turn(c, 0)  # it compiles, and fills caches
        for number in range(repeats * most):
            for c in in_turn(contenders, number):
                if number % most < len(c.task.chosen):
                    self.turn(c, number % most)
                    mine[c.name] += [dict(c.note)] if c.takes_part else []
        every = all_gather_json([mine, {c.name: c.deviation for c in contenders}], all_ranks())
        for c in contenders:
            notes = [found[c.name] for found, _ in every if found[c.name]]
            c.take(list(zip(*notes, strict=True)))
            known = [far[c.name] for _, far in every if far[c.name] is not None]
            c.deviation = max(known, default=None)
        return Seconds({c.name: c.seconds for c in contenders})

    def turn(self, c: Contender, k: int) -> None:
        """One step, with batch k."""
        torch.set_num_threads(c.threads)
        dist.barrier()
        if c.takes_part:
            c.run(k)
        torch.set_num_threads(1)


def examples(task: Text) -> list[measure.Batch]:
    """Batches that decide how a pipeline is cut."""
    return [task.rows(indices)[:3] for indices in task.chosen[:2]]
