"""What a walk keeps for its derivative."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from ..cells import Cell
from ..cells.trace import trace
from ..kernels.records import words
from ..layout import Layout


@dataclass(frozen=True)
class Tape:
    """One row per step and live sequence, in plain tensors that are the same for all engines.

    What the cell saved is in the columns of `gates`; if there are more, the rest is in those of `extra`.
    """

    layout: Layout
    reverse: bool
    dt: float
    initial: Sequence[Tensor]  # per state (B, .)
    states: Sequence[Tensor]  # per state (N, .): after each step
    gates: Tensor  # (N, G*H)
    extra: Tensor  # (N, E*H)
    raw: Tensor | None  # (N, H): h before the projection, if there is one
    old: Sequence[Tensor] | None = None  # per state (N, .): the states at which it was linearised, if not `states`
    memory: Tensor | None = None  # the one tensor that all of this is in

    @property
    def path(self) -> Sequence[Tensor]:
        """The states that the steps start from: a step starts from the row of the step before."""
        return self.states if self.old is None else self.old

    def saved(self, H: int) -> Tensor:  # (N, ., H)
        """As columns. It is a view if there is only one matrix."""
        gates, extra = (m.unflatten(1, (-1, H)) for m in (self.gates, self.extra))
        return gates if not extra.shape[1] else torch.cat([gates, extra], 1)

    def before(self, k: int, t: int) -> Tensor:
        """State k before step t, for the rows alive at t."""
        sizes, starts = self.layout.sizes, self.layout.starts
        n, previous = sizes[t], t + 1 if self.reverse else t - 1
        if not 0 <= previous < self.layout.T:
            return self.initial[k][:n]
        rows = self.path[k][starts[previous] : starts[previous] + min(n, sizes[previous])]
        return torch.cat([rows, self.initial[k][sizes[previous] : n]]) if sizes[previous] < n else rows

    def before_all(self, k: int) -> Tensor:  # (N, .)
        """The same for all steps. It is a view if the initial and the other states are next to each other in memory."""
        parts = (self.path[k], self.initial[k]) if self.reverse else (self.initial[k], self.path[k])
        if self.layout.is_dense and adjacent(*parts):
            start = self.layout.B if self.reverse else 0
            return history(*parts)[start : start + self.layout.N]
        rows = self.layout.rows_before(self.reverse).to(parts[0].device)
        return (history(*parts) if adjacent(*parts) else torch.cat(parts)).index_select(0, rows)

    def cut(self, t0: int, t1: int) -> "Tape":
        """The tape of the steps t0..t1: views. (Only initial states of ragged sequences in reverse may be a copy.)"""
        layout, rows = self.layout.cut(t0, t1), self.layout.rows(t0, t1)
        return Tape(
            layout,
            self.reverse,
            self.dt,
            [self.entering(k, t0, t1) for k in range(len(self.states))],
            [s[rows] for s in self.states],
            self.gates[rows],
            self.extra[rows],
            None if self.raw is None else self.raw[rows],
            None if self.old is None else [s[rows] for s in self.old],
        )

    def entering(self, k: int, t0: int, t1: int) -> Tensor:
        """State k of the sequences that are alive at t0, just before the walk takes the steps t0..t1."""
        if not self.reverse:
            return self.before(k, t0)
        B, n = self.layout.sizes[t0], self.layout.sizes[t1] if t1 < self.layout.T else 0
        start = self.layout.starts[t1] if n else 0
        rows = self.path[k][start : start + n]
        return torch.cat([rows, self.initial[k][n:B]]) if 0 < n < B else rows if n else self.initial[k][:B]


def adjacent(first: Tensor, second: Tensor) -> bool:
    """Whether the rows of the second follow those of the first in memory."""
    same = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    together = first.is_contiguous() and second.is_contiguous()
    return same and together and first.storage_offset() + first.numel() == second.storage_offset()


def history(first: Tensor, second: Tensor) -> Tensor:
    """Two adjacent matrices as one."""
    return first.as_strided((first.shape[0] + second.shape[0], first.shape[1]), first.stride(), first.storage_offset())


@dataclass(frozen=True)
class Room:
    """How much memory a tape needs, and where its matrices are: gates, extra, raw; then per state the initial and the
    other states, next to each other.
    """

    cell: type[Cell]
    dt: float
    N: int
    B: int
    H: int
    P: int
    projected: bool
    reverse: bool
    rounded: bool = False  # to bfloat16, two in a number; an even number of them for each gate and state

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """In reverse the initial states come after the others."""
        N, B, H, G = self.N, self.B, self.words(self.H), len(self.cell.gates)
        found = [(N, G * H), (N, trace(self.cell, self.dt).extra * H), (N, H if self.projected else 0)]
        for k in range(len(self.cell.states)):
            width = self.words(self.P) if k == 0 else H
            found += [(N, width), (B, width)] if self.reverse else [(B, width), (N, width)]
        return found

    def words(self, operands: int) -> int:
        return words(operands, self.rounded)

    @cached_property
    def starts(self) -> list[int]:
        """Where each matrix starts, in numbers, and the end."""
        return [0, *accumulate(rows * columns for rows, columns in self.shapes)]

    @property
    def total(self) -> int:
        return self.starts[-1]

    def tape(self, memory: Tensor, layout: Layout) -> Tape:
        parts = [
            memory.as_strided(shape, (shape[1], 1), memory.storage_offset() + start)
            for start, shape in zip(self.starts, self.shapes, strict=False)
        ]
        gates, extra, raw, *pairs = parts
        first, second = pairs[::2], pairs[1::2]
        initial, states = (second, first) if self.reverse else (first, second)
        projected = raw if self.projected else None
        return Tape(layout, self.reverse, self.dt, initial, states, gates, extra, projected, None, memory)

    @cached_property
    def matrices(self) -> dict[tuple[str, int], int]:
        """(name, number of the state) -> numbers before the matrix. history: the h that each step starts from."""
        gates, extra, raw, *pairs = self.starts[:-1]
        first, second = pairs[::2], pairs[1::2]
        initial, states = (second, first) if self.reverse else (first, second)
        found = {("gates", 0): gates, ("wx", 0): gates, ("extra", 0): extra, ("raw", 0): raw}
        for k, (a, b) in enumerate(zip(states, initial, strict=True)):
            found |= {("states", k): a, ("old", k): a, ("initial", k): b}
        return found | {("history", 0): states[0] + self.B * self.words(self.P) if self.reverse else initial[0]}


MOST_ROOMS = 1024
room = lru_cache(MOST_ROOMS)(Room)  # not for sizes that torch.compile has left open
