"""Kernels compiled for the CPU at hand: a layer, in all its directions, is one call forward and one back."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..cells import Cell
from ..kernels import job, pages, split, threads
from ..kernels.program import (
    B_HH,
    B_IH,
    BEFORE,
    BOUNDS,
    CARRY,
    D_PROJECTED,
    D_W,
    D_X,
    EXTRA,
    FINAL,
    GATES,
    GIVEN,
    HISTORY,
    PER_DIRECTION,
    RAW,
    ROWS,
    W_HH,
    W_HR,
    W_IH,
    Program,
    X,
    place,
)  # fmt: skip
from ..kernels.schedule import DEFAULT, Schedule
from ..kernels.target import Form
from .base import Derivative, Engine, Layout, Needs, Prepared, Tape, Weights

SMALL, THIN = 1 << 21, 24
MOST_PROGRAMS = 1024
WORTH_A_TEAM = 1 << 19  # multiplications, some ten microseconds: for less nobody is called


@cache
def form_of(cell: Cell, dt: float, dtype: torch.dtype, projected: bool, schedule: Schedule) -> Form:
    return Form(cell, dt, schedule.target(dtype == torch.float64), projected)


class FusedEngine(Engine):
    name, about = "fused", "kernels compiled for this CPU, on torch's threads"

    def __init__(self, schedule: Schedule = DEFAULT) -> None:
        self.schedule = schedule
        self.programs: dict[tuple[Any, ...], Program] = {}

    def why_not(self, cell: Cell, dtype: torch.dtype, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"fused runs on the CPU, the layer is on {device}: use engine='torch' there."
        if dtype not in (torch.float32, torch.float64):
            return f"fused runs float32 and float64, the layer is {dtype}: convert it, or use engine='torch'."
        if len(cell.gates) > job.MOST_GATES or len(cell.states) > job.MOST_STATES:
            found = f"cell {cell.name} has {len(cell.gates)} gates and {len(cell.states)} states"
            return f"fused has room for {job.MOST_GATES} gates and {job.MOST_STATES} states, {found}: use 'torch'."
        return None

    def ours(self, M: int, N: int, K: int) -> bool:
        """Whether the kernel does the product (M, K) (K, N) itself: small ones, for one call less, and thin ones, which
        torch.mm is slow at. For the others torch.mm is as good, and better where the sum is long.
        """
        return M * N * K < SMALL or N < THIN or self.schedule is not DEFAULT

    def form(self, cell: Cell, dt: float, dtype: torch.dtype, projected: bool) -> Form:
        return form_of(cell, dt, dtype, projected, self.schedule)

    empty = staticmethod(pages.empty)

    def blank(self, cell: Cell, w: Weights, B: int, wx: Tensor) -> list[Tensor]:
        """The gates take the place of wx: it is theirs from now on."""
        N, form = wx.shape[0], self.form(cell, 1, wx.dtype, w.w_hr is not None)
        extra = [self.empty(wx, N, form.E * (w.w_hh.shape[0] // form.G))] if form.E else []
        return [*self.history(cell, w, B, N, wx), wx, *extra]

    def forward(
        self,
        cell: Cell,
        x: Tensor,
        state0: Sequence[Sequence[Tensor] | None],
        weights: Sequence[Weights],
        layout: Layout,
        *,
        dt: float = 1,
    ) -> tuple[Tensor, list[Tensor], list[Tape]]:
        if layout.N == 0:
            return super().forward(cell, x, state0, weights, layout, dt=dt)
        (GH, I), projected = weights[0].w_ih.shape, weights[0].w_hr is not None
        x, tapes, own = x.contiguous(), [], self.ours(layout.N, GH, I)
        for d, w in enumerate(weights):
            wx = self.empty(x, layout.N, GH)
            if not own:
                torch.mm(x, w.w_ih.t(), out=wx) if w.b_ih is None else torch.addmm(w.b_ih, x, w.w_ih.t(), out=wx)
            blank = self.blank(cell, w, layout.B, wx)
            tapes.append(Tape.of(cell, layout, blank, projected=projected, reverse=d == 1, dt=dt))
        rows, finals = self.walk(x if own else None, weights, tapes, state0, cell)
        return rows, finals, tapes

    def recur(
        self,
        ps: Sequence[Prepared],
        wx: Sequence[Tensor],
        tapes: Sequence[Tape],
        state0: Sequence[Sequence[Tensor] | None],
    ) -> tuple[Tensor, list[Tensor]]:
        if tapes[0].layout.N:
            return self.walk(None, [p.weights for p in ps], tapes, state0, ps[0].cell)
        for tape, given in zip(tapes, state0, strict=True):
            for k in range(len(tape.history)):
                tape.initial(k).zero_() if given is None else tape.initial(k).copy_(given[k])
        rows = wx[0].new_empty(0, len(ps) * ps[0].P)
        return rows, [tape.initial(k).clone() for tape in tapes for k in range(len(tape.history))]

    def walk(
        self,
        x: Tensor | None,
        weights: Sequence[Weights],
        tapes: Sequence[Tape],
        state0: Sequence[Sequence[Tensor] | None],
        cell: Cell,
    ) -> tuple[Tensor, list[Tensor]]:
        """From wx, or from x, if the launch is to compute wx as well."""
        layout, w, like = tapes[0].layout, weights[0], tapes[0].saved[0]
        form = self.form(cell, tapes[0].dt, like.dtype, w.w_hr is not None)
        H, P, D = like.shape[1] // form.G, w.w_hh.shape[1], len(weights)
        key = (form, D, H, P, 0 if x is None else x.shape[1], w.b_ih is not None, state0[0] is not None)
        program = self.program(self.forward_program, layout, key, layout.N * D * w.w_hh.numel())
        y = self.empty(like, layout.N, D * P)
        tensors = [like.new_empty(program.workspace), x, y, None, layout.offsets]
        finals: list[Tensor] = []
        for w, tape, given in zip(weights, tapes, state0, strict=True):
            last = [like.new_empty(layout.B, P if k == 0 else H) for k in range(form.S)]
            tensors += of_direction(w, tape, tape.saved, given or NONE, last)
            finals += last
        program.run(tensors)
        return y, finals

    def program(self, make: Callable[..., Program], layout: Layout, key: tuple[Any, ...], work: int) -> Program:
        """Made once for dense batches of a shape; a ragged one is seldom seen twice. `work`: multiplications."""
        alone = not self.schedule.parallel or work < WORTH_A_TEAM
        count = 1 if alone else threads.threads()
        if layout.batch_sizes is not None:
            return make(layout, count, *key)
        key = (make.__name__, layout.T, layout.B, count, *key)
        program = self.programs.get(key)
        if program is None:
            program = make(layout, count, *key[4:])
            if len(self.programs) >= MOST_PROGRAMS:
                self.programs.clear()
            self.programs[key] = program
        return program

    def recur_vjp(
        self,
        ps: Sequence[Prepared],
        tapes: Sequence[Tape],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
        needs: Needs,
        spend: bool,
    ) -> list[Derivative]:
        only = Needs(False, needs.state0, [[False] * len(p.weights.tensors) for p in ps])
        weights = [p.weights for p in ps]
        return self.walk_back(ps[0].cell, tapes[0].saved[0], weights, tapes, d_rows, d_finals, only, spend)[0]

    def backward(
        self,
        cell: Cell,
        x: Tensor,
        weights: Sequence[Weights],
        tapes: Sequence[Tape],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
        *,
        needs: Needs,
        spend: bool = False,
    ) -> tuple[Tensor | None, list[tuple[Sequence[Tensor], list[Tensor | None]]]]:
        if tapes[0].layout.N == 0:
            return nothing(x, weights, tapes, d_finals, needs)
        x = x.contiguous()
        derivatives, d_x, d_w = self.walk_back(cell, x, weights, tapes, d_rows, d_finals, needs, spend)
        for d, (w, tape, g) in enumerate(zip(weights, tapes, derivatives, strict=True)):
            (GH, I), N = w.w_ih.shape, x.shape[0]
            if d_x is not None and not self.ours(N, I, GH):
                torch.mm(g.d_wx, w.w_ih, out=d_x) if d == 0 else d_x.addmm_(g.d_wx, w.w_ih)
            self.rest(x, w, tape, g, d_w[d])
        return d_x, [(g.d_state0, d_w[d]) for d, g in enumerate(derivatives)]

    def walk_back(
        self,
        cell: Cell,
        x: Tensor,
        weights: Sequence[Weights],
        tapes: Sequence[Tape],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
        needs: Needs,
        spend: bool,
    ) -> tuple[list[Derivative], Tensor | None, list[list[Tensor | None]]]:
        """The walk, and those products that the launch does itself."""
        layout, w, S = tapes[0].layout, weights[0], len(cell.states)
        form = self.form(cell, tapes[0].dt, x.dtype, w.w_hr is not None)
        P, H, D = w.w_hh.shape[1], w.w_hh.shape[0] // form.G, len(weights)
        if d_rows is None:
            d_rows = x.new_zeros(1, D * P).expand(layout.N, -1)
        elif d_rows.stride(1) != 1:
            d_rows = d_rows.contiguous()
        given = tuple([d is not None for d in d_finals])
        wanted = tuple([tuple(n) for n in needs.weights])
        finish = tuple([n[0] for n in needs.state0])
        I, bias = w.w_ih.shape[1], w.b_ih is not None
        key = (form, D, H, P, I, bias, d_rows.stride(0), given, needs.x, wanted, finish)
        program = self.program(self.backward_program, layout, key, layout.N * D * w.w_hh.numel())
        d_x = self.empty(x, x.shape[0], x.shape[1]) if needs.x else None
        tensors = [x.new_empty(program.workspace), x, d_rows, d_x, layout.offsets]
        derivatives, d_weights = [], []
        for d, (w, tape) in enumerate(zip(weights, tapes, strict=True)):
            saved = tape.saved if spend else [t.clone() for t in tape.saved]
            carry = [x.new_empty(layout.B, P if k == 0 else H) for k in range(S)]
            d_projected = None if tape.raw is None else x.new_empty(layout.N, P)
            d_w = [t.new_empty(t.shape) if some else None for t, some in zip(w.tensors, needs.weights[d], strict=True)]
            before = tape.before_all(0) if needs.weights[d][1] and not layout.is_dense else None
            tensors += of_direction(
                w, tape, saved, d_finals[d * S : (d + 1) * S], NONE, carry, d_w, before, d_projected
            )
            shared, d_rh = form.shared * H, [saved[0]]
            if form.shared < form.G:
                d_rh = [saved[0][:, :shared], saved[1][:, : form.G * H - shared]]
            derivatives.append(Derivative(saved[0], d_rh, d_projected, carry))
            d_weights.append(d_w)
        program.run(tensors)
        return derivatives, d_x, d_weights

    def rest(self, x: Tensor, w: Weights, tape: Tape, g: Derivative, d_w: Sequence[Tensor | None]) -> None:
        """What torch does better, when the walk is done."""
        N, (GH, I), P = x.shape[0], w.w_ih.shape, w.w_hh.shape[1]
        if d_w[0] is not None and not self.ours(GH, I, N):
            torch.mm(g.d_wx.t(), x, out=d_w[0])
        if d_w[1] is not None:
            row = 0
            for part in g.d_rh:
                end = row + part.shape[1]
                if not self.ours(end - row, P, N):
                    torch.mm(part.t(), tape.before_all(0), out=d_w[1][row:end])
                row = end
        if w.w_hr is not None and d_w[-1] is not None and tape.raw is not None and g.d_projected is not None:
            torch.mm(g.d_projected.t(), tape.raw, out=d_w[-1])
        if w.b_ih is None:
            return
        if d_w[2] is not None and (d_w[0] is None or not self.ours(GH, I, N)):
            torch.sum(g.d_wx, 0, out=d_w[2])
        if d_w[3] is not None and len(g.d_rh) == 1:
            d_w[3].copy_(g.d_wx.sum(0) if d_w[2] is None else d_w[2])
        elif d_w[3] is not None:
            row = 0
            for part in g.d_rh:
                end = row + part.shape[1]
                if d_w[1] is None or not self.ours(end - row, P, N):
                    torch.sum(part, 0, out=d_w[3][row:end])
                row = end

    def forward_program(
        self, layout: Layout, count: int, form: Form, D: int, H: int, P: int, I: int, bias: bool, stateful: bool
    ) -> Program:
        program, fuse = Program(form, count, back=False), self.schedule.fuse and D == 1
        for d in range(D):
            at = describe_walk(program, d, layout, H, P, [stateful] * form.S)
            program.point(at + job.ROWS, ROWS, d * P)
            program.words[at + job.ROWS_STRIDE] = D * P * form.target.size
            program.point(at + job.BIAS, place(d, B_HH))
        for d in range(D if I else 0):
            shape, b = (layout.N, form.G * H, I), place(d, B_IH) if bias else None
            program.multiply(X, place(d, W_IH), place(d, GATES), shape, transposed=True, bias=b)
            if fuse:
                program.unite(d)
        program.finish(split.slices(layout, D, count), not fuse and split.by_units(form, layout, H, D, count))
        return program

    def backward_program(
        self,
        layout: Layout,
        count: int,
        form: Form,
        D: int,
        H: int,
        P: int,
        I: int,
        bias: bool,
        stride: int,
        given: Sequence[bool],
        needs_x: bool,
        wanted: Sequence[Sequence[bool]],
        finish: Sequence[bool],
    ) -> Program:
        program, fuse = Program(form, count, back=True), self.schedule.fuse and D == 1
        N, B, S, GH = layout.N, layout.B, form.S, form.G * H
        for d in range(D):
            at = describe_walk(program, d, layout, H, P, given[d * S : (d + 1) * S])
            program.point(at + job.ROWS, ROWS, d * P)
            program.words[at + job.ROWS_STRIDE] = stride * form.target.size
            program.words[at + job.FINISH] = finish[d]
        for d in range(D):
            some, gates = wanted[d], place(d, GATES)
            if needs_x and self.ours(N, I, GH):
                program.multiply(gates, place(d, W_IH), D_X, (N, I, GH), transposed=False, phase=d)
                if fuse:
                    program.unite(d)
            if some[0] and self.ours(GH, I, N):
                sums = place(d, D_W + 2) if bias and some[2] else None
                program.outer(gates, X, place(d, D_W), (GH, I, N), stride=GH, sums=sums)
            before, first = (place(d, HISTORY), B if d == 1 else 0) if layout.is_dense else (place(d, BEFORE), 0)
            shared, alone = form.shared * H, len(range(form.shared, form.G))
            for tensor, row, end, width in ((gates, 0, shared, GH), (place(d, EXTRA), shared, GH, form.E * H)):
                if some[1] and end > row and self.ours(end - row, P, N):
                    sums = place(d, D_W + 3) if bias and some[3] and alone else None
                    shape = (end - row, P, N)
                    program.outer(
                        tensor, before, place(d, D_W + 1), shape, stride=width, row=row, b_row=first, sums=sums
                    )
        program.finish(split.slices(layout, D, count), not fuse and split.by_units(form, layout, H, D, count))
        return program


NONE: tuple[None, ...] = (None,) * job.MOST_STATES


def of_direction(
    w: Weights,
    tape: Tape,
    saved: Sequence[Tensor],
    given: Sequence[Tensor | None],
    final: Sequence[Tensor | None],
    carry: Sequence[Tensor | None] = NONE,
    d_w: Sequence[Tensor | None] = (),
    before: Tensor | None = None,
    d_projected: Tensor | None = None,
) -> list[Tensor | None]:
    """What kernels.program counts for each direction, in that order."""
    S, extra = len(tape.history), saved[1] if len(saved) > 1 else None
    rest = NONE[S:]
    held = [None if t is None else t.contiguous() for t in (w.w_ih, w.w_hh, w.b_ih, w.b_hh, w.w_hr, *given[:S])]
    return [
        *held[:5], saved[0], extra, tape.raw, d_projected, before,
        *tape.history, *rest, *held[5:], *rest, *final[:S], *rest, *carry[:S], *rest,
        *d_w, *[None] * (PER_DIRECTION - D_W - len(d_w)),
    ]  # fmt: skip


def describe_walk(program: Program, d: int, layout: Layout, H: int, P: int, given: Sequence[bool]) -> int:
    form, N, B, reverse = program.form, layout.N, layout.B, d == 1
    at = program.walk(layout.T, B, H, P, reverse)
    for field, tensor in (
        (job.GATES, GATES),
        (job.WEIGHT, W_HH),
        (job.EXTRA, EXTRA),
        (job.PROJECTION, W_HR),
        (job.RAW, RAW),
    ):
        program.point(at + field, place(d, tensor))
    program.point(at + job.D_PROJECTED, place(d, D_PROJECTED))
    if not layout.is_dense:
        program.point(at + job.STARTS, BOUNDS)
    for k in range(form.S):
        width = P if k == 0 else H
        program.point(at + job.STATES + k, place(d, HISTORY + k), 0 if reverse else B * width)
        program.point(at + job.INITIAL + k, place(d, HISTORY + k), N * width if reverse else 0)
        program.point(at + job.GIVEN + k, place(d, GIVEN + k))
        program.point(at + job.FINAL + k, place(d, FINAL + k))
        program.point(at + job.CARRY + k, place(d, CARRY + k))
    return at


def nothing(
    x: Tensor, weights: Sequence[Weights], tapes: Sequence[Tape], d_finals: Sequence[Tensor | None], needs: Needs
) -> tuple[Tensor | None, list[tuple[Sequence[Tensor], list[Tensor | None]]]]:
    """No steps, or no sequences: what comes in at the end goes out at the beginning."""
    result: list[tuple[Sequence[Tensor], list[Tensor | None]]] = []
    S = len(tapes[0].history)
    for d, (w, tape) in enumerate(zip(weights, tapes, strict=True)):
        d_state0 = [
            torch.zeros_like(tape.initial(k)) if g is None else g for k, g in enumerate(d_finals[d * S : (d + 1) * S])
        ]
        d_w = [torch.zeros_like(t) if n else None for t, n in zip(w.tensors, needs.weights[d], strict=True)]
        result.append((d_state0, d_w))
    return torch.zeros_like(x) if needs.x else None, result
