"""Sequences cut into pieces that run side by side, and which piece follows which."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..engines import Gradients, Layout, Needs, Prepared, Tape
from ..kernels import pool
from ..layout import Spans, Whole
from .base import Problem
from .warm_start import Visit

States = list[Tensor]


class Grid:
    """Pieces of c steps of every sequence of a layout. In reverse, the steps are counted from the end of each sequence.

    Rows of the pieces are step after step, like those of any layout. Everything else that has one row for each piece is
    in the order of the pieces: (n, .).
    """

    def __init__(self, whole: Layout, c: int, reverse: bool = False) -> None:
        self.whole, self.c = whole, c
        self.layout, rows, piece, sequence = whole.pieces(c)
        self.walk = whole.backwards if reverse else None  # (N,): for each row in the order of the walk, its row
        self.rows = rows if self.walk is None else self.walk[rows]  # (N,): for each row of the pieces, its row
        self.piece, self.sequence = piece.numpy(), sequence.numpy()  # (n,) each
        self.n = len(self.piece)
        self.place = place = np.full((int(self.piece.max(initial=0)) + 1, whole.B), -1)
        place[self.piece, self.sequence] = np.arange(self.n)  # the number of each piece
        self.first = torch.from_numpy(place[0].copy())  # (B,)
        counts = (place >= 0).sum(0)
        self.last = torch.from_numpy(place[counts - 1, np.arange(whole.B)])  # (B,)
        inner = np.flatnonzero(self.piece > 0)
        self.inner = torch.from_numpy(inner)  # (m,): the pieces that another one leads to
        self.of_inner = self.piece[inner], self.sequence[inner]  # (m,) each
        self.before = torch.from_numpy(place[self.of_inner[0] - 1, self.of_inner[1]])  # (m,): that other one
        self.found: dict[int, Spans] = {}  # windows of a number of steps

    @staticmethod
    def of(layout: Layout, c: int, reverse: bool) -> "Grid":
        """Those of dense batches are the same for all batches of a shape."""
        if layout.batch_sizes is None:
            return dense_grid(layout.T, layout.B, c, reverse)
        key = "grid", c, reverse
        if key not in layout.cache:
            layout.cache[key] = Grid(layout, c, reverse)
        found: Grid = layout.cache[key]
        return found

    @cached_property
    def places(self) -> Tensor:  # (N,)
        found = torch.empty_like(self.rows)
        found[self.rows] = torch.arange(len(self.rows))
        return found

    def windows(self, steps: Whole, leaves: int = 0) -> Spans:  # (m + leaves,)
        """So many steps before each inner piece, and before the first ends. Rows of the layout."""
        (piece, sequence), most = self.of_inner, int(steps.max(initial=0))
        is_even = not leaves and (steps == most).all()
        if is_even and most in self.found:
            return self.found[most]
        end = np.concatenate([piece * self.c, self.whole.lengths[:leaves]])
        sequence = np.concatenate([sequence, np.arange(leaves)])
        spans = self.whole.spans(sequence, np.maximum(0, end - steps), end)
        if self.walk is not None:
            spans = spans._replace(rows=self.walk[spans.rows])
        if is_even:
            self.found[most] = spans
        return spans

    def some(self, pieces: Tensor, first: int, end: int) -> Spans:
        which = pieces.numpy()
        ends = np.minimum(self.layout.lengths[which], end)
        return self.layout.spans(which, np.full_like(ends, first), ends)

    def at_ends(self, last: Sequence[Tensor | None], zeros: States) -> States:  # (B, .) each -> (n, .)
        for zero, d in zip(zeros, last, strict=True):
            if d is not None:
                zero[self.last] = d
        return zeros

    def states_at(self, tape: Tape, pieces: Tensor, step: Whole) -> States:  # (n, .) each
        """What some pieces have before a step of theirs."""
        rows = torch.from_numpy(np.where(step > 0, self.layout.first_rows[step - 1] + pieces.numpy(), 0))
        is_first = torch.from_numpy(step == 0).unsqueeze(1)
        pairs = zip(tape.initial, tape.states, strict=True)
        return [torch.where(is_first, initial[pieces], states[rows]) for initial, states in pairs]


class Link(Protocol):
    """The neighbours in time. enters, leaves: sequences that come, and go on"""

    enters: int
    leaves: int
    steps: int  # of the whole sequences

    # what leaving sequences have, to the rank after -> from the rank before; `back`: the other way round
    def on(self, values: States) -> States: ...  # (leaves, .) each -> (enters, .)
    def back(self, values: States) -> States: ...  # (enters, .) each -> (leaves, .)

    # one after another: `arrived` waits for what the rank before (back: after) this one sends
    def arrived(self, like: States, *, back: bool = False) -> States: ...
    def send(self, values: States, *, back: bool = False) -> None: ...

    # over all ranks: the largest of each number; rows one after another; the initial states of the whole batch
    def most(self, *numbers: float) -> list[float]: ...
    def all_rows(self, values: States) -> States: ...
    def whole_initial(self, initial: States) -> States: ...  # (B, .) each

    # with pieces of c steps: the departures of each sequence on all ranks, and on those before this one
    def departures(self, c: int) -> tuple[Whole, Whole]: ...  # (B,) each


class Joints:
    """Where pieces meet: departures are followed, arrivals follow. Those of ranks are last."""

    def __init__(self, grid: Grid, link: Link | None) -> None:
        self.grid, self.link = grid, link
        self.departures, self.arrivals = grid.before, grid.inner  # (m,) each: the numbers of pieces
        if link is not None:
            self.departures = torch.cat([grid.before, grid.last[: link.leaves]])
            self.arrivals = torch.cat([grid.inner, grid.first[: link.enters]])

    def on(self, values: States) -> States:
        """What departures have -> what arrivals get"""
        return values if self.link is None else self.over(values, len(self.grid.before), self.link.on)

    def back(self, values: States) -> States:
        """What arrivals have -> what departures get"""
        return values if self.link is None else self.over(values, len(self.grid.inner), self.link.back)

    @staticmethod
    def over(values: States, mine: int, carry: Callable[[States], States]) -> States:
        others = carry([v[mine:] for v in values])
        return [torch.cat([v[:mine], other]) for v, other in zip(values, others, strict=True)]

    def most(self, *numbers: float) -> list[float]:
        return list(numbers) if self.link is None else self.link.most(*numbers)

    def relative(self, gaps: States, states: States) -> Tensor:
        """The size of each gap, in a unit that all ranks share."""
        (size,) = self.most(float(norms(states).square().mean().sqrt()) if len(states[0]) else 0.0)
        return in_units(norms(gaps), size)


@lru_cache(16)
def dense_grid(T: int, B: int, c: int, reverse: bool) -> Grid:
    return Grid(Layout(T, B), c, reverse)


class Direction:
    """One direction of a layer, walked forward: the grid has turned the rows."""

    def __init__(self, problem: Problem, d: int) -> None:
        self.engine, self.given, self.layout, self.number = problem.engine, problem.ps[d], problem.layout, d
        self.visit = problem.visits[d] if problem.visits else Visit()
        self.widths = self.given.widths

    @cached_property
    def p(self) -> Prepared:
        p = self.given
        return self.engine.prepare(p.cell, p.weights, False) if p.reverse else p

    def zeros(self, count: int, like: Tensor) -> States:
        return [like.new_zeros(count, width) for width in self.widths]

    def initial(self, state0: Sequence[Tensor] | None, like: Tensor) -> States:  # (B, .) each
        return self.zeros(self.layout.B, like) if state0 is None else [s[self.number] for s in state0]

    def tape(self, memory: Tensor, layout: Layout) -> Tape:
        return self.p.room(layout, 1).tape(memory, layout)

    def recur(
        self,
        wx: Tensor,
        starts: States | None,
        layout: Layout,
        dt: int = 1,
        *,
        source: States | None = None,
        path: bool = True,
    ) -> tuple[States, States]:  # (N, .) each, (n, .) each
        """Without a tape -> all states, if `path`, and the last ones"""
        out = [wx.new_empty(layout.N, width) for width in self.widths] if path else None
        last, _ = self.engine.recur(self.p, wx, starts, layout, dt=dt, source=source, keep=False, out=out)
        return out or [], last

    def forward(
        self, p: Prepared, rows: Tensor, starts: Sequence[Tensor], layout: Layout, *, keep: bool = True
    ) -> tuple[Tensor, States, list[Tensor]]:
        """-> rows, last states (n, .), the tape's memory. p: self.p, or self.given"""
        y, last, memory = self.engine.forward([p], rows, [s.unsqueeze(0) for s in starts], layout, keep=keep)
        return y, [s[0] for s in last], memory

    def backward(self, p: Prepared, given: "Backward", layout: Layout) -> Gradients:
        rows, memory, d_rows, d_last, needs, spend = given
        ends = [None if d is None else d.unsqueeze(0) for d in d_last]
        g = self.engine.backward([p], rows, [memory], d_rows, ends, layout, needs=needs, spend=spend)
        return g._replace(states=[s[0] for s in g.states], derivatives=[])


class Backward(NamedTuple):
    """What the backward pass of a direction is given."""

    rows: Tensor  # (N, I): its input
    memory: Tensor  # of its tape
    d_rows: Tensor | None  # (N, P)
    d_last: Sequence[Tensor | None]  # per state (B, .)
    needs: Needs
    spend: bool  # the tape may be overwritten


def taken(matrix: Tensor, rows: Tensor) -> Tensor:  # (N, .), (n,) -> (n, .)
    """These rows, in memory that the next training step uses again."""
    return torch.index_select(matrix, 0, rows, out=pool.empty(matrix, len(rows), matrix.shape[1], exact=True))


def norms(states: Sequence[Tensor]) -> Tensor:  # (n, .) each -> (n,)
    """Of all states together, in float64: squares underflow in float32."""
    total = states[0].double().square().sum(1)
    for s in states[1:]:
        total = total + s.double().square().sum(1)
    return total.sqrt_()


def largest(gaps: Sequence[Tensor], states: Sequence[Tensor]) -> float:
    """Of the gaps, as `relative` has them; 0 if there is none."""
    found = relative(gaps, states)
    return float(found.max()) if len(found) else 0.0


def relative(gaps: Sequence[Tensor], states: Sequence[Tensor]) -> Tensor:  # (m, .), (n, .) -> (m,)
    """The size of each gap, in units of the mean square of the states."""
    return in_units(norms(gaps), float(norms(states).square().mean().sqrt()))


def in_units(found: Tensor, size: float) -> Tensor:
    """If all states are zero, any gap is a whole unit."""
    return found / size if size else (found > 0).to(found.dtype) + found * 0  # NaN stays NaN
