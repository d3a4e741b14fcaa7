"""What the sections of `bench time` are asked, and what they share."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import solvers
from ..solvers import Solver
from .time_nets import Net

Row = dict[str, Any]


@dataclass
class Order:
    data: str | None
    quick: bool
    repeats: int
    seed: int
    remarks: list[str] = field(default_factory=list)
    nets: dict[str, Net] = field(default_factory=dict)  # those that were trained, by name


class Learner:
    """A network and its optimizer: one call is a whole training step."""

    def __init__(self, net: Net, solver: Solver) -> None:
        self.net = copy.deepcopy(net)
        self.net.rnn.solver = solver
        self.model = nn.ModuleList([self.net.rnn, self.net.head])
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3, fused=True)

    def __call__(self, x: Tensor, y: Tensor, ids: Tensor | None = None) -> None:
        self.optimizer.zero_grad()
        self.net.mean_loss(x, y, ids).backward()
        self.optimizer.step()

    def off(self, x: Tensor, y: Tensor, ids: Tensor | None = None) -> float:
        """How far its gradient is off, end to end."""
        return solvers.compare(self.model, lambda: self.net.mean_loss(x, y, ids)).gradient


def step_of(layer: nn.Module, x: Tensor, ids: Tensor | None = None) -> Callable[[], None]:
    """Both passes of a layer, with a loss at every step."""

    def step() -> None:
        layer.zero_grad()
        (layer(x) if ids is None else layer(x, ids=ids))[0].square().mean().backward()

    return step
