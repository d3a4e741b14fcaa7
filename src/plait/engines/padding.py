"""A padded batch, and the rows of the ragged one that it is."""

import copy
import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..errors import PlaitError
from ..kernels import compiler, pool
from ..kernels.records import laid_out as OUT
from ..layout import Layout, check_lengths
from .base import Gradients


class Padding:
    """Where the rows are. An engine that is given one copies them itself, and has the states in the user's order."""

    enters = leaves = True  # the input is padded, and the output

    def __init__(self, lengths: Any, T: int, B: int, batch_first: bool) -> None:
        """lengths: of the user, in any order"""
        self.shape = (B, T) if batch_first else (T, B)
        given = lengths
        if type(given) is Tensor and given.dtype is torch.int64 and given.shape == (B,) and given.is_cpu:
            given = given.resolve_neg().clone(memory_format=torch.contiguous_format)  # another thread may change it
        else:
            given = torch.from_numpy(check_lengths(lengths, T, B))
        if type(given) is not Tensor:  # nothing has numbers here, as in a FakeTensorMode
            check_lengths(given, T, B)
            raise PlaitError("lengths without numbers: call the layer outside of a mode that makes fake tensors.")
        self.starts = OUT.starts(T, B)
        self.memory = pool.empty(given, self.starts[-1])
        address = self.memory.data_ptr()
        lay_out()(given.data_ptr(), T, B, batch_first, address)
        N, steps = self.memory[: OUT.FIRST].tolist()
        if N < 0:
            check_lengths(given, T, B)  # it says what is wrong
        self.layout = layout = Layout(steps, B, self.part(OUT.SIZES, steps))
        layout.N, layout.is_dense = N, steps * B == N
        layout.permutation, layout.inverse = self.part(OUT.ORDER, B), self.part(OUT.INVERSE, B)
        layout.lengths, layout.bounds = self.part(OUT.LENGTHS, B).numpy(), self.part(OUT.BOUNDS, steps + 1)
        layout.cache["rows before", False] = self.part(OUT.BEFORE, N)
        # for the copies of a launch: the address of an index, and how many rows it is for
        self.to_rows = address + 8 * self.starts[OUT.PLACES], N
        self.to_padded = address + 8 * self.starts[OUT.SOURCES], T * B
        self.to_states = address + 8 * self.starts[OUT.INVERSE]

    def of_layer(self, k: int, layers: int) -> "Padding":
        """Between two layers rows are not padded."""
        if layers == 1:
            return self
        mine = copy.copy(self)
        mine.enters, mine.leaves = k == 0, k == layers - 1
        return mine

    def part(self, k: int, size: int) -> Tensor:
        """The first numbers of one of the arrays."""
        return self.memory[self.starts[k] : self.starts[k] + size]

    def of_output(self) -> tuple[int, ...]:
        """The shape of the output, without its last axis."""
        return self.shape if self.leaves else (self.layout.N,)

    # --- the same on torch's operators
    def entering(self, x: Tensor) -> Tensor:
        """The rows of the input."""
        return self.rows(x) if self.enters else x

    def leaving(self, rows: Tensor) -> Tensor:
        """The output that has these rows."""
        return self.padded(rows) if self.leaves else rows

    def rows(self, x: Tensor) -> Tensor:  # (., ., width) -> (N, width)
        return x.flatten(0, 1).index_select(0, self.part(OUT.PLACES, self.layout.N))

    def padded(self, rows: Tensor) -> Tensor:  # (N, width) -> (., ., width)
        """With zeros beyond the ends."""
        (a, b), places = self.shape, self.part(OUT.PLACES, self.layout.N)
        result = rows.new_zeros(a * b, rows.shape[1]).index_copy(0, places, rows)
        return result.view(a, b, -1)

    def sorted(self, states: Sequence[Any]) -> list[Any]:  # (., B, .), or None
        return [None if s is None else s.index_select(1, self.layout.permutation) for s in states]

    def unsorted(self, states: Sequence[Any]) -> list[Any]:
        return [None if s is None else s.index_select(1, self.layout.inverse) for s in states]

    def gradients(self, found: Gradients) -> Gradients:
        """Those for the rows as those for the padded input."""
        d_x = self.padded(found.x) if self.enters and found.x is not None else found.x
        return found._replace(x=d_x, states=self.unsorted(found.states))


@cache
def lay_out() -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(compiler.shared()["plait_lay_out"])
