"""A network that can be cut into stages: something that makes rows, recurrent layers, and a head that judges rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from .. import engines
from ..cells import Cell
from ..engines import Engine, Weights
from ..errors import PlaitError
from ..layers import Recurrent
from ..solvers import Serial

Later = Callable[[], None] | None
Loss = Callable[[Any, Tensor], Tensor]  # outputs and targets of some rows -> the mean over these rows


class OneLayer(NamedTuple):
    module: Recurrent
    number: int
    dropout: float  # of its output; the last one of all has none

    @property
    def cell(self) -> type[Cell]:
        return self.module._plait_cell

    @property
    def width(self) -> int:
        return self.module.proj_size or self.module.hidden_size

    def parameters(self) -> list[nn.Parameter]:
        return [getattr(self.module, name) for name in self.module._all_weights[self.number]]

    def weights(self) -> Weights:
        return Weights.of(self.cell, [p.detach() for p in self.parameters()], bias=self.module.bias)

    def engine(self) -> Engine:
        weight = self.parameters()[0]
        return engines.get(engines.choose(self.module.engine, self.cell, weight.dtype, weight.device))


class Head(ABC):
    """The end of a network: loss and derivatives of some rows."""

    @abstractmethod
    def parameters(self) -> list[nn.Parameter]: ...

    @abstractmethod
    def rows(self, h: Tensor, target: Tensor, divisor: float) -> tuple[Tensor, Tensor, Later]:
        """-> the sum of the losses of these rows over `divisor`; its derivative by h; and what adds the gradients of
        the head's own parameters to their .grad, if that is still to be done.
        """


class AnyHead(Head):
    """By autograd. judge: outputs of the last layer and targets -> the mean loss"""

    def __init__(self, module: nn.Module, judge: Loss) -> None:
        self.module, self.judge = module, judge

    def parameters(self) -> list[nn.Parameter]:
        return list(self.module.parameters())

    def rows(self, h: Tensor, target: Tensor, divisor: float) -> tuple[Tensor, Tensor, Later]:
        h = h.detach().requires_grad_()
        with torch.enable_grad():
            loss = self.judge(h, target) * (h.shape[0] / divisor)
        loss.backward()
        return loss.detach(), torch.zeros_like(h) if h.grad is None else h.grad, None


@dataclass(frozen=True)
class Network:
    first: nn.Module
    layers: Sequence[OneLayer]
    head: Head

    @classmethod
    def of(cls, first: nn.Module, rnns: Sequence[nn.Module], head: Head) -> "Network":
        return cls(first, list(layers_of(rnns)), head)

    def stages(self, split: Sequence[int]) -> list[list[nn.Parameter]]:
        """The parameters of each stage, each once."""
        found: list[list[nn.Parameter]] = []
        first = 0
        for s, count in enumerate(split):
            mine = list(self.first.parameters()) if s == 0 else []
            for layer in self.layers[first : first + count]:
                mine += layer.parameters()
            if s == len(split) - 1:
                mine += self.head.parameters()
            found.append(list({id(p): p for p in mine}.values()))
            first += count
        return found


def layers_of(rnns: Sequence[nn.Module]) -> Iterator[OneLayer]:
    for module in rnns:
        if not isinstance(module, Recurrent):
            raise PlaitError(
                f"a stage of layers has a {type(module).__name__}: expected recurrent layers of plait; "
                "call plait.accelerate(model) first."
            )
        layer = module
        if layer.bidirectional:
            raise PlaitError(
                f"layers: {type(layer).__name__} is bidirectional, and cannot be in a pipeline: its reverse direction "
                "starts at the last step, which a stage has only when all chunks have come; use data ranks for it."
            )
        if not isinstance(layer.solver, Serial):
            raise PlaitError(f"layers: solver {layer.solver} cannot be in a pipeline: use plait.Serial().")
        if layer.precision == "bf16":
            raise PlaitError("layers: precision bf16 cannot be in a pipeline: use data ranks, or float32.")
        if is_parametrized(layer):
            raise PlaitError(
                f"layers: the weights of {type(layer).__name__} are parametrized, and a pipeline needs plain ones: "
                "remove the parametrizations, or use data ranks."
            )
        for number in range(layer.num_layers):
            is_last = number == layer.num_layers - 1
            yield OneLayer(layer, number, 0.0 if is_last else layer.dropout)
