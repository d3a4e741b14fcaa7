"""A call like the last one: what was checked and made for that one is taken again. In a small step it takes a tenth."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import threads
from . import autograd
from .call import Call
from .stack import Stack


class Ready:
    """All about the last call but its tensors. It was of a dense batch, without initial states, by engine `fused`."""

    __slots__ = ("calls", "dropout", "dtype", "last", "settings", "shape", "solver")

    def __init__(self, layer: Any, x: Tensor, calls: Sequence[Call], dropout: float) -> None:
        """x: (T, B, I)"""
        T, B, I = x.shape
        self.shape = (B, T, I) if layer.batch_first else (T, B, I)
        self.dtype, self.calls, self.dropout = x.dtype, calls, dropout
        self.settings, self.solver = settings(layer), layer.solver
        self.last: tuple[tuple[Any, ...], Stack] | None = None  # the stack of the last call, and what it depends on

    def __deepcopy__(self, memo: object) -> None:
        return

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def fits(self, layer: Any, input: Any) -> bool:
        """Whether this call is like that one. If not, it takes the usual way, which also says what is wrong with it."""
        if type(input) is not Tensor or input.shape != self.shape or input.dtype is not self.dtype or not input.is_cpu:
            return False
        weight = layer._flat_weights[0]
        if weight.dtype is not self.dtype or not weight.is_cpu or autograd.is_autocast(weight.device):
            return False
        if layer.solver is not self.solver or settings(layer) != self.settings:
            return False
        if layer._plait_held is not None or layer._plait_time is not None:
            return False
        return bool(self.dropout == (layer.dropout if layer.training else 0.0))

    def stack(self, x: Tensor, tensors: Sequence[Tensor]) -> Stack:
        """The same as in the last call, if it can be: then what runs it is known."""
        key = threads.threads(), x.requires_grad, *[(t.shape, t.dtype, t.device) for t in tensors]
        last = self.last
        if last is not None and last[0] == key:
            return last[1]
        stack = Stack(self.calls, self.dropout)
        self.last = key, stack
        return stack


def all_learn(x: Tensor, weights: Sequence[Sequence[Tensor]]) -> bool:
    """Whether all layers need a tape, or none does. Else those below the first that learns need none."""
    return len(weights) == 1 or not torch.is_grad_enabled() or autograd.is_recorded(x, weights[0])


def settings(layer: Any) -> tuple[Any, ...]:
    """What a user may change in a layer beside its weights."""
    sizes = layer.input_size, layer.num_layers, layer.bias, layer.bidirectional, layer.batch_first
    return layer.engine, layer._plait_cell, *sizes
