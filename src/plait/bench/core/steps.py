"""A training step of torch.nn's layer beside the same step of plait's."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ... import layers
from ...tasks.memory import check_layer
from .cases import Case

TORCH: dict[str, type[nn.LSTM | nn.GRU | nn.RNN]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


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


def contenders(case: Case, engine: str, input_gradient: bool = False) -> dict[str, Step]:
    """Torch's layer and plait's, with the same weights and data."""
    check_layer(case.B, case.T, case.I, case.H, case.gates, case.layers, of=2)
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
