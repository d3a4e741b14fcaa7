"""What an engine is: it runs one layer through time, forward and backward.

Everything that has a time and a batch axis is a matrix (N, F) of rows, as layout.py says: nothing is computed for
padding. A dense batch may also be (T, B, F).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..cells import Cell
from ..errors import PlaitError
from ..layout import Layout
from .tape import Room, Tape, room


class Weights(NamedTuple):
    """One layer and direction, shaped as in torch.nn."""

    w_ih: Tensor  # (G*H, I)
    w_hh: Tensor  # (G*H, P), P = H without a projection
    b_ih: Tensor | None = None  # (G*H,)
    b_hh: Tensor | None = None  # (G*H,)
    w_hr: Tensor | None = None  # (P, H)
    params: tuple[Tensor, ...] = ()  # (H,) each: the cell's own

    @classmethod
    def of(cls, cell: type[Cell], tensors: Sequence[Tensor], *, bias: bool) -> "Weights":
        """From tensors in torch's order: w_ih, w_hh, biases and projection, if there are any; then the cell's own."""
        rest, least = len(tensors) - len(cell.params), 4 if bias else 2
        if rest not in (least, least + 1):
            most = f"expected {least + len(cell.params)}, or one more with a projection"
            raise PlaitError(f"a direction of cell {cell.name} has {len(tensors)} weights: {most}.")
        first = tensors[:rest] if bias else (*tensors[:2], None, None, *tensors[2:rest])
        return cls(*first, params=tuple(tensors[rest:]))  # type: ignore[misc]

    @property
    def places(self) -> tuple[Tensor | None, ...]:
        """All that a direction may have, in torch's order; None for what it lacks. Then the cell's own."""
        return (*self[:5], *self.params)

    @property
    def tensors(self) -> list[Tensor]:
        return [t for t in self.places if t is not None]

    def widths(self, cell: type[Cell]) -> list[int]:
        """Of the states: h has P, the others H."""
        return [self.w_hh.shape[1], *[self.w_ih.shape[0] // len(cell.gates)] * (len(cell.states) - 1)]


class Prepared:
    """The weights of one direction, ready for any number of walks of one Python thread, and its sizes."""

    def __init__(self, cell: type[Cell], weights: Weights, reverse: bool) -> None:
        self.cell, self.weights, self.reverse = cell, weights, reverse
        self.H, self.P = weights.w_ih.shape[0] // len(cell.gates), weights.w_hh.shape[1]
        self.widths = weights.widths(cell)  # of the states

    def room(self, layout: Layout, dt: float) -> Room:
        cell: Any = self.cell  # mypy takes a class's __hash__ for that of its objects
        return room(cell, dt, layout.N, layout.B, self.H, self.P, self.weights.w_hr is not None, self.reverse)


class Needs(NamedTuple):
    """Which gradients are wanted: of x, of the initial states, and per direction of the weights, in their order."""

    x: bool
    states: Sequence[bool]
    weights: Sequence[Sequence[bool]]

    @classmethod
    def all(cls, ps: Sequence[Prepared]) -> "Needs":
        return cls(True, [True] * len(ps[0].cell.states), [[True] * len(p.weights.tensors) for p in ps])

    @classmethod
    def but_weights(cls, ps: Sequence[Prepared], x: bool = True) -> "Needs":
        """All but those of the weights, which `weight_gradients` computes later."""
        return cls(x, [True] * len(ps[0].cell.states), [[False] * len(p.weights.tensors) for p in ps])


@dataclass(frozen=True)
class Derivative:
    """The result of the backward pass. The columns of d_rh may be in several matrices, in the order of the gates."""

    d_wx: Tensor  # (N, G*H)
    d_rh: Sequence[Tensor]  # (N, .) each; may be d_wx itself, or parts of it
    d_projected: Tensor | None  # (N, P)
    d_params: Sequence[Tensor]  # (H,) each


class Gradients(NamedTuple):
    x: Tensor | None
    states: list[Tensor]  # per state (D, B, .), if one was wanted
    weights: list[list[Tensor | None]]  # per direction, in their order
    derivatives: list[Derivative]  # per direction; `weight_gradients` needs them if not all weights were wanted.
    # An engine that has computed all gradients by itself may leave them out. Valid until the tape is used again


States = Sequence[Tensor | None]


def check_source(source: Sequence[Tensor] | None, keep: bool) -> None:
    if keep and source is not None:
        raise PlaitError("a walk with a source keeps no tape: pass keep=False, and call linearise with its states.")


class Engine(ABC):
    """For one direction: prepare, then project, recur, recur_vjp, input_gradient, weight_gradients.

    `forward` and `backward` do all of these for a layer with D directions. There a state is one tensor (D, B, .), as in
    torch.nn.
    """

    name: str
    about: str  # one line for `plait engines`

    @abstractmethod
    def why_not(self, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str | None:
        """None if this engine can run such a layer, else the reason, as a sentence for the user."""

    def prepare(
        self, cell: type[Cell], w: Weights, reverse: bool = False, *, lasting: bool = True, rounded: bool = False
    ) -> Prepared:
        """lasting: for several calls, between which the weights do not change. rounded: products are of bfloat16"""
        if rounded:
            raise PlaitError(f"engine {self.name} rounds no operands to bfloat16: use engine='fused'.")
        return Prepared(cell, w, reverse)

    # --- one direction
    @abstractmethod
    def recur(
        self,
        p: Prepared,
        wx: Tensor,
        state0: Sequence[Tensor] | None,
        layout: Layout,
        *,
        dt: float = 1,
        source: Sequence[Tensor] | None = None,
        keep: bool = True,
        out: Sequence[Tensor | None] | None = None,
    ) -> tuple[list[Tensor], Tape | None]:
        """From state0 (None: zeros) through all steps -> the last states (B, .), and the tape if keep is true.

        source: per state (N, .), added to each new state. Such a walk keeps no tape: `linearise` makes one.
        out: per state (N, .), where the states of all steps are written to, or None. wx is not changed.
        """

    @abstractmethod
    def recur_vjp(
        self, p: Prepared, tape: Tape, d_states: States | None, d_last: States, *, spend: bool = False
    ) -> tuple[Derivative, list[Tensor]]:
        """d_ of all states (N, .) and of the last ones (B, .) -> the derivative, and d_ of the initial ones (B, .).

        spend: the tape may be overwritten. Otherwise it is not changed.
        """

    def linearise(
        self,
        p: Prepared,
        wx: Tensor,
        states: Sequence[Tensor],
        state0: Sequence[Tensor],
        layout: Layout,
        *,
        dt: float = 1,
    ) -> Tape:
        """The tape of all steps, each from a given state. The states need not be the results of the steps before."""
        states, state0 = ([s.clone(memory_format=torch.contiguous_format) for s in some] for some in (states, state0))
        about = Tape(layout, p.reverse, dt, state0, states, wx, wx, None)
        before = [about.before_all(k) for k in range(len(states))]  # each row takes one step
        _, tape = self.recur(p, wx, before, Layout(1, layout.N), dt=dt)
        assert tape is not None
        return Tape(layout, p.reverse, dt, state0, tape.states, tape.gates, tape.extra, tape.raw, states)

    # The products over whole sequences. Engines differ only in what computes them.
    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    def add_mm(self, total: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return total.add_(self.mm(a, b))

    def add_bias(self, rows: Tensor, bias: Tensor) -> Tensor:
        return rows.add_(bias)

    def sum_rows(self, rows: Tensor) -> Tensor:
        return rows.sum(0)

    def project(self, p: Prepared, x: Tensor) -> Tensor:  # (N, G*H)
        wx = self.mm(x, p.weights.w_ih.t())
        return wx if p.weights.b_ih is None else self.add_bias(wx, p.weights.b_ih)

    def input_gradient(self, p: Prepared, g: Derivative) -> Tensor:  # (N, I)
        return self.mm(g.d_wx, p.weights.w_ih)

    def weight_gradients(
        self,
        p: Prepared,
        x: Tensor,
        tape: Tape,
        g: Derivative,
        wanted: Sequence[bool] | None = None,
        into: Sequence[Tensor | None] | None = None,
    ) -> list[Tensor | None]:
        """In the order of the weights, None for those that are not wanted. They are added to the tensors of `into`."""
        w, bias = p.weights, p.weights.b_ih is not None
        result: list[Tensor | None] = []
        for k, t in enumerate(w.tensors):
            total = None if into is None else into[k]
            is_wanted = wanted is None or wanted[k]
            result.append(None if not is_wanted else torch.zeros_like(t) if total is None else total)
        if result[0] is not None:
            self.add_mm(result[0], g.d_wx.t(), x)
        if bias and result[2] is not None:
            result[2].add_(self.sum_rows(g.d_wx))
        before, row = None if result[1] is None else tape.before_all(0), 0
        for part in g.d_rh:
            end = row + part.shape[1]
            if result[1] is not None and before is not None:
                self.add_mm(result[1][row:end], part.t(), before)
            if bias and result[3] is not None:
                result[3][row:end].add_(self.sum_rows(part))
            row = end
        rest = result[4 if bias else 2 :]
        if g.d_projected is not None and tape.raw is not None and (total := rest.pop(0)) is not None:
            self.add_mm(total, g.d_projected.t(), tape.raw)
        for total, d in zip(rest, g.d_params, strict=True):
            if total is not None:
                total.add_(d)
        return result

    # --- a layer
    def forward(
        self,
        ps: Sequence[Prepared],
        x: Tensor,
        state0: Sequence[Tensor] | None,
        layout: Layout,
        *,
        keep: bool = True,
        dt: float = 1,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Rows (N, I) or (T, B, I) -> as many rows (., D*P), last states, and the memory of the tapes if keep is true.

        The caller may change the rows: the tapes have their own.
        """
        layout.check_rows(x, ps[0].weights.w_ih.shape[1])
        P, rest = ps[0].P, [None] * (len(ps[0].cell.states) - 1)
        rows, finals, kept = x.new_empty(*x.shape[:-1], len(ps) * P), [], []
        flat = rows.view(-1, len(ps) * P)
        for d, p in enumerate(ps):
            given, out = None if state0 is None else [s[d] for s in state0], [flat[:, d * P : (d + 1) * P], *rest]
            wx = self.project(p, x.flatten(0, -2))
            last, tape = self.recur(p, wx, given, layout, dt=dt, keep=keep, out=out)
            finals.append(last)
            if tape is not None and tape.memory is not None:
                kept.append(tape.memory)
        return rows, [torch.stack(some) for some in zip(*finals, strict=True)], kept

    def backward(
        self,
        ps: Sequence[Prepared],
        x: Tensor,
        kept: Sequence[Tensor],
        d_rows: Tensor | None,
        d_finals: States,
        layout: Layout,
        *,
        needs: Needs,
        spend: bool = False,
        dt: float = 1,
    ) -> Gradients:
        """kept: the memory of the tapes. spend: it may be overwritten."""
        layout.check_rows(x, ps[0].weights.w_ih.shape[1])
        rows, P, S = x.flatten(0, -2), ps[0].P, len(d_finals)
        d_flat = None if d_rows is None else d_rows.flatten(0, -2)
        d_x, d_state0, d_weights, derivatives = None, [], [], []
        for d, (p, memory) in enumerate(zip(ps, kept, strict=True)):
            tape = p.room(layout, dt).tape(memory, layout)
            d_states = [None if d_flat is None else d_flat[:, d * P : (d + 1) * P], *[None] * (S - 1)]
            d_last = [None if f is None else f[d] for f in d_finals]
            g, initial = self.recur_vjp(p, tape, d_states, d_last, spend=spend)
            if needs.x:
                part = self.input_gradient(p, g)
                d_x = part if d_x is None else d_x.add_(part)
            d_weights.append(self.weight_gradients(p, rows, tape, g, needs.weights[d]))
            d_state0.append(initial)
            derivatives.append(g)
        d_initial = [torch.stack(some) for some in zip(*d_state0, strict=True)]
        return Gradients(None if d_x is None else d_x.view(x.shape), d_initial, d_weights, derivatives)

    def blank(
        self, ps: Sequence[Prepared], N: int, B: int, like: Tensor, dt: float = 1, *, rounded: bool = False
    ) -> list[Tensor]:
        """Empty memory for the tapes: torch.compile needs its size."""
        rooms = [Room(p.cell, dt, N, B, p.H, p.P, p.weights.w_hr is not None, p.reverse, rounded) for p in ps]
        return [like.new_empty(each.total) for each in rooms]
