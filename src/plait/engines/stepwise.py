"""One step after another, vectorised over batch and units, on any array type: what `numpy` and `torch` share."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..cells import Ops
from ..cells.trace import compiled, trace
from .base import Derivative, Prepared, Tape
from .onebyone import OneByOne


class Stepwise(OneByOne):
    ops: Ops

    @abstractmethod
    def array(self, tensor: Tensor) -> Any:
        """The tensor as this engine's array, sharing its memory: what is written there is written to the tensor."""

    def recur_one(self, p: Prepared, wx: Tensor, tape: Tape) -> tuple[Tensor, ...]:
        cell, layout, G, S = p.cell, tape.layout, len(p.cell.gates), len(p.cell.states)
        step = compiled(trace(cell, tape.dt).step, self.ops)
        final = tuple(tape.initial(k).clone() for k in range(len(cell.states)))
        states = [self.array(s) for s in final]  # (B, .): rows that have ended, or not yet begun, rest here
        rows = self.array(wx).reshape(layout.N, G, p.H)
        saved = self.array(tape.saved[0])
        kept = [self.array(tape.states(k)) for k in range(len(cell.states))]
        raw = None if tape.raw is None else self.array(tape.raw)
        r_t = self.array(p.w_hh).T  # (P, G*H)
        bias = 0.0 if p.b_hh is None else self.array(p.b_hh)
        w_hr = None if p.w_hr is None else self.array(p.w_hr)
        for t in layout.order(tape.reverse):
            n, lo = layout.sizes[t], layout.starts[t]
            at = slice(lo, lo + n)
            rh = (states[0][:n] @ r_t + bias).reshape(n, G, p.H)
            old = [s[:n] for s in states]
            result = step(*(rows[at, g] for g in range(G)), *(rh[:, g] for g in range(G)), *old)
            new, keep = result[:S], result[S:]
            if raw is not None and w_hr is not None:
                raw[at] = new[0]
                new = (new[0] @ w_hr.T, *new[1:])
            for k, value in enumerate(new):
                states[k][:n] = value
                kept[k][at] = value
            for k, value in enumerate(keep):
                saved[at, k] = value
        return final

    def recur_one_vjp(
        self, p: Prepared, tape: Tape, d_rows: Tensor, d_final: Sequence[Tensor | None]
    ) -> tuple[Derivative, Sequence[Tensor]]:
        cell, layout, G, S = p.cell, tape.layout, len(p.cell.gates), len(p.cell.states)
        derived = trace(cell, tape.dt)
        vjp = compiled(derived.vjp, self.ops)
        d_state0 = tuple(
            d.clone() if d is not None else tape.initial(k).new_zeros(tape.initial(k).shape)
            for k, d in enumerate(d_final)
        )
        d_states = [self.array(d) for d in d_state0]
        d_wx = d_rows.new_empty(layout.N, G, p.H)
        shared = all(derived.shared)
        d_rh = d_wx if shared else d_rows.new_empty(layout.N, G, p.H)
        d_projected = None if p.w_hr is None else d_rows.new_empty(layout.N, p.P)
        d_y, d_wx_rows, d_rh_rows = self.array(d_rows), self.array(d_wx), self.array(d_rh)
        saved, states = self.array(tape.saved[0]), [self.array(tape.states(k)) for k in range(S)]
        w_hh = self.array(p.w_hh)  # (G*H, P)
        for t in layout.order(not tape.reverse):
            n, lo = layout.sizes[t], layout.starts[t]
            at = slice(lo, lo + n)
            d_new = [d_states[0][:n] + d_y[at], *(d[:n] for d in d_states[1:])]
            new = [s[at] for s in states]
            if d_projected is not None and p.w_hr is not None and tape.raw is not None:
                self.array(d_projected)[at] = d_new[0]
                d_new[0] = d_new[0] @ self.array(p.w_hr)  # (n, H)
                new[0] = self.array(tape.raw)[at]
            old = [self.array(tape.before(k, t)) for k in range(S)]
            d = vjp(*(saved[at, k] for k in range(len(derived.saved))), *old, *new, *d_new)
            for g in range(G):
                d_wx_rows[at, g] = d[g]
                if not shared:
                    d_rh_rows[at, g] = d[G + g]
            back = d_rh_rows[at].reshape(n, G * p.H) @ w_hh
            for k in range(S):
                d_states[k][:n] = d[2 * G + k] + back if k == 0 else d[2 * G + k]
        return Derivative(d_wx.view(layout.N, G * p.H), [d_rh.view(layout.N, G * p.H)], d_projected), d_state0
