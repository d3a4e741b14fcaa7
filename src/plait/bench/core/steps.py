"""Layers and batches, as --shapes has them, and their training steps."""

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ... import cells, layers
from ...errors import PlaitError
from ...tasks.memory import check_layer

TORCH: dict[str, type[nn.LSTM | nn.GRU | nn.RNN]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


@dataclass(frozen=True)
class Case:
    """One layer, or several on top of one another, and a dense batch for it."""

    cell: str
    B: int
    T: int
    I: int
    H: int
    layers: int = 1

    @property
    def shape(self) -> str:
        return f"{self.B},{self.T},{self.I},{self.H},{self.layers}"

    @property
    def gates(self) -> int:  # G*H
        return len(cells.get(self.cell).gates) * self.H

    def work(self, input_gradient: bool = False) -> int:
        """Multiplications and additions of a step's matrix products.

        Those with W are two, and a third where the gradient of the input is wanted; those with R are three.
        """
        first = (3 if input_gradient else 2) * self.I + 3 * self.H
        return 2 * self.T * self.B * self.gates * (first + (self.layers - 1) * 6 * self.H)


def parse_shapes(text: str, cells: Sequence[str]) -> list[Case]:
    """Every shape with every cell."""
    cases = []
    for shape in text.split() or [text]:
        if not re.fullmatch(r"[1-9][0-9]{0,4}(,[1-9][0-9]{0,4}){4}", shape):
            expected = "expected B,T,I,H,layers, each 1 to 99999, such as 32,128,64,64,1"
            raise PlaitError(f"shape '{shape}': {expected}; between two shapes a space.")
        cases += [Case(cell, *map(int, shape.split(","))) for cell in cells]
    return cases


def check_one_layer(cases: Sequence[Case], what: str) -> None:
    for case in cases:
        if case.layers > 1:
            raise PlaitError(f"shape '{case.shape}': {what} of one layer: let it end with ,1.")


class Step:
    """Forward and backward, as a training loop has them. forward: -> outputs; else the layer is called with x."""

    def __init__(self, layer: nn.Module, x: Tensor, d_y: Tensor, forward: Callable[[], Tensor] | None = None) -> None:
        self.layer, self.x, self.d_y = layer, x, d_y
        self.forward = forward or (lambda: layer(x)[0])

    def __call__(self) -> None:
        self.clear()
        self.backward(self.forward())

    def backward(self, y: Tensor) -> None:
        y.backward(self.d_y)

    def clear(self) -> None:
        self.layer.zero_grad(set_to_none=True)
        self.x.grad = None

    def results(self) -> list[Tensor]:
        """Outputs, and the gradients of the parameters and, if it is wanted, of the input."""
        self.clear()
        y = self.forward()
        self.backward(y)
        return [y.detach(), *(t.grad for t in (*self.layer.parameters(), self.x) if t.grad is not None)]


def check_memory(case: Case) -> None:
    """Refuses what two layers with their steps would not fit into."""
    check_layer(case.B, case.T, case.I, case.H, case.gates, case.layers, of=2)


def contenders(case: Case, engine: str, input_gradient: bool = False) -> dict[str, Step]:
    """Torch's layer and plait's, with the same weights and data."""
    check_memory(case)
    theirs = TORCH[case.cell](case.I, case.H, case.layers)
    ours = layers.accelerate(copy.deepcopy(theirs), engine)
    x = torch.randn(case.T, case.B, case.I, requires_grad=input_gradient)
    d_y = torch.randn(case.T, case.B, case.H)
    return {"torch": Step(theirs, x, d_y), "plait": Step(ours, x, d_y)}


def packing(layer: Any, x: Tensor, lengths: Tensor) -> Callable[[], Tensor]:
    """The layer on a batch that is packed for it, and padded again: what a script with torch's layers does."""

    def forward() -> Tensor:
        packed, _ = layer(pack_padded_sequence(x, lengths, enforce_sorted=False))
        padded, _ = pad_packed_sequence(packed, total_length=len(x))
        return padded

    return forward
