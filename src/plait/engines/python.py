"""Scalar loops over everything, matrix products included: the sequential version, and the slowest thing to trust."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cells import Cell
from ..cells.ops import floats
from ..cells.trace import compiled, trace
from .base import Derivative, Prepared, Tape
from .onebyone import OneByOne

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


class PythonEngine(OneByOne):
    name, about = "python", "scalar loops, matrix products included: slow and certain"
    quadratic = False

    def why_not(self, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str | None:
        if dtype not in (torch.float32, torch.float64):
            return f"{self.name} returns float32 and float64, the layer is {dtype}: convert it first."
        return None

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

    def recur_one(self, p: Prepared, wx: Tensor, tape: Tape) -> tuple[Tensor, ...]:
        cell, layout, H = p.cell, tape.layout, p.H
        G, S = len(cell.gates), len(cell.states)
        traced = trace(cell, tape.dt)
        step = compiled(traced.step, floats)
        rows: Matrix = wx.tolist()
        states: list[Matrix] = [tape.initial(k).tolist() for k in range(S)]
        r: Matrix = p.w_hh.tolist()
        bias: list[float] = [0.0] * (G * H) if p.b_hh is None else p.b_hh.tolist()
        projection: Matrix | None = None if p.w_hr is None else p.w_hr.tolist()
        kept: list[Matrix] = [[[]] * layout.N for _ in range(S)]
        saved: list[Any] = [[]] * layout.N  # (N, S, H)
        raw: Matrix = [[]] * layout.N
        for t in layout.order(tape.reverse):
            for b in range(layout.sizes[t]):
                row, h = layout.starts[t] + b, states[0][b]
                rh = [dot(r[k], h) + bias[k] for k in range(G * H)]
                new: list[list[float]] = [[0.0] * H for _ in range(S)]
                saved[row] = [[0.0] * H for _ in traced.saved]
                for j in range(H):
                    values = step(
                        *(rows[row][g * H + j] for g in range(G)),
                        *(rh[g * H + j] for g in range(G)),
                        *(0.0 if projection is not None and k == 0 else states[k][b][j] for k in range(S)),
                    )
                    for k in range(S):
                        new[k][j] = values[k]
                    for k in range(len(traced.saved)):
                        saved[row][k][j] = values[S + k]
                raw[row] = new[0]
                if projection is not None:
                    new[0] = [dot(weights, new[0]) for weights in projection]
                for k in range(S):
                    states[k][b] = new[k]
                    kept[k][row] = new[k]
        for k in range(S):
            fill(tape.states(k), kept[k])
        fill(tape.saved[0], saved)
        if tape.raw is not None:
            fill(tape.raw, raw)
        return tuple(fill(torch.empty_like(tape.initial(k)), states[k]) for k in range(S))

    def recur_one_vjp(
        self, p: Prepared, tape: Tape, d_rows: Tensor, d_final: Sequence[Tensor | None]
    ) -> tuple[Derivative, Sequence[Tensor]]:
        layout, S = tape.layout, len(p.cell.states)
        walk = Walk(p, tape)
        d_y: Matrix = d_rows.tolist()
        d_last: list[Matrix] = [
            zeros(*tape.initial(k).shape) if d is None else d.tolist() for k, d in enumerate(d_final)
        ]
        steps = list(layout.order(not tape.reverse))
        if self.quadratic:  # the textbook form: each step's loss is carried to the beginning by itself
            for position, t in enumerate(steps):
                alone = [
                    row if layout.starts[t] <= k < layout.starts[t] + layout.sizes[t] else [0.0] * len(row)
                    for k, row in enumerate(d_y)
                ]
                walk.back(steps[position:], alone, [zeros(*tape.initial(k).shape) for k in range(S)])
            walk.back(steps, zeros(layout.N, p.P), d_last)
        else:
            walk.back(steps, d_y, d_last)
        like = d_rows.new_empty
        GH = len(p.cell.gates) * p.H
        derivative = Derivative(
            fill(like(layout.N, GH), walk.d_wx),
            [fill(like(layout.N, GH), walk.d_rh)],
            None if p.w_hr is None else fill(like(layout.N, p.P), walk.d_projected),
        )
        return derivative, tuple(fill(torch.empty_like(tape.initial(k)), walk.d_state0[k]) for k in range(S))


class QuadraticEngine(PythonEngine):
    name, about = "python:quadratic", "the same with textbook O(T^2) backpropagation through time"
    quadratic = True


class Walk:
    """Backpropagation through time; gradients of several walks add up, for they are linear."""

    def __init__(self, p: Prepared, tape: Tape) -> None:
        layout, cell = tape.layout, p.cell
        G, S = len(cell.gates), len(cell.states)
        self.p, self.layout, self.vjp = p, layout, compiled(trace(cell, tape.dt).vjp, floats)
        self.r_t: Matrix = p.w_hh.t().tolist()  # (P, G*H)
        self.projection_t: Matrix | None = None if p.w_hr is None else p.w_hr.t().tolist()  # (H, P)
        self.saved = tape.saved[0].tolist()
        self.new: list[Matrix] = [tape.states(k).tolist() for k in range(S)]
        if tape.raw is not None:
            self.new[0] = tape.raw.tolist()
        self.old = [[tape.before(k, t).tolist() for t in range(layout.T)] for k in range(S)]
        self.d_wx, self.d_rh = zeros(layout.N, G * p.H), zeros(layout.N, G * p.H)
        self.d_projected = zeros(layout.N, p.P)
        self.d_state0 = [zeros(*tape.initial(k).shape) for k in range(S)]

    def back(self, steps: Sequence[int], d_y: Matrix, d_states: list[Matrix]) -> None:
        H, G, S = self.p.H, len(self.p.cell.gates), len(self.p.cell.states)
        for t in steps:
            for b in range(self.layout.sizes[t]):
                row = self.layout.starts[t] + b
                d_h = [d + e for d, e in zip(d_states[0][b], d_y[row], strict=True)]
                add(self.d_projected[row], d_h)
                if self.projection_t is not None:
                    d_h = [dot(weights, d_h) for weights in self.projection_t]
                d_new = [d_h, *(d_states[k][b] for k in range(1, S))]
                d_wx, d_rh, d_old = [0.0] * (G * H), [0.0] * (G * H), zeros(S, H)
                for j in range(H):
                    d = self.vjp(
                        *(values[j] for values in self.saved[row]),
                        *(0.0 if self.projection_t is not None and k == 0 else self.old[k][t][b][j] for k in range(S)),
                        *(self.new[k][row][j] for k in range(S)),
                        *(d_new[k][j] for k in range(S)),
                    )
                    for g in range(G):
                        d_wx[g * H + j], d_rh[g * H + j] = d[g], d[G + g]
                    for k in range(S):
                        d_old[k][j] = d[2 * G + k]
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
