"""Kernels compiled for the CPU at hand: a layer, in all its directions, is one call forward and one back."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..cells import Cell
from ..kernels import job, pages, threads
from ..kernels.layer import Kept, Layer, Sizes, ours
from ..kernels.program import BEFORE, PER_DIRECTION, Program
from ..kernels.schedule import DEFAULT, Schedule
from ..kernels.target import Form
from ..layout import Layout
from .base import Derivative, Engine, Needs, Prepared, Tape, Weights
from .checks import check, check_back

MOST_PROGRAMS = 1024
WORTH_A_TEAM = 1 << 19  # multiplications, some ten microseconds: for less nobody is called


known = lru_cache(MOST_PROGRAMS)(Kept)  # not for sizes that torch.compile has left open


def form_of(cell: type[Cell], dt: float, dtype: torch.dtype, projected: bool, schedule: Schedule) -> Form:
    return Form(cell, dt, schedule.target(dtype == torch.float64), projected)


class FusedEngine(Engine):
    """All that a walk keeps is in one tensor: see kernels.layer.Kept."""

    name, about = "fused", "kernels compiled for this CPU, on torch's threads"

    def __init__(self, schedule: Schedule = DEFAULT) -> None:
        self.schedule = schedule
        self.forms: dict[tuple[Any, ...], Form] = {}
        self.programs: dict[tuple[Any, ...], Program] = {}

    def why_not(self, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"fused runs on the CPU, the layer is on {device}: use engine='torch' there."
        if dtype not in (torch.float32, torch.float64):
            return f"fused runs float32 and float64, the layer is {dtype}: convert it, or use engine='torch'."
        if len(cell.gates) > job.MOST_GATES or len(cell.states) > job.MOST_STATES:
            found = f"cell {cell.name} has {len(cell.gates)} gates and {len(cell.states)} states"
            return f"fused has room for {job.MOST_GATES} gates and {job.MOST_STATES} states, {found}: use 'torch'."
        return None

    def form(self, cell: type[Cell], w: Weights, dt: float) -> Form:
        key = (cell, dt, w.w_hh.dtype, w.w_hr is not None)
        form = self.forms.get(key)
        if form is None:
            form = self.forms[key] = form_of(*key, self.schedule)
        return form

    def where(self, cell: type[Cell], w: Weights, N: int, B: int, dt: float, of: Callable[..., Kept] = Kept) -> Kept:
        GH, P = w.w_hh.shape
        return of(self.form(cell, w, dt), N, B, GH // len(cell.gates), P)

    def blank(
        self, cell: type[Cell], weights: Sequence[Weights], N: int, B: int, like: Tensor, dt: float
    ) -> list[Tensor]:
        return [like.new_empty(len(weights) * self.where(cell, weights[0], N, B, dt).each)]

    def tapes(
        self, cell: type[Cell], weights: Sequence[Weights], kept: Sequence[Tensor], layout: Layout, dt: float
    ) -> list[Tape]:
        where, result = self.where(cell, weights[0], layout.N, layout.B, dt), []
        for d in range(len(weights)):
            starts = [d * where.each + start for start in where.starts]
            gates, extra, raw, *history = (
                matrix(kept[0], start, *shape) for start, shape in zip(starts, where.shapes, strict=False)
            )
            result.append(Tape(layout, d == 1, dt, history, raw if where.form.projected else None, [gates, extra]))
        return result

    def program(self, make: Callable[[Layer], Program], work: int, layout: Layout, sizes: Sizes, *more: Any) -> Program:
        """Made once for dense batches of a shape, and for a ragged one, seldom seen twice, once for all layers that are
        alike. `work`: multiplications.
        """
        alone = work < WORTH_A_TEAM or not self.schedule.parallel
        count = 1 if alone else threads.threads()
        programs = self.programs if layout.batch_sizes is None else layout.cache
        key = (self, layout.T, layout.B, count, sizes, *more)
        program: Program | None = programs.get(key)
        if program is None:
            if len(self.programs) >= MOST_PROGRAMS:
                self.programs.clear()
            program = programs[key] = make(Layer(self.schedule, layout, count, sizes))
        return program

    # --- forward
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
        return self.walk(cell, x.contiguous(), None, state0, weights, layout, dt)

    def recur(
        self, ps: Sequence[Prepared], wx: Sequence[Tensor], state0: Sequence[Tensor] | None, layout: Layout, dt: float
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        cell, weights = ps[0].cell, [p.weights for p in ps]
        kept = self.blank(cell, weights, layout.N, layout.B, wx[0], dt)
        for tape, rows in zip(self.tapes(cell, weights, kept, layout, dt), wx, strict=True):
            tape.saved[0].copy_(rows)
        x = wx[0].new_empty(layout.N, weights[0].w_ih.shape[1])
        return self.walk(cell, x, kept[0], state0, weights, layout, dt)

    def walk(
        self,
        cell: type[Cell],
        x: Tensor,
        kept: Tensor | None,
        state0: Sequence[Tensor] | None,
        weights: Sequence[Weights],
        layout: Layout,
        dt: float,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """From x; or from the wx that is in `kept` already."""
        w, N, D, S = weights[0], layout.N, len(weights), len(cell.states)
        (GH, I), P = w.w_ih.shape, w.w_hh.shape[1]
        H, form = GH // len(cell.gates), self.form(cell, w, dt)
        check(form, x, "initial state", state0 or (), weights, layout)
        y = pages.empty(x, *x.shape[:-1], D * P)
        finals = [x.new_empty(D, layout.B, P if k == 0 else H) for k in range(S)]
        if N == 0:
            for k, final in enumerate(finals):
                final.copy_(state0[k] if state0 is not None else torch.zeros_like(final))
            return y, finals, self.blank(cell, weights, N, layout.B, x, dt)
        project, stateful = kept is None and ours(self.schedule, N, GH, I), state0 is not None
        program = self.program(
            lambda layer: layer.forward(project=project, stateful=stateful),
            N * D * GH * (P + I if project else P),
            layout,
            Sizes(form, D, I, H, P, w.b_ih is not None),
            *("forward", project, stateful),
        )
        if kept is None:
            kept = pages.empty(x, D * program.kept)
            for d, w in enumerate(weights if not project else ()):
                project_rows(x.view(N, I), w, matrix(kept, d * program.kept, N, GH))
        tensors = [kept, x, y, None, layout.offsets]
        tensors += NONE if state0 is None else [*[s.contiguous() for s in state0], *NONE[S:]]
        tensors += [*finals, *NONE[S:]]
        for w in weights:
            tensors += [*contiguous(w), *NO_GRADIENTS]
        program.run(tensors)
        return y, finals, [kept]

    # --- backward
    def recur_vjp(
        self,
        ps: Sequence[Prepared],
        kept: Sequence[Tensor],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
        layout: Layout,
        dt: float,
    ) -> tuple[list[Derivative], list[Tensor]]:
        cell, weights = ps[0].cell, [p.weights for p in ps]
        needs = Needs(False, [True] * len(cell.states), [[False] * len(w.tensors) for w in weights])
        befores = [None] * len(ps)
        x = kept[0].new_empty(layout.N, weights[0].w_ih.shape[1])
        where = self.where(cell, weights[0], layout.N, layout.B, dt, known)
        check_back(where, x, kept, d_rows, d_finals, weights, layout)
        _, d_state0, _, d_projected, _ = self.walk_back(
            cell, x, weights, kept[0], befores, d_rows, d_finals, layout, needs, dt
        )
        form, tapes = self.form(cell, weights[0], dt), self.tapes(cell, weights, kept, layout, dt)
        return [derivative(form, *pair) for pair in zip(tapes, d_projected, strict=True)], d_state0

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
        where = self.where(cell, weights[0], layout.N, layout.B, dt, known)
        check_back(where, x, kept, d_rows, d_finals, weights, layout)
        if layout.N == 0:
            return nothing(cell, x, weights, d_finals, layout.B, needs)
        x, own = x.contiguous(), kept[0].contiguous() if spend else kept[0].clone()
        befores: list[Tensor | None] = [None] * len(weights)
        if not layout.is_dense:
            tapes = self.tapes(cell, weights, [own], layout, dt)
            befores = [t.before_all(0) if some[1] else None for t, some in zip(tapes, needs.weights, strict=True)]
        d_x, d_state0, d_w, d_projected, complete = self.walk_back(
            cell, x, weights, own, befores, d_rows, d_finals, layout, needs, dt
        )
        if not complete:
            form, tapes = self.form(cell, weights[0], dt), self.tapes(cell, weights, [own], layout, dt)
            rows, d_x_rows = x.view(layout.N, -1), None if d_x is None else d_x.view(layout.N, -1)
            for d, tape in enumerate(tapes):
                before = tape.before_all(0) if layout.is_dense else befores[d]
                g = derivative(form, tape, d_projected[d])
                self.rest(rows, weights[d], tape, before, g, d_x_rows, d_w[d])
        return d_x, d_state0, d_w

    def walk_back(
        self,
        cell: type[Cell],
        x: Tensor,
        weights: Sequence[Weights],
        kept: Tensor,
        befores: Sequence[Tensor | None],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
        layout: Layout,
        needs: Needs,
        dt: float,
    ) -> tuple[Tensor | None, list[Tensor], list[list[Tensor | None]], list[Tensor | None], bool]:
        """The walk, and those products that the launch does itself.

        -> d_x, d_state0, d_ of the weights, d_projected, and whether that is all
        """
        w, N, B, D, S = weights[0], layout.N, layout.B, len(weights), len(cell.states)
        (GH, I), P = w.w_ih.shape, w.w_hh.shape[1]
        H, form = GH // len(cell.gates), self.form(cell, w, dt)
        if d_rows is None:
            d_rows, stride = x.new_zeros(D * P), 0
        elif d_rows.is_contiguous() or d_rows.dim() != 2 or d_rows.stride(1) != 1:
            d_rows, stride = d_rows.contiguous(), D * P
        else:
            stride = d_rows.stride(0)
        given = tuple([d is not None for d in d_finals])
        wanted = tuple([tuple(some) for some in needs.weights])
        needs_states = True in needs.states
        program = self.program(
            lambda layer: layer.backward(
                stride=stride, given=given, needs_x=needs.x, needs_states=needs_states, needs=wanted
            ),
            N * D * GH * (P + I if ours(self.schedule, GH, I, N, outer=True) else P),
            layout,
            Sizes(form, D, I, H, P, w.b_ih is not None),
            *("backward", stride, given, needs.x, needs_states, wanted),
        )
        d_x = pages.empty(x, *x.shape) if needs.x else None
        d_state0 = [x.new_empty(D, B, P if k == 0 else H) for k in range(S)] if needs_states else []
        tensors = [kept, x, d_rows, d_x, layout.offsets]
        tensors += [*[None if d is None else d.contiguous() for d in d_finals], *NONE[S:]]
        tensors += [*d_state0, *NONE[len(d_state0) :]]
        d_weights, projections = [], []
        for d, w in enumerate(weights):
            held = contiguous(w)
            present = [t for t in held if t is not None]
            d_w = [torch.empty_like(t) if some else None for t, some in zip(present, wanted[d], strict=True)]
            d_projected = None if w.w_hr is None else x.new_empty(N, P)
            tensors += [*held, befores[d], d_projected, *d_w, *NO_GRADIENTS[2 + len(d_w) :]]
            d_weights.append(d_w)
            projections.append(d_projected)
        program.run(tensors)
        return d_x, d_state0, d_weights, projections, program.complete

    def rest(
        self,
        x: Tensor,
        w: Weights,
        tape: Tape,
        before: Tensor | None,
        g: Derivative,
        d_x: Tensor | None,
        d_w: Sequence[Tensor | None],
    ) -> None:
        """What torch does better, when the walk is done."""
        N, (GH, I), P = x.shape[0], w.w_ih.shape, w.w_hh.shape[1]
        if d_x is not None and not ours(self.schedule, N, I, GH):
            d_x.addmm_(g.d_wx, w.w_ih, beta=1 if tape.reverse else 0)
        biases = d_w[2:4] if w.b_ih is not None else (None, None)
        if not ours(self.schedule, GH, I, N, outer=True) or d_w[0] is None:
            if d_w[0] is not None:
                torch.mm(g.d_wx.t(), x, out=d_w[0])
            if biases[0] is not None:
                torch.sum(g.d_wx, 0, out=biases[0])
        row = 0
        for part in g.d_rh:
            end = row + part.shape[1]
            if not ours(self.schedule, end - row, P, N, outer=True) or d_w[1] is None:
                if d_w[1] is not None and before is not None:
                    torch.mm(part.t(), before, out=d_w[1][row:end])
                if biases[1] is not None and biases[0] is not None and len(g.d_rh) == 1:
                    biases[1].copy_(biases[0])
                elif biases[1] is not None:
                    torch.sum(part, 0, out=biases[1][row:end])
            row = end
        if w.w_hr is not None and d_w[-1] is not None and tape.raw is not None and g.d_projected is not None:
            torch.mm(g.d_projected.t(), tape.raw, out=d_w[-1])


NONE: tuple[None, ...] = (None,) * job.MOST_STATES
NO_GRADIENTS: tuple[None, ...] = (None,) * (PER_DIRECTION - BEFORE)


def matrix(tensor: Tensor, start: int, rows: int, columns: int) -> Tensor:
    return tensor.as_strided((rows, columns), (columns, 1), start)


def contiguous(w: Weights) -> list[Tensor | None]:
    return [None if t is None else t.contiguous() for t in w]


def project_rows(x: Tensor, w: Weights, to: Tensor) -> None:
    if w.b_ih is None:
        torch.mm(x, w.w_ih.t(), out=to)
    else:
        torch.addmm(w.b_ih, x, w.w_ih.t(), out=to)


def derivative(form: Form, tape: Tape, d_projected: Tensor | None) -> Derivative:
    """What is in the place of gates and extra, after the walk back."""
    gates, extra = tape.saved
    GH = gates.shape[1]
    shared = form.shared * GH // form.G
    d_rh = [gates] if form.shared == form.G else [gates[:, :shared], extra[:, : GH - shared]]
    return Derivative(gates, d_rh, d_projected)


def nothing(
    cell: type[Cell], x: Tensor, weights: Sequence[Weights], d_finals: Sequence[Tensor | None], B: int, needs: Needs
) -> tuple[Tensor | None, list[Tensor], list[list[Tensor | None]]]:
    """No steps, or no sequences: what comes in at the end goes out at the beginning."""
    widths, D = weights[0].widths(cell), len(weights)
    d_state0 = [x.new_zeros(D, B, n) if d is None else d.clone() for d, n in zip(d_finals, widths, strict=True)]
    d_w = [
        [torch.zeros_like(t) if n else None for t, n in zip(w.tensors, some, strict=True)]
        for w, some in zip(weights, needs.weights, strict=True)
    ]
    return torch.zeros_like(x) if needs.x else None, d_state0, d_w
