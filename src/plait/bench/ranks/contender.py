"""What takes turns in `bench ranks`: crews that train, and parts of their steps alone."""

import copy
import os
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ...ladder.compare import worst
from ...ranks.cut import Cut
from ...ranks.data import Server
from ...ranks.layers import Pass
from ...ranks.mesh import ParallelStep
from ...ranks.schedule import Op
from ...training.crew import Alone, Crew, Wishes, fill_gradients
from ..core.texts import Text

Note = dict[str, Any]  # of a step on one rank: when its phases ended, and more


class Contender:
    """A crew with its task, and notes of its steps. Every rank of the job has it.

    make: the crew, with its share of each batch; None on ranks that have no part in it
    cut: how the layers are cut, in a pipeline
    Unless the task learns, the learning rate is 0, and all contenders have the same weights.
    """

    def __init__(
        self,
        name: str,
        task: Text,
        make: Callable[[Text], Crew] | None,
        ranks: int = 1,
        threads: int = 1,
        cut: Cut | None = None,
    ) -> None:
        self.name, self.ranks, self.threads, self.cut = name, ranks, threads, cut
        self.takes_part, self.workers, self.timed = make is not None, ranks * threads, "step"
        self.deviation: float | None = None  # of loss and gradients from those of one rank
        self.whole, self.task = task, copy.copy(task)
        if make is None:
            return
        same = {id(p): nn.Parameter(p.data) for p in task.model.parameters()}
        self.task.model = copy.deepcopy(task.model, {} if task.learns else same)
        self.parameters = list(self.task.model.parameters())
        self.note: Note = {}  # of the last step
        self.arrived: dict[Tensor, float] = {}  # when each gradient was there
        # Hooks run in their order: the crew's, which exchange, are between these two.
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.before_exchange)
        self.crew = make(self.task)
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.after_exchange)
        self.reducer: Any = getattr(self.crew, "reducer", SimpleNamespace())
        self.pipeline: ParallelStep | None = getattr(self.crew, "parallel", None)
        self.held = self.pipeline.parameters if self.pipeline else self.parameters
        self.optimizer = self.task.settings.make_optimizer(self.task.model)
        if not task.learns:
            self.optimizer.param_groups[0]["lr"] = 0.0

    def part(self, timed: str) -> "Contender":
        """A part of its step, timed alone: exchange or outside."""
        found = copy.copy(self)
        found.name, found.timed = f"{timed} of {self.name}", timed
        return found

    # --- what can be timed
    def step(self, indices: Tensor) -> None:
        """As training/loop.py takes it."""
        self.begin()
        self.note["loss"] = self.crew.step(self.task, indices, self.both_passes_done).loss
        self.mark("stepped")
        self.crew.clip(self.parameters, self.task.settings.clip)
        self.mark("clipped")
        self.crew.update(self.optimizer)

    def exchange(self, indices: Tensor) -> None:
        """What ranks send each other in a step, with nothing computed."""
        if self.pipeline is not None:
            tokens, targets, layout, _ = self.task.rows(indices)
            messages = Messages(self.pipeline.stage, tokens, targets, layout, None, 1.0)
            self.begin()
            messages.run()
            return
        nothing = torch.optim.SGD([torch.zeros(1)], lr=0.0)
        for p in self.parameters:
            p.grad = torch.full_like(p, 1e-3)
        self.begin()
        self.reducer.begin()
        for p in self.reducer.order:
            self.reducer.on_gradient(p)
        self.reducer.finish()
        self.reducer.update(nothing)

    def outside(self, indices: Tensor) -> None:
        """What a step does beside its schedule: zeroing, the embedding, clipping, the update."""
        tokens = self.task.rows(indices)[0]
        fill_gradients(self.held)
        self.begin()
        for p in self.held:
            p.grad.zero_()  # type: ignore[union-attr]
        if self.pipeline is None or self.pipeline.stage.is_first:
            x = self.task.network().first(tokens)
            x.backward(torch.ones_like(x))
        if self.pipeline is not None:
            self.pipeline.mesh.sum(0.0)
        self.crew.clip(self.parameters, self.task.settings.clip)
        self.crew.update(self.optimizer)

    # --- notes
    def run(self, k: int) -> None:
        """What is timed, with batch k."""
        indices = self.task.chosen[k]
        getattr(self, self.timed)(indices)
        self.mark("end")
        backward = self.note.get("backward", 0.0)
        self.note["arrived"] = [self.arrived.get(p, backward) for p in reversed(self.parameters)]
        self.note["sent"] = self.reducer.sent
        if self.deviation is None:
            self.deviation = self.distance()
        if self.pipeline is None:
            self.task.model.zero_grad()
        else:  # it keeps its gradients, as in training
            stage, first = self.pipeline.stage, self.pipeline.network.layers[0]
            neighbours = 2 - stage.is_first - stage.is_last
            row = first.width * first.parameters()[0].element_size()
            self.note["sent"] = self.task.count(indices) * neighbours * row
            self.note["spans"] = stage.spans

    def begin(self) -> None:
        self.note.clear()
        self.arrived.clear()
        self.note["exchanging"] = 0.0  # seconds in the crew's own hooks
        self.reducer.sent, self.reducer.waited = 0, 0.0
        if self.pipeline is not None:
            self.pipeline.stage.spans = []
        self.mark("start")

    def mark(self, phase: str) -> None:
        self.note[phase] = time.perf_counter()

    def before_exchange(self, p: Tensor) -> None:
        self.arrived[p] = time.perf_counter()

    def after_exchange(self, p: Tensor) -> None:
        self.note["exchanging"] += time.perf_counter() - self.arrived[p]

    def both_passes_done(self) -> Wishes:
        self.note["backward"] = time.perf_counter() - self.reducer.waited
        return Wishes(False, False)

    def take(self, notes: Sequence[Sequence[Note]]) -> None:
        """Of all steps of a race: (step, rank), of ranks that took part. All have the same clock."""
        self.notes, size = notes, len(self.task.chosen)
        self.steps = [max(n["end"] for n in step) - min(n["start"] for n in step) for step in notes]
        self.seconds = [sum(self.steps[k : k + size]) for k in range(0, len(notes), size)]  # once per repeat

    def distance(self) -> float | None:
        """The largest relative difference of loss and gradients from those of one process.

        None if this is a part of a step, or a step with a part of the batch
        """
        is_part = isinstance(self.crew, Alone) and self.task.ranks > 1
        if is_part or self.timed != "step":
            return None
        found = {"loss": torch.tensor(self.note["loss"])}
        if not isinstance(self.reducer, Server) or self.reducer.rank == 0:
            held = set(self.held)
            named = self.task.model.named_parameters()
            found |= {name: p.grad for name, p in named if p in held and p.grad is not None}
        return worst(list(found.values()), [self.whole.reference[name] for name in found])

    @property
    def about(self) -> dict[str, Any]:
        is_too_much = self.workers > (os.cpu_count() or 1)
        return {"ranks": self.ranks, "threads": self.threads, "oversubscribed": "yes" if is_too_much else "no"}


class Messages(Pass):
    """A step of a stage that sends and waits for all its messages, and computes nothing."""

    def begin(self) -> None:
        """Nothing is embedded."""

    def execute(self, op: Op, done: set[Op]) -> None:
        done.add(op)
        target = self.stage.number + (1 if op.kind == "F" else -1)
        if op.kind in "FI" and 0 <= target < self.stage.count:
            N, width = self.micros[op.micro].chunks[op.chunk].N, self.stage.layers[0].width
            self.send(op.kind, op.micro, op.chunk, self.like.new_zeros(N, width), target)

    def finish(self) -> None:
        """Nothing goes back into the embedding."""
