"""What an engine is: it runs the recurrence of one layer in one direction, because only that is sequential.

Rows. Everything that has a time and a batch axis is a matrix (N, F) of rows: step after step, and within a step the
sequences that are still alive, longest first. That is the layout of torch's PackedSequence; a dense batch is the case
where all B are alive at all T steps, N = T * B. Nothing is ever computed for padding.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from ..cells import Cell


class Layout:
    """How many sequences are alive at each step; never more than at the step before."""

    def __init__(self, T: int, B: int, batch_sizes: Tensor | None = None) -> None:
        self.T, self.B, self.batch_sizes = T, B, batch_sizes

    @classmethod
    def ragged(cls, batch_sizes: Tensor) -> "Layout":
        return cls(batch_sizes.shape[0], int(batch_sizes[0]), batch_sizes)

    @cached_property
    def sizes(self) -> list[int]:
        return [self.B] * self.T if self.batch_sizes is None else self.batch_sizes.tolist()

    @cached_property
    def starts(self) -> list[int]:
        """The first row of each step."""
        return [0, *accumulate(self.sizes)][: self.T]

    @cached_property
    def N(self) -> int:
        return self.T * self.B if self.batch_sizes is None else sum(self.sizes)

    @property
    def is_dense(self) -> bool:
        return self.N == self.T * self.B

    def order(self, reverse: bool) -> range:
        """The steps as the recurrence walks them. Each row starts where its own sequence starts (or ends)."""
        return range(self.T - 1, -1, -1) if reverse else range(self.T)


@dataclass(frozen=True)
class Weights:
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
        return [t for t in (self.w_ih, self.w_hh, self.b_ih, self.b_hh, self.w_hr) if t is not None]


@dataclass(frozen=True)
class Gradients:
    x: Tensor | None  # (N, I), unless it was not asked for
    state0: tuple[Tensor, ...]
    weights: Weights


@dataclass
class Tape:
    """What a walk leaves behind for its derivative: plain tensors, one row per step and live sequence.

    A state's history has B rows more, the initial ones, at the end that the walk starts from. So the states before
    each step of a dense walk are a slice of the same memory.
    """

    layout: Layout
    reverse: bool
    dt: float
    history: tuple[Tensor, ...]  # per state (B + N, H); h is (B + N, P)
    saved: Tensor  # (N, S, H): what the cell saved
    raw: Tensor | None  # (N, H): h before the projection, if there is one

    @staticmethod
    def blank(cell: Cell, w: Weights, B: int, N: int, like: Tensor) -> list[Tensor]:
        """The tensors of a tape that nothing has been written on yet."""
        H, P = w.w_hh.shape[0] // len(cell.gates), w.w_hh.shape[1]
        history = [like.new_empty(B + N, P if k == 0 else H) for k in range(len(cell.states))]
        raw = [] if w.w_hr is None else [like.new_empty(N, H)]
        return [*history, like.new_empty(N, len(cell.saved), H), *raw]

    @classmethod
    def of(cls, cell: Cell, layout: Layout, tensors: Sequence[Tensor], *, reverse: bool, dt: float = 1) -> "Tape":
        S = len(cell.states)
        return cls(
            layout, reverse, dt, tuple(tensors[:S]), tensors[S], tensors[S + 1] if len(tensors) > S + 1 else None
        )

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.history, self.saved, *([] if self.raw is None else [self.raw])]

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
        return torch.cat([self.before(k, t) for t in range(self.layout.T)])


@dataclass(frozen=True)
class Prepared:
    """The weights of a recurrence, made ready once and used for many walks."""

    cell: Cell
    H: int
    P: int
    w_hh: Tensor
    b_hh: Tensor | None
    w_hr: Tensor | None


class Engine(ABC):
    name: str
    about: str  # one line for `plait engines`

    @abstractmethod
    def why_not(self, cell: Cell, dtype: torch.dtype, device: torch.device) -> str | None:
        """None if this engine can run such a layer, else the sentence that the user reads."""

    @abstractmethod
    def recur(self, p: Prepared, wx: Tensor, tape: Tape) -> tuple[Tensor, ...]:
        """Walks from tape.initial, fills the tape and returns each sequence's last state, per state (B, .)."""

    @abstractmethod
    def recur_vjp(
        self, p: Prepared, tape: Tape, d_rows: Tensor, d_final: Sequence[Tensor | None]
    ) -> tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, ...]]:
        """-> d_wx (N, G*H), d_rh (N, G*H; may be d_wx itself), d_projected (N, P), d_state0 per state (B, .)"""

    def prepare(self, cell: Cell, w: Weights) -> Prepared:
        G = len(cell.gates)
        return Prepared(cell, w.w_hh.shape[0] // G, w.w_hh.shape[1], w.w_hh, w.b_hh, w.w_hr)

    # The whole-sequence part, which is the same for all engines but for what does these three.
    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    def add_bias(self, rows: Tensor, bias: Tensor) -> Tensor:
        return rows.add_(bias)

    def sum_rows(self, rows: Tensor) -> Tensor:
        return rows.sum(0)

    def forward(
        self,
        cell: Cell,
        x: Tensor,
        state0: Sequence[Tensor],
        w: Weights,
        layout: Layout,
        *,
        reverse: bool,
        dt: float = 1,
    ) -> tuple[Tensor, tuple[Tensor, ...], Tape]:
        """One layer in one direction: rows (N, I) -> rows (N, P), the last states, and the tape."""
        p = self.prepare(cell, w)
        wx = self.mm(x, w.w_ih.t())  # (N, G*H)
        if w.b_ih is not None:
            wx = self.add_bias(wx, w.b_ih)
        blank = Tape.blank(cell, w, layout.B, layout.N, like=wx)
        tape = Tape.of(cell, layout, blank, reverse=reverse, dt=dt)
        for k, s in enumerate(state0):
            tape.initial(k).copy_(s)
        final = self.recur(p, wx, tape)
        return tape.states(0), final, tape

    def backward(
        self,
        cell: Cell,
        x: Tensor,
        w: Weights,
        tape: Tape,
        d_rows: Tensor,
        d_final: Sequence[Tensor | None],
        *,
        needs_x: bool = True,
    ) -> Gradients:
        p = self.prepare(cell, w)
        d_wx, d_rh, d_projected, d_state0 = self.recur_vjp(p, tape, d_rows, d_final)
        d_w = Weights(
            w_ih=self.mm(d_wx.t(), x),
            w_hh=self.mm(d_rh.t(), tape.before_all(0)),
            b_ih=None if w.b_ih is None else self.sum_rows(d_wx),
            b_hh=None if w.b_hh is None else self.sum_rows(d_rh),
            w_hr=None if d_projected is None or tape.raw is None else self.mm(d_projected.t(), tape.raw),
        )
        return Gradients(self.mm(d_wx, w.w_ih) if needs_x else None, d_state0, d_w)
