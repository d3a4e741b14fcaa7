"""What an engine is: it runs the recurrence of one layer, because only that is sequential, and what belongs to it.

Rows. Everything that has a time and a batch axis is a matrix (N, F) of rows: step after step, and within a step the
sequences that are still alive, longest first. That is the layout of torch's PackedSequence; a dense batch is the case
where all B are alive at all T steps, N = T * B, and may come as (T, B, F). Nothing is ever computed for padding.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..cells import Cell
from ..layout import Layout


class Weights(NamedTuple):
    """One layer and direction, shaped as in torch.nn."""

    w_ih: Tensor  # (G*H, I)
    w_hh: Tensor  # (G*H, P), P = H without a projection
    b_ih: Tensor | None  # (G*H,)
    b_hh: Tensor | None  # (G*H,)
    w_hr: Tensor | None  # (P, H)

    @classmethod
    def of(cls, tensors: Sequence[Tensor], *, bias: bool) -> "Weights":
        """From torch's order: w_ih, w_hh, then the biases and the projection, if any."""
        rest = tensors[4:] if bias else tensors[2:]
        b_ih, b_hh = tensors[2:4] if bias else (None, None)
        return cls(tensors[0], tensors[1], b_ih, b_hh, rest[0] if rest else None)

    @property
    def tensors(self) -> list[Tensor]:
        return [t for t in self if t is not None]

    def widths(self, cell: type[Cell]) -> list[int]:
        """Of the states: h has P, the others H."""
        GH, P = self.w_hh.shape
        return [P, *[GH // len(cell.gates)] * (len(cell.states) - 1)]


@dataclass
class Tape:
    """What a walk leaves behind for its derivative: plain tensors, one row per step and live sequence.

    A state's history has B rows more, the initial ones, at the end that the walk starts from. So the states before
    each step of a dense walk are a slice of the same memory.
    """

    layout: Layout
    reverse: bool
    dt: float
    history: Sequence[Tensor]  # per state (B + N, H); h is (B + N, P)
    raw: Tensor | None  # (N, H): h before the projection, if there is one
    saved: Sequence[Tensor]  # what the cell saved, as the engine keeps it

    @classmethod
    def of(
        cls,
        cell: type[Cell],
        layout: Layout,
        tensors: Sequence[Tensor],
        *,
        projected: bool,
        reverse: bool,
        dt: float = 1,
    ) -> "Tape":
        S = len(cell.states)
        raw = tensors[S] if projected else None
        return cls(layout, reverse, dt, tensors[:S], raw, tensors[S + projected :])

    def initial(self, k: int) -> Tensor:  # (B, .)
        return self.history[k][self.layout.N :] if self.reverse else self.history[k][: self.layout.B]

    def states(self, k: int) -> Tensor:  # (N, .)
        return self.history[k][: self.layout.N] if self.reverse else self.history[k][self.layout.B :]

    def before(self, k: int, t: int) -> Tensor:
        """State k before step t, for the rows alive at t."""
        sizes, starts = self.layout.sizes, self.layout.starts
        n, previous = sizes[t], t + 1 if self.reverse else t - 1
        if not 0 <= previous < self.layout.T:
            return self.initial(k)[:n]
        rows = self.states(k)[starts[previous] : starts[previous] + min(n, sizes[previous])]
        return torch.cat([rows, self.initial(k)[sizes[previous] : n]]) if sizes[previous] < n else rows

    def before_all(self, k: int) -> Tensor:  # (N, .)
        if self.layout.is_dense:
            return self.history[k][self.layout.B :] if self.reverse else self.history[k][: self.layout.N]
        before = self.layout.rows_before(self.reverse)
        return self.history[k].index_select(0, before.to(self.history[k].device))


@dataclass(frozen=True)
class Prepared:
    """The weights of a recurrence, and the sizes that they tell."""

    cell: type[Cell]
    weights: Weights
    H: int
    P: int

    @property
    def w_hh(self) -> Tensor:
        return self.weights.w_hh

    @property
    def b_hh(self) -> Tensor | None:
        return self.weights.b_hh

    @property
    def w_hr(self) -> Tensor | None:
        return self.weights.w_hr


class Needs(NamedTuple):
    """Which gradients are wanted: of x, of the initial states, and per direction of the weights, in their order."""

    x: bool
    states: Sequence[bool]
    weights: Sequence[Sequence[bool]]

    @classmethod
    def all(cls, cell: type[Cell], weights: Sequence[Weights]) -> "Needs":
        return cls(True, [True] * len(cell.states), [[True] * len(w.tensors) for w in weights])


@dataclass(frozen=True)
class Derivative:
    """What a walk back leaves. d_rh comes as columns that lie apart, in their order."""

    d_wx: Tensor  # (N, G*H)
    d_rh: Sequence[Tensor]  # (N, .) each; may be d_wx itself, or parts of it
    d_projected: Tensor | None  # (N, P)


class Engine(ABC):
    """States, and what is kept, are those of a layer: a state of all D directions is one tensor, as in torch.nn."""

    name: str
    about: str  # one line for `plait engines`

    @abstractmethod
    def why_not(self, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str | None:
        """None if this engine can run such a layer, else the sentence that the user reads."""

    @abstractmethod
    def recur(
        self, ps: Sequence[Prepared], wx: Sequence[Tensor], state0: Sequence[Tensor] | None, layout: Layout, dt: float
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Walks from state0 (None: zeros) -> rows (N, D*P), per state the last ones (D, B, .), what is kept"""

    @abstractmethod
    def recur_vjp(
        self,
        ps: Sequence[Prepared],
        kept: Sequence[Tensor],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
        layout: Layout,
        dt: float,
    ) -> tuple[list[Derivative], list[Tensor]]:
        """-> per direction the derivative, per state d_ of the initial ones (D, B, .). What was kept is overwritten."""

    @abstractmethod
    def blank(
        self, cell: type[Cell], weights: Sequence[Weights], N: int, B: int, like: Tensor, dt: float
    ) -> list[Tensor]:
        """The tensors that a walk keeps for its derivative, with nothing in them yet."""

    @abstractmethod
    def tapes(
        self, cell: type[Cell], weights: Sequence[Weights], kept: Sequence[Tensor], layout: Layout, dt: float
    ) -> list[Tape]:
        """What is kept, per direction and by name."""

    def prepare(self, cell: type[Cell], w: Weights) -> Prepared:
        return Prepared(cell, w, w.w_hh.shape[0] // len(cell.gates), w.w_hh.shape[1])

    # The whole-sequence part, which is the same for all engines but for what does these.
    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    def add_bias(self, rows: Tensor, bias: Tensor) -> Tensor:
        return rows.add_(bias)

    def sum_rows(self, rows: Tensor) -> Tensor:
        return rows.sum(0)

    def project(self, x: Tensor, w: Weights) -> Tensor:  # (N, G*H)
        wx = self.mm(x, w.w_ih.t())
        return wx if w.b_ih is None else self.add_bias(wx, w.b_ih)

    def forward(
        self,
        cell: type[Cell],
        x: Tensor,
        state0: Sequence[Tensor] | None,
        weights: Sequence[Weights],
        layout: Layout,
        *,
        dt: float = 1,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """One layer, one direction or two: rows (N, I) or (T, B, I) -> as many (., D*P), the last states, what is kept.

        The rows are the caller's own: what is done to them does not reach what is kept.
        """
        layout.check_rows(x, weights[0].w_ih.shape[1])
        shape, x = x.shape[:-1], x.flatten(0, -2)
        wx = [self.project(x, w) for w in weights]
        rows, finals, kept = self.recur([self.prepare(cell, w) for w in weights], wx, state0, layout, dt)
        return rows.resize_(*shape, rows.shape[1]), finals, kept  # a view could not be written to in place

    def backward(
        self,
        cell: type[Cell],
        x: Tensor,
        weights: Sequence[Weights],
        kept: Sequence[Tensor],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
        layout: Layout,
        *,
        needs: Needs,
        spend: bool = False,
        dt: float = 1,
    ) -> tuple[Tensor | None, list[Tensor], list[list[Tensor | None]]]:
        """-> d_x, per state d_ of the initial ones, per direction d_ of the weights.

        `spend`: what was kept may be overwritten.
        """
        layout.check_rows(x, weights[0].w_ih.shape[1])
        shape, x = x.shape, x.flatten(0, -2)
        d_rows = None if d_rows is None else d_rows.flatten(0, -2)
        kept = kept if spend else [t.clone() for t in kept]
        tapes = self.tapes(cell, weights, kept, layout, dt)
        prepared = [self.prepare(cell, w) for w in weights]
        derivatives, d_state0 = self.recur_vjp(prepared, kept, d_rows, d_finals, layout, dt)
        d_x: Tensor | None = None
        d_weights = []
        for d, (w, tape, g) in enumerate(zip(weights, tapes, derivatives, strict=True)):
            if needs.x:
                d_x = self.mm(g.d_wx, w.w_ih) if d_x is None else d_x.add_(self.mm(g.d_wx, w.w_ih))
            d_weights.append(self.weight_gradients(x, w, tape, g, needs.weights[d]))
        return None if d_x is None else d_x.view(shape), d_state0, d_weights

    def weight_gradients(
        self, x: Tensor, w: Weights, tape: Tape, g: Derivative, wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        """In the order of w.tensors; None for those that are not wanted."""
        asked = iter(wanted)
        result: list[Tensor | None] = [self.mm(g.d_wx.t(), x) if next(asked) else None]
        result.append(self.recurrent_gradient(tape, g) if next(asked) else None)
        if w.b_ih is not None:
            result.append(self.sum_rows(g.d_wx) if next(asked) else None)
        if w.b_hh is not None:
            result.append(torch.cat([self.sum_rows(part) for part in g.d_rh]) if next(asked) else None)
        if w.w_hr is not None and g.d_projected is not None and tape.raw is not None:
            result.append(self.mm(g.d_projected.t(), tape.raw) if next(asked) else None)
        return result

    def recurrent_gradient(self, tape: Tape, g: Derivative) -> Tensor:  # (G*H, P)
        before = tape.before_all(0)
        parts = [self.mm(part.t(), before) for part in g.d_rh]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
