"""Scalar loops over everything, also in matrix products: slow, simple, and what the others are compared with."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cells import Cell
from ..cells.ops import floats
from ..cells.trace import compiled, trace, why_untraceable
from ..layout import Layout
from .base import Derivative, Engine, Prepared, States
from .stepwise import begin, written
from .tape import Tape

Matrix = list[list[float]]


def matmul(a: Matrix, b: Matrix) -> Matrix:
    columns = list(zip(*b, strict=True))
    return [[dot(row, column) for column in columns] for row in a]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += x * y
    return total


def zeros(rows: int, columns: int) -> Matrix:
    return [[0.0] * columns for _ in range(rows)]


class PythonEngine(Engine):
    name, about = "python", "scalar loops, matrix products included: slow and certain"

    def why_not(self, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str | None:
        if dtype not in (torch.float32, torch.float64):
            return f"{self.name} returns float32 and float64, the layer is {dtype}: convert it first."
        return why_untraceable(cell)

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        product = matmul(a.tolist(), b.tolist()) if a.shape[1] else zeros(a.shape[0], b.shape[1])
        return a.new_tensor(product).reshape(a.shape[0], b.shape[1])

    def add_bias(self, rows: Tensor, bias: Tensor) -> Tensor:
        b: list[float] = bias.tolist()
        return fill(rows, [[v + c for v, c in zip(row, b, strict=True)] for row in rows.tolist()])

    def sum_rows(self, rows: Tensor) -> Tensor:
        total = [0.0] * rows.shape[1]
        for row in rows.tolist():
            add(total, row)
        return rows.new_tensor(total)

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
        cell, H, G, S = p.cell, p.H, len(p.cell.gates), len(p.cell.states)
        last, tape = begin(p, wx, state0, layout, dt, source, keep)
        step, count = compiled(trace(cell, dt).step, floats), len(trace(cell, dt).saved)
        rows: Matrix = wx.tolist()
        states: list[Matrix] = [s.tolist() for s in last]
        r: Matrix = p.weights.w_hh.tolist()
        bias: list[float] = [0.0] * (G * H) if p.weights.b_hh is None else p.weights.b_hh.tolist()
        params: Matrix = [v.tolist() for v in p.weights.params]
        projection: Matrix | None = None if p.weights.w_hr is None else p.weights.w_hr.tolist()
        added: list[Matrix] | None = None if source is None else [s.tolist() for s in source]
        every: list[Matrix] = [[[]] * layout.N for _ in range(S)]
        saved: Matrix = [[]] * layout.N  # (N, count*H)
        raw: Matrix = [[]] * layout.N
        for t in layout.order(p.reverse):
            for b in range(layout.sizes[t]):
                row, h = layout.starts[t] + b, states[0][b]
                rh = [dot(r[k], h) + bias[k] for k in range(G * H)]
                new, columns = zeros(S, H), zeros(count, H)
                for j in range(H):
                    values = step(
                        *(rows[row][g * H + j] for g in range(G)),
                        *(rh[g * H + j] for g in range(G)),
                        *(0.0 if projection is not None and k == 0 else states[k][b][j] for k in range(S)),
                        *(v[j] for v in params),
                    )
                    for k in range(S):
                        new[k][j] = values[k]
                    for k in range(count):
                        columns[k][j] = values[S + k]
                raw[row], saved[row] = new[0], [v for column in columns for v in column]
                if projection is not None:
                    new[0] = [dot(weights, new[0]) for weights in projection]
                for k in range(S):
                    states[k][b] = (
                        new[k] if added is None else [v + a for v, a in zip(new[k], added[k][row], strict=True)]
                    )
                    every[k][row] = states[k][b]
        for k, targets in enumerate(written(tape, out, S)):
            for target in targets:
                fill(target, every[k])
        if tape is not None:
            split = min(count, G) * H
            fill(tape.gates[:, :split], [row[:split] for row in saved])
            fill(tape.extra[:, : count * H - split], [row[split:] for row in saved])
            if tape.raw is not None:
                fill(tape.raw, raw)
        return [fill(s, states[k]) for k, s in enumerate(last)], tape

    def recur_vjp(
        self, p: Prepared, tape: Tape, d_states: States | None, d_last: States, *, spend: bool = False
    ) -> tuple[Derivative, list[Tensor]]:
        layout, S, like = tape.layout, len(p.cell.states), tape.gates.new_empty
        way = BackThroughTime(p, tape)
        given = d_states or [None] * S
        d_y: list[Matrix] = [
            zeros(layout.N, tape.states[k].shape[1]) if d is None else d.tolist() for k, d in enumerate(given)
        ]
        d_end: list[Matrix] = [zeros(*tape.initial[k].shape) if d is None else d.tolist() for k, d in enumerate(d_last)]
        steps = list(layout.order(not p.reverse))
        self.carry_back(way, steps, d_y, d_end)
        GH = len(p.cell.gates) * p.H
        derivative = Derivative(
            fill(like(layout.N, GH), way.d_wx),
            [fill(like(layout.N, GH), way.d_rh)],
            None if p.weights.w_hr is None else fill(like(layout.N, p.P), way.d_projected),
            [fill(like(p.H), d) for d in way.d_params],
        )
        return derivative, [fill(like(*s.shape), way.d_state0[k]) for k, s in enumerate(tape.initial)]

    def carry_back(self, way: "BackThroughTime", steps: Sequence[int], d_y: list[Matrix], d_end: list[Matrix]) -> None:
        """steps: from the last to the first."""
        way.back(steps, d_y, d_end)


class BackThroughTime:
    """Backpropagation through time. It may run several times: the gradients add up."""

    def __init__(self, p: Prepared, tape: Tape) -> None:
        layout, cell = tape.layout, p.cell
        G, S, traced = len(cell.gates), len(cell.states), trace(cell, tape.dt)
        self.p, self.layout, self.vjp = p, layout, compiled(traced.vjp, floats)
        self.r_t: Matrix = p.weights.w_hh.t().tolist()  # (P, G*H)
        self.projection_t: Matrix | None = None if p.weights.w_hr is None else p.weights.w_hr.t().tolist()  # (H, P)
        self.params: Matrix = [v.tolist() for v in p.weights.params]
        self.saved: Any = tape.saved(p.H)[:, : len(traced.saved)].tolist()
        self.new: list[Matrix] = [s.tolist() for s in tape.states]
        if tape.raw is not None:
            self.new[0] = tape.raw.tolist()
        self.old = [[tape.before(k, t).tolist() for t in range(layout.T)] for k in range(S)]
        self.d_wx, self.d_rh = zeros(layout.N, G * p.H), zeros(layout.N, G * p.H)
        self.d_projected, self.d_params = zeros(layout.N, p.P), zeros(len(cell.params), p.H)
        self.d_state0 = [zeros(*s.shape) for s in tape.initial]

    def back(self, steps: Sequence[int], d_y: list[Matrix], d_states: list[Matrix]) -> None:
        H, G, S = self.p.H, len(self.p.cell.gates), len(self.p.cell.states)
        for t in steps:
            for b in range(self.layout.sizes[t]):
                row = self.layout.starts[t] + b
                d_new = [[d + e for d, e in zip(d_states[k][b], d_y[k][row], strict=True)] for k in range(S)]
                add(self.d_projected[row], d_new[0])
                if self.projection_t is not None:
                    d_new[0] = [dot(weights, d_new[0]) for weights in self.projection_t]
                d_wx, d_rh, d_old = [0.0] * (G * H), [0.0] * (G * H), zeros(S, H)
                for j in range(H):
                    d = self.vjp(
                        *(values[j] for values in self.saved[row]),
                        *(0.0 if self.projection_t is not None and k == 0 else self.old[k][t][b][j] for k in range(S)),
                        *(self.new[k][row][j] for k in range(S)),
                        *(v[j] for v in self.params),
                        *(d_new[k][j] for k in range(S)),
                    )
                    for g in range(G):
                        d_wx[g * H + j], d_rh[g * H + j] = d[g], d[G + g]
                    for k in range(S):
                        d_old[k][j] = d[2 * G + k]
                    for total, value in zip(self.d_params, d[2 * G + S :], strict=True):
                        total[j] += value
                add(self.d_wx[row], d_wx)
                add(self.d_rh[row], d_rh)
                through = [dot(weights, d_rh) for weights in self.r_t]  # (P,)
                if self.projection_t is None:
                    add(through, d_old[0])
                d_states[0][b] = through
                for k in range(1, S):
                    d_states[k][b] = d_old[k]
        for k in range(S):
            for total, d_row in zip(self.d_state0[k], d_states[k], strict=True):
                add(total, d_row)


def add(total: list[float], values: list[float]) -> None:
    for k, value in enumerate(values):
        total[k] += value


def fill(target: Tensor, values: Any) -> Tensor:
    return target.copy_(target.new_tensor(values).reshape(target.shape))
