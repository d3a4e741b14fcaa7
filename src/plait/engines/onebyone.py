"""Engines that take one direction after the other, and keep for each the tensors of a tape."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from ..cells import Cell
from ..cells.trace import trace
from .base import Derivative, Engine, Prepared, Tape, Weights
from .layout import Layout


class OneByOne(Engine):
    @abstractmethod
    def recur_one(self, p: Prepared, wx: Tensor, tape: Tape) -> tuple[Tensor, ...]:
        """Walks from tape.initial, fills the tape and returns each sequence's last state, per state (B, .)."""

    @abstractmethod
    def recur_one_vjp(
        self, p: Prepared, tape: Tape, d_rows: Tensor, d_final: Sequence[Tensor | None]
    ) -> tuple[Derivative, Sequence[Tensor]]:
        """-> and d_ of the initial states, per state (B, .)"""

    def blank(
        self, cell: type[Cell], weights: Sequence[Weights], N: int, B: int, like: Tensor, dt: float
    ) -> list[Tensor]:
        kept = []
        for w in weights:
            H = w.w_hh.shape[0] // len(cell.gates)
            kept += [like.new_empty(B + N, width) for width in w.widths(cell)]
            kept += [] if w.w_hr is None else [like.new_empty(N, H)]
            kept.append(like.new_empty(N, len(trace(cell, dt).saved), H))
        return kept

    def tapes(
        self, cell: type[Cell], weights: Sequence[Weights], kept: Sequence[Tensor], layout: Layout, dt: float
    ) -> list[Tape]:
        each, projected = len(kept) // len(weights), weights[0].w_hr is not None
        return [
            Tape.of(cell, layout, kept[d * each : (d + 1) * each], projected=projected, reverse=d == 1, dt=dt)
            for d in range(len(weights))
        ]

    def recur(
        self, ps: Sequence[Prepared], wx: Sequence[Tensor], state0: Sequence[Tensor] | None, layout: Layout, dt: float
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        cell, weights = ps[0].cell, [p.weights for p in ps]
        kept = self.blank(cell, weights, layout.N, layout.B, wx[0], dt)
        tapes, finals = self.tapes(cell, weights, kept, layout, dt), []
        for d, tape in enumerate(tapes):
            for k in range(len(cell.states)):
                initial = tape.initial(k)
                initial.copy_(torch.zeros_like(initial) if state0 is None else state0[k][d])
            finals.append(self.recur_one(ps[d], wx[d], tape))
        rows = torch.cat([tape.states(0) for tape in tapes], 1)
        return rows, [torch.stack(some) for some in zip(*finals, strict=True)], kept

    def recur_vjp(
        self,
        ps: Sequence[Prepared],
        kept: Sequence[Tensor],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
        layout: Layout,
        dt: float,
    ) -> tuple[list[Derivative], list[Tensor]]:
        derivatives, d_state0 = [], []
        tapes = self.tapes(ps[0].cell, [p.weights for p in ps], kept, layout, dt)
        for d, (p, tape) in enumerate(zip(ps, tapes, strict=True)):
            h = tape.states(0)
            d_y = h.new_zeros(h.shape) if d_rows is None else d_rows[:, d * p.P : (d + 1) * p.P]
            derivative, initial = self.recur_one_vjp(p, tape, d_y, [None if f is None else f[d] for f in d_finals])
            derivatives.append(derivative)
            d_state0.append(initial)
        return derivatives, [torch.stack(some) for some in zip(*d_state0, strict=True)]
