"""A layer in bfloat16, step by step in float64: what is rounded, and where. The kernels are compared with it.

Rounded to bfloat16 are the operands of products (weights, x, h, and the gradients that enter a product) and the tape.
All else, sums above all, has the precision of the tensors given.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import engines
from ..cells import Cell
from ..cells.ops import tensors as ops
from ..cells.trace import compiled, trace
from ..engines import Layout, Needs, Weights
from .compare import worst


def rounded(t: Tensor) -> Tensor:
    return t.float().bfloat16().to(t.dtype)


class Step(NamedTuple):
    """What the forward pass keeps of a step."""

    rows: slice
    started: int  # this many sequences were alive before
    old: list[Tensor]  # per state, rounded
    new: list[Tensor]
    saved: list[Tensor]
    raw: Tensor  # h before a projection


class Walk:
    """One direction of a layer."""

    def __init__(self, cell: type[Cell], w: Weights, layout: Layout, reverse: bool) -> None:
        self.cell, self.w, self.layout, self.order = cell, w, layout, layout.order(reverse)
        self.W, self.R = rounded(w.w_ih), rounded(w.w_hh)
        self.projection = None if w.w_hr is None else rounded(w.w_hr)
        self.G, self.S, self.trace = len(cell.gates), len(cell.states), trace(cell)
        self.steps: dict[int, Step] = {}

    def forward(self, x: Tensor, state0: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """x (N, I), states (B, .) -> rows (N, P), last states (B, .)"""
        w, zero = self.w, x.new_zeros(())
        self.x = rounded(x)
        wx = self.x @ self.W.t() + (zero if w.b_ih is None else w.b_ih)  # (N, G*H)
        running, out, run = [s.clone() for s in state0], x.new_empty(len(x), self.R.shape[1]), self.run(self.trace.step)
        kept = [rounded(s) for s in state0]
        for t in self.order:
            n, rows = self.layout.sizes[t], self.layout.rows(t, t + 1)
            rh = kept[0][:n] @ self.R.t() + (zero if w.b_hh is None else w.b_hh)
            old = [s[:n] for s in running]
            if self.projection is not None:
                old[0] = zero
            found = run(*self.gates(wx[rows]), *self.gates(rh), *old, *w.params)
            new, saved = list(found[: self.S]), [rounded(self.full(v, found[0])) for v in found[self.S :]]
            raw = rounded(new[0])
            if self.projection is not None:
                new[0] = raw @ self.projection.t()
            before = [k[:n].clone() for k in kept]
            for k, value in enumerate(new):
                running[k][:n], kept[k][:n] = value, rounded(value)
            out[rows] = new[0]
            self.steps[t] = Step(rows, n, before, [k[:n].clone() for k in kept], saved, raw)
        return out, running

    def backward(self, d_rows: Tensor, d_last: Sequence[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """-> d_x, d_ of the initial states, d_ of the weights in their order"""
        w, carry, run = self.w, [d.clone() for d in d_last], self.run(self.trace.vjp)
        d_wx, d_rh = (d_rows.new_empty(len(d_rows), self.w.w_ih.shape[0]) for _ in range(2))
        d_w_hh, d_params = torch.zeros_like(w.w_hh), [torch.zeros_like(p) for p in w.params]
        d_w_hr = None if w.w_hr is None else torch.zeros_like(w.w_hr)
        for t in reversed(self.order):
            rows, n, old, new, saved, raw = self.steps[t]
            d_new = [c[:n].clone() for c in carry]
            d_new[0] += d_rows[rows]
            states = list(new)
            if self.projection is not None and d_w_hr is not None:
                d_h = rounded(d_new[0])
                d_w_hr += d_h.t() @ raw
                d_new[0], states[0] = d_h @ self.projection, raw
            given = [old[0].new_zeros(()) if self.projection is not None else old[0], *old[1:]]
            like = d_new[-1] if self.projection is None else raw
            found = [self.full(v, like) for v in run(*saved, *given, *states, *w.params, *d_new)]
            G, S = self.G, self.S
            d_wx[rows] = torch.cat([rounded(v) for v in found[:G]], 1)
            d_rh[rows] = torch.cat([rounded(v) for v in found[G : 2 * G]], 1)
            d_old = list(found[2 * G : 2 * G + S])
            d_old[0] = d_rh[rows] @ self.R + (0 if self.projection is not None else d_old[0])
            for total, d in zip(d_params, found[2 * G + S :], strict=True):
                total += d.sum(0)
            d_w_hh += d_rh[rows].t() @ old[0]
            for k, d in enumerate(d_old):
                carry[k][:n] = d
        weights = [d_wx.t() @ self.x, d_w_hh]
        weights += [] if w.b_ih is None else [d_wx.sum(0), d_rh.sum(0)]
        weights += [] if d_w_hr is None else [d_w_hr]
        return d_wx @ self.W, carry, weights + d_params

    def gates(self, columns: Tensor) -> Sequence[Tensor]:
        return columns.chunk(self.G, 1)

    def full(self, value: Tensor | float, like: Tensor) -> Tensor:
        """What a step computes may be a number, the same for all."""
        return torch.as_tensor(value, dtype=like.dtype).expand_as(like)

    def run(self, text: str) -> Callable[..., Any]:
        return compiled(text, ops)


class Layer(NamedTuple):
    """A layer with its directions, a batch, and gradients of its results."""

    cell: type[Cell]
    weights: Sequence[Weights]  # per direction
    x: Tensor  # (N, I)
    state0: Sequence[Tensor]  # per state (D, B, .)
    layout: Layout
    d_rows: Tensor  # (N, D*P)
    d_last: Sequence[Tensor]

    def by_engine(self, name: str = "fused") -> list[Tensor]:
        """Rows, last states, d_x, d_ of the initial states, d_ of the weights."""
        engine = engines.get(name)
        ps = [engine.prepare(self.cell, w, d == 1, rounded=True) for d, w in enumerate(self.weights)]
        rows, last, kept = engine.forward(ps, self.x, self.state0, self.layout)
        back = engine.backward(ps, self.x, kept, self.d_rows, self.d_last, self.layout, needs=Needs.all(ps))
        assert back.x is not None
        return [rows, *last, back.x, *back.states, *(g for some in back.weights for g in some if g is not None)]

    def step_by_step(self) -> list[Tensor]:
        """The same in float64."""
        x, P = self.x.double(), self.weights[0].w_hh.shape[1]
        rows, last, d_states, d_weights, d_x = [], [], [], list[Tensor](), torch.zeros_like(x)
        for d, w in enumerate(self.weights):
            places = (None if t is None else t.double() for t in w[:5])
            double = Weights._make([*places, tuple(p.double() for p in w.params)])
            walk = Walk(self.cell, double, self.layout, d == 1)
            y, final = walk.forward(x, [s[d].double() for s in self.state0])
            d_y, ends = self.d_rows[:, d * P : (d + 1) * P].double(), [s[d].double() for s in self.d_last]
            part, initial, mine = walk.backward(d_y, ends)
            rows.append(y)
            last.append(final)
            d_states.append(initial)
            d_weights += mine
            d_x += part
        stacked = [[torch.stack(some) for some in zip(*each, strict=True)] for each in (last, d_states)]
        return [torch.cat(rows, 1), *stacked[0], d_x, *stacked[1], *d_weights]

    def deviation(self) -> float:
        return worst(self.by_engine(), self.step_by_step())


def drawn(
    cell: type[Cell], layout: Layout, I: int, H: int, P: int, directions: int, bias: bool, generator: torch.Generator
) -> Layer:
    """A layer at random, in float32. P: width of h; less than H if it is projected"""
    G, B = len(cell.gates), layout.B

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    def weights() -> Weights:
        w_ih, w_hh = normal(G * H, I, scale=I**-0.5), normal(G * H, P, scale=P**-0.5)
        b_ih, b_hh = (normal(G * H) if bias else None for _ in range(2))
        w_hr = None if P == H else normal(P, H, scale=H**-0.5)
        return Weights(w_ih, w_hh, b_ih, b_hh, w_hr, tuple(normal(H) for _ in cell.params))

    widths = [P, *[H] * (len(cell.states) - 1)]
    state0, d_last = ([normal(directions, B, width) for width in widths] for _ in range(2))
    every = [weights() for _ in range(directions)]
    return Layer(cell, every, normal(layout.N, I), state0, layout, normal(layout.N, directions * P), d_last)
