"""Who trains: one process by itself, or several together (ranks/crew.py). All of them run the same loop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from .task import Task

if TYPE_CHECKING:
    from .checkpoint import State
    from .run import Run


class Wishes(NamedTuple):
    """What a process would like to do after a step: all do it if one of them does."""

    stop: bool
    save: bool


class Stepped(NamedTuple):
    loss: float  # the mean over the whole batch
    size: int  # of the batch, in samples or tokens
    wishes: Wishes


class Crew(ABC):
    """The processes that train a network together, seen from one of them."""

    rank = 0
    is_first = True  # it alone prints, and has the folder of the run

    @property
    def like_rank(self) -> int:
        """The rank whose random numbers and decisions this one shares."""
        return self.rank

    @abstractmethod
    def step(self, task: Task, indices: Tensor, wish: Callable[[], Wishes]) -> Stepped:
        """Leaves in .grad the derivative of the mean loss over the whole batch."""

    @abstractmethod
    def clip(self, parameters: Sequence[nn.Parameter], most: float) -> float:
        """Scales all gradients down if their norm is larger than `most` -> the norm before"""

    @abstractmethod
    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Changes the weights."""

    @abstractmethod
    def validate(self, task: Task, state: "State") -> float | None:
        """The same number on all ranks. The first one has the whole network afterwards."""

    @abstractmethod
    def collect(self, state: "State") -> None:
        """Brings to the first rank all that a checkpoint holds."""

    @abstractmethod
    def broadcast(self, read: Callable[[], bytes]) -> bytes:
        """What the first rank reads, on all ranks."""

    @abstractmethod
    def announce(self, run: "Run") -> None:
        """The run has a folder from which it could go on, or gets it now."""

    @abstractmethod
    def restore(self, state: "State") -> None:
        """After a checkpoint was loaded, or before the first step."""


class Alone(Crew):
    def step(self, task: Task, indices: Tensor, wish: Callable[[], Wishes]) -> Stepped:
        loss, count = task.loss(indices)
        task.model.zero_grad()
        loss.backward()
        fill_gradients(task.model.parameters())
        return Stepped(loss.item(), count, wish())

    def clip(self, parameters: Sequence[nn.Parameter], most: float) -> float:
        return clip(parameters, most)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def validate(self, task: Task, state: "State") -> float | None:
        return task.validate()

    def collect(self, state: "State") -> None:
        """It has everything."""

    def broadcast(self, read: Callable[[], bytes]) -> bytes:
        return read()

    def announce(self, run: "Run") -> None:
        """The run has a folder from which it could go on, or gets it now."""

    def restore(self, state: "State") -> None:
        """After a checkpoint was loaded, or before the first step."""
        state.random, state.solvers = {}, {}


def fill_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """An optimizer would skip a missing gradient."""
    for p in parameters:
        if p.requires_grad and p.grad is None:
            p.grad = torch.zeros_like(p)


def clip(parameters: Sequence[nn.Parameter], most: float, norm: Tensor | None = None) -> float:
    """As clip_grad_norm_, but short gradients are not written again. norm: of all, if there are more"""
    if norm is None:
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    found = norm.item()
    if not found <= most:
        nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return found
