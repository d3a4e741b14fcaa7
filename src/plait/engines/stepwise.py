"""One step after another, vectorised over batch and units, on any array type: what `numpy` and `torch` share."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cells import Ops
from ..cells.trace import compiled, trace
from ..layout import Layout
from .base import Derivative, Engine, Prepared, States, check_source
from .tape import Tape


class Stepwise(Engine):
    ops: Ops

    @abstractmethod
    def array(self, tensor: Tensor) -> Any:
        """The tensor as this engine's array, sharing its memory: what is written there is written to the tensor."""

    def product(self, a: Any, b: Any) -> Any:
        return a @ b

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
        cell, G, S = p.cell, len(p.cell.gates), len(p.cell.states)
        last, tape = begin(p, wx, state0, layout, dt, source, keep)
        step = compiled(trace(cell, dt).step, self.ops)
        states = [self.array(s) for s in last]  # (B, .): also the states of sequences that have ended, or not begun
        rows = self.array(wx).reshape(layout.N, G, p.H)
        targets = [[self.array(t) for t in some] for some in written(tape, out, S)]
        added = None if source is None else [self.array(s) for s in source]
        saved, raw = ([], None) if tape is None else (self.saved(tape, p.H), tape.raw)
        r_t, params = self.array(p.weights.w_hh).T, [self.array(v) for v in p.weights.params]  # (P, G*H)
        bias = 0.0 if p.weights.b_hh is None else self.array(p.weights.b_hh)
        w_hr = None if p.weights.w_hr is None else self.array(p.weights.w_hr)
        for t in layout.order(p.reverse):
            n, lo = layout.sizes[t], layout.starts[t]
            at = slice(lo, lo + n)
            rh = (self.product(states[0][:n], r_t) + bias).reshape(n, G, p.H)
            old = [s[:n] for s in states]
            result = step(*(rows[at, g] for g in range(G)), *(rh[:, g] for g in range(G)), *old, *params)
            new = copied(result[:S], old)
            for column, value in zip(saved, result[S:], strict=False):
                column[at] = value
            if w_hr is not None:
                if raw is not None:
                    self.array(raw)[at] = new[0]
                new[0] = self.product(new[0], w_hr.T)
            for k in range(S):
                value = new[k] if added is None else new[k] + added[k][at]
                states[k][:n] = value
                for target in targets[k]:
                    target[at] = value
        return last, tape

    def saved(self, tape: Tape, H: int) -> list[Any]:
        """The columns for what the cell saves: arrays (N, H), to read and to write."""
        columns = [m.unflatten(1, (-1, H)) for m in (tape.gates, tape.extra)]
        return [self.array(m[:, k]) for m in columns for k in range(m.shape[1])]

    def recur_vjp(
        self, p: Prepared, tape: Tape, d_states: States | None, d_last: States, *, spend: bool = False
    ) -> tuple[Derivative, list[Tensor]]:
        cell, layout, G, S = p.cell, tape.layout, len(p.cell.gates), len(p.cell.states)
        traced = trace(cell, tape.dt)
        vjp = compiled(traced.vjp, self.ops)
        like = tape.gates.new_empty
        d_state0 = [
            d.clone() if d is not None else torch.zeros_like(tape.initial[k]).contiguous() for k, d in enumerate(d_last)
        ]
        d_running = [self.array(d) for d in d_state0]
        d_given = [None if d is None else self.array(d) for d in d_states or [None] * S]
        d_wx = like(layout.N, G, p.H)
        d_rh = d_wx if all(traced.shared) else like(layout.N, G, p.H)
        d_projected = None if p.weights.w_hr is None else like(layout.N, p.P)
        d_params = [like(p.H).zero_() for _ in cell.params]
        d_wx_rows, d_rh_rows = self.array(d_wx), self.array(d_rh)
        saved, states = self.saved(tape, p.H)[: len(traced.saved)], [self.array(s) for s in tape.states]
        w_hh, params = self.array(p.weights.w_hh), [self.array(v) for v in p.weights.params]  # (G*H, P)
        for t in layout.order(not p.reverse):
            n, lo = layout.sizes[t], layout.starts[t]
            at = slice(lo, lo + n)
            d_new = [d[:n] if given is None else d[:n] + given[at] for d, given in zip(d_running, d_given, strict=True)]
            new = [s[at] for s in states]
            if d_projected is not None and p.weights.w_hr is not None and tape.raw is not None:
                self.array(d_projected)[at] = d_new[0]
                d_new[0] = self.product(d_new[0], self.array(p.weights.w_hr))  # (n, H)
                new[0] = self.array(tape.raw)[at]
            old = [self.array(tape.before(k, t)) for k in range(S)]
            d = vjp(*(s[at] for s in saved), *old, *new, *params, *d_new)
            for g in range(G):
                d_wx_rows[at, g] = d[g]
                if d_rh is not d_wx:
                    d_rh_rows[at, g] = d[G + g]
            back = self.product(d_rh_rows[at].reshape(n, G * p.H), w_hh)
            for k, value in enumerate(copied(d[2 * G : 2 * G + S], d_new)):
                d_running[k][:n] = value + back if k == 0 else value
            for total, d_param in zip(d_params, d[2 * G + S :], strict=True):
                self.array(total)[:] += d_param * n if isinstance(d_param, float) else d_param.sum(0)
        d_rows = d_rh.view(layout.N, G * p.H)
        return Derivative(d_wx.view(layout.N, G * p.H), [d_rows], d_projected, d_params), d_state0


def copied(values: Sequence[Any], views: Sequence[Any]) -> list[Any]:
    """The values, which do not change when the views are written to: a step may pass a state on as it is."""
    return [value * 1 if any(value is view for view in views) else value for value in values]


def begin(
    p: Prepared,
    wx: Tensor,
    state0: Sequence[Tensor] | None,
    layout: Layout,
    dt: float,
    source: Sequence[Tensor] | None,
    keep: bool,
) -> tuple[list[Tensor], Tape | None]:
    """Copies of the initial states, and a tape that has nothing but these; None if keep is false."""
    check_source(source, keep)
    first = [wx.new_zeros(layout.B, w) if state0 is None else state0[k].clone() for k, w in enumerate(p.widths)]
    if not keep:
        return first, None
    room = p.room(layout, dt)
    tape = room.tape(wx.new_empty(room.total), layout)
    for initial, state in zip(tape.initial, first, strict=True):
        initial.copy_(state)
    return first, tape


def written(tape: Tape | None, out: Sequence[Tensor | None] | None, S: int) -> list[list[Tensor]]:
    """Per state, the tensors that it is written to: those of the tape, and those of the caller."""
    places = [tape.states if tape is not None else [None] * S, out or [None] * S]
    return [[t for t in some if t is not None] for some in zip(*places, strict=True)]
