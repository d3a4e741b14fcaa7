"""What takes turns in `bench ranks`: the crews that train, each with a task, and parts of their steps alone."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...ranks.crew import MeshCrew
from ...ranks.cut import Cut
from ...ranks.data import Server
from ...ranks.layers import Pass
from ...ranks.schedule import Op
from ...training.crew import Crew, Wishes
from .text import Text

Note = dict[str, Any]  # of a step, on one rank: loss, when its phases ended, bytes sent, ops of a stage


class Trainer:
    """A crew with its task, and a note of when each phase of its last step ended.

    share: which part of each batch this rank has, of how many
    learns: the weights are its own, and change. Otherwise the learning rate is 0: a step costs what it costs, and
    leaves the weights as they are, for the next one to take it.
    """

    def __init__(
        self, task: Text, make: Callable[[Text], Crew], learns: bool = False, share: tuple[int, int] = (0, 1)
    ) -> None:
        self.task = task.twin(own_weights=learns)
        self.task.share(*share)
        self.parameters = list(self.task.model.parameters())
        self.arrived: dict[Tensor, float] = {}  # when each gradient was there
        self.exchanging = 0.0  # seconds that the crew's own hooks took: they exchange during the backward pass
        # Hooks run in the order in which they were registered: the crew's are between these two.
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.before_exchange)
        self.crew = make(self.task)
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.after_exchange)
        self.together = self.crew if isinstance(self.crew, MeshCrew) else None
        self.pipeline = self.together.parallel if self.together else None
        self.optimizer = self.task.settings.make_optimizer(self.task.model)
        if not learns:
            self.optimizer.param_groups[0]["lr"] = 0.0
        self.note: Note = {}

    def before_exchange(self, p: Tensor) -> None:
        self.arrived[p] = time.perf_counter()

    def after_exchange(self, p: Tensor) -> None:
        self.exchanging += time.perf_counter() - self.arrived[p]

    def mark(self, phase: str) -> None:
        self.task.marks[phase] = time.perf_counter()

    # --- what can be timed
    def step(self, indices: Tensor) -> None:
        """As training/loop.py takes it."""
        self.begin()
        loss = self.crew.step(self.task, indices, self.both_passes_done).loss
        self.mark("stepped")
        self.crew.clip(self.parameters, self.task.settings.clip)
        self.mark("clipped")
        self.crew.update(self.optimizer)
        self.end(indices, loss)

    def exchange(self, indices: Tensor) -> None:
        """What ranks send each other in a step, with nothing computed."""
        if self.pipeline is not None:
            self.pass_messages(indices)
        else:
            self.add_gradients()
        self.end(indices)

    def outside(self, indices: Tensor) -> None:
        """What a step of a pipeline does that is not in its schedule: zeroing, the embedding, clipping, the update."""
        tokens, held = self.task.rows(indices)[0], self.held
        first = self.task.model.network().first
        for p in held:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        self.begin()
        for p in held:
            assert p.grad is not None
            p.grad.zero_()
        if self.pipeline is None or self.pipeline.stage.is_first:
            x = first(tokens)
            x.backward(torch.ones_like(x))
        if self.together is not None:
            self.together.mesh.sum(0.0)
        self.crew.clip(self.parameters, self.task.settings.clip)
        self.crew.update(self.optimizer)
        self.end(indices)

    # --- around a step
    def begin(self) -> None:
        self.task.marks.clear()
        self.arrived.clear()
        self.exchanging = 0.0
        if self.together is not None:
            self.together.reducer.sent, self.together.reducer.waited = 0, 0.0
        if self.pipeline is not None:
            self.pipeline.stage.spans = []
        self.mark("start")

    def both_passes_done(self) -> Wishes:
        waited = 0.0 if self.together is None else self.together.reducer.waited
        self.task.marks["backward"] = time.perf_counter() - waited
        return Wishes(False, False)

    def end(self, indices: Tensor, loss: float = 0.0) -> None:
        self.mark("end")
        backward = self.task.marks.get("backward", 0.0)
        self.note = {
            **self.task.marks,
            "loss": loss,
            "exchanging": self.exchanging,
            "arrived": [self.arrived.get(p, backward) for p in self.parameters],
            "sent": self.sent(indices),
        }
        if self.pipeline is not None:
            self.note["spans"] = self.pipeline.stage.spans

    def sent(self, indices: Tensor) -> int:
        """Bytes that left this rank."""
        if self.pipeline is not None:
            stage, like = self.pipeline.stage, self.pipeline.stage.network.layers[0]
            neighbours = 2 - stage.is_first - stage.is_last  # it sends outputs to one, derivatives to the other
            return self.task.count(indices) * neighbours * like.width * like.parameters()[0].element_size()
        return 0 if self.together is None else self.together.reducer.sent

    @property
    def held(self) -> list[nn.Parameter]:
        """The parameters that this rank computes gradients for."""
        return self.parameters if self.pipeline is None else self.pipeline.parameters

    def gradients(self) -> dict[str, Tensor]:
        """By the name of the parameter: those of the whole batch, as far as this rank has them."""
        if self.together is not None and isinstance(self.together.reducer, Server) and self.together.reducer.rank:
            return {}
        held = set(self.held)
        return {name: p.grad for name, p in self.task.model.named_parameters() if p in held and p.grad is not None}

    def rest(self) -> None:
        """Frees the gradients for the next one. A stage of a pipeline keeps them, as in training."""
        if self.pipeline is None:
            self.task.model.zero_grad()

    # --- exchange
    def add_gradients(self) -> None:
        assert self.together is not None
        for p in self.parameters:
            p.grad = torch.full_like(p, 1e-3)
        nothing = torch.optim.SGD([torch.zeros(1)], lr=0.0)
        reducer = self.together.reducer
        self.begin()
        reducer.begin()
        for p in reducer.order:
            reducer.on_gradient(p)
        reducer.finish()
        reducer.update(nothing)

    def pass_messages(self, indices: Tensor) -> None:
        assert self.pipeline is not None
        tokens, targets, layout, _ = self.task.rows(indices)
        messages = Messages(self.pipeline.stage, tokens, targets, layout, None, 1.0)
        self.begin()
        messages.run()


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


Part = Callable[[Trainer, Tensor], None]


@dataclass(frozen=True, eq=False)
class Contender:
    """What takes turns with others. Every rank of the job knows it."""

    name: str
    task: Text  # with whole batches
    trainer: Trainer | None  # None on ranks that have no part in it
    ranks: int = 1
    threads: int = 1
    cut: Cut | None = None  # how the layers are cut; None on ranks that have no part in it
    is_exact: bool = True  # its gradients are those of the whole batch
    timed: Part = Trainer.step

    @property
    def workers(self) -> int:
        return self.ranks * self.threads

    @property
    def about(self) -> dict[str, Any]:
        is_too_much = self.workers > (os.cpu_count() or 1)
        return {"ranks": self.ranks, "threads": self.threads, "oversubscribed": "yes" if is_too_much else "no"}

    def part(self, name: str, timed: Part) -> "Contender":
        """A part of its step, timed alone."""
        return replace(self, name=f"{name} of {self.name}", timed=timed)
