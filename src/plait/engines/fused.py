"""Kernels compiled for the CPU at hand: a layer, in all its directions, is one call forward and one back."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels import pool, threads
from ..kernels.addresses import OF_DIRECTION
from ..kernels.layer import ours
from ..kernels.program import Program
from ..kernels.target import Form
from ..layout import Layout
from .base import Derivative, Gradients, Needs, Prepared, States, Weights
from .checks import check_backward, check_forward
from .fused_walk import FusedWalk, steps_without_tape
from .packed import Packed, packs_of
from .shot import MOST_SHOTS, Shot
from .tape import Tape
from .way_back import WayBack, address, matrix, room_of, rows_of


class FusedEngine(FusedWalk):
    name, about = "fused", "kernels compiled for this CPU, on torch's threads"

    # --- a layer, forward
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
        mine: Sequence[Packed] = ps  # type: ignore[assignment]  # an engine is given what it has prepared itself
        aim = None
        if not keep and mine[0].lasting and layout.batch_sizes is None:
            aim = layout.T, layout.B, state0 is None, dt, threads.threads(), *map(id, mine[1:])  # a shot holds them
            shot = mine[0].shots.get(aim)
            if shot is not None and shot.fits(x, state0):
                return shot.run(x, state0)
        x = x.contiguous()
        check_forward(mine, x, state0, layout)
        p, D, B, N = mine[0], len(mine), layout.B, layout.N
        y = pool.empty(x, *x.shape[:-1], D * p.P)
        finals = [pool.empty(x, D, B, width) for width in p.widths]
        if N == 0:
            for k, final in enumerate(finals):
                final.zero_() if state0 is None else final.copy_(state0[k])
            return y, finals, self.blank(mine, 0, B, x, dt) if keep else []
        given = None if state0 is None else [s.contiguous() for s in state0]
        steps = layout.T if keep else steps_without_tape(layout, p.weights.w_ih.shape[0], x.element_size())
        if steps < layout.T:
            for k, final in enumerate(finals):
                final.zero_() if given is None else final.copy_(given[k])
            self.in_chunks(mine, x, y, finals, layout, dt, steps, stateful=given is not None)
            return y, finals, []
        kept = [pool.empty(x, room_of(q, layout, dt).total) for q in mine]
        called = self.launch(mine, range(D), [0] * D, x, y, given, finals, kept, layout, dt)
        if aim is not None and called is not None and len(p.shots) < MOST_SHOTS:
            p.shots[aim] = Shot(*called, mine, x, y, finals, kept, given is not None)
        return y, finals, kept if keep else []

    def in_chunks(
        self,
        ps: Sequence[Packed],
        x: Tensor,
        y: Tensor,
        running: Sequence[Tensor],
        layout: Layout,
        dt: float,
        steps: int,
        *,
        stateful: bool,
    ) -> None:
        """`steps` steps at a time, all in the same small memory, with the running states (layout.py).

        Chunks of ragged sequences are not the same in both directions, so these come one after the other.
        """
        ps = [p if p.lasting else self.prepare(p.cell, p.weights, p.reverse) for p in ps]
        for group in [range(len(ps))] if layout.is_dense else [range(d, d + 1) for d in range(len(ps))]:
            some, begun = [ps[d] for d in group], stateful
            for t0, t1 in layout.cuts(steps):
                mine = [(layout.T - t1, layout.T - t0) if p.reverse else (t0, t1) for p in some]
                chunk = layout.cut(*mine[0])
                memory = [pool.empty(x, room_of(p, chunk, dt).total) for p in some]
                first = [layout.rows(*cut).start for cut in mine]
                self.launch(some, group, first, x, y, running if begun else None, running, memory, chunk, dt)
                begun = True

    def launch(
        self,
        ps: Sequence[Packed],
        of: range,
        first: Sequence[int],
        x: Tensor,
        y: Tensor,
        given: Sequence[Tensor] | None,
        finals: Sequence[Tensor],
        kept: Sequence[Tensor],
        layout: Layout,
        dt: float,
    ) -> tuple[Program, list[int], int] | None:
        """W x and the walk, for some directions of a layer. Each begins at its `first` row of x and y.

        -> the call, if it can be repeated as it is, because all weights are packed; else None
        """
        p, N = ps[0], layout.N
        (GH, I), P, stride, size = p.weights.w_ih.shape, p.P, y.shape[-1], x.element_size()
        batch, form, stateful = finals[0].shape[1], self.form(p, dt), given is not None
        project = ours(self.schedule, N, GH, I, packed=p.lasting)
        program = self.program(
            lambda layer: layer.forward(project=project, stateful=stateful, stride=stride),
            N * len(ps) * GH * (P + I if project else P),
            layout,
            ps,
            form,
            "forward",
            *(project, stateful, stride, batch),
        )
        skipped = [of[0] * batch * width * size for width in p.widths]
        addresses = [address(layout.offsets)]
        addresses += [0] * form.S if given is None else [s.data_ptr() + n for s, n in zip(given, skipped, strict=True)]
        addresses += [s.data_ptr() + n for s, n in zip(finals, skipped, strict=True)]
        x_at, y_at = x.data_ptr(), y.data_ptr()
        for q, d, row, memory in zip(ps, of, first, kept, strict=True):
            if not project:
                project_rows(x.view(-1, I)[row : row + N], q.weights, memory)
            addresses += [x_at + row * I * size, y_at + (row * stride + d * P) * size, 0, memory.data_ptr(), 0, 0, 0]
            addresses += [*q.weights_at(), *q.panels_at(form, False), 0, 0, 0, 0]
            if form.K:
                addresses += [*q.params_at(), *[0] * form.K]
        program.run(addresses)
        if not p.lasting:
            return None
        was_ready = all(packs_of(ps, False))
        for q in ps:
            q.done(False, with_w=project)
        return (program, addresses, len(OF_DIRECTION) + 2 * form.K) if was_ready and project else None

    # --- a layer, backward
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
        mine: Sequence[Packed] = ps  # type: ignore[assignment]
        p, D, N, B, form = mine[0], len(mine), layout.N, layout.B, self.form(ps[0], dt)
        check_backward(mine, x, kept, room_of(p, layout, dt).total, d_rows, d_finals, layout)
        x, kept = x.contiguous(), [t.contiguous() for t in kept]
        if N == 0:
            return self.nothing(mine, form, x, d_finals, layout, needs)
        (GH, I), P, size = p.weights.w_ih.shape, p.P, x.element_size()
        d_rows, stride = rows_of(d_rows, x, D * P)
        wanted, needs_states = tuple([tuple(some) for some in needs.weights]), True in needs.states
        program = self.program(
            lambda layer: layer.backward(stride=stride, needs_x=needs.x, needs_states=needs_states, needs=wanted),
            N * D * GH * (P + I if ours(self.schedule, GH, I, N, outer=True) else P),
            layout,
            mine,
            form,
            "backward",
            *(stride, needs.x, needs_states, wanted, B),
        )
        d_x = pool.empty_like(x) if needs.x else None
        d_state0 = [pool.empty(x, D, B, width) for width in p.widths] if needs_states else []
        d_last = [None if d is None else d.contiguous() for d in d_finals]
        addresses = [
            address(layout.offsets),
            *map(address, d_last),
            *(map(address, d_state0) if d_state0 else [0] * form.S),
        ]
        x_at, d_rows_at, d_x_at = x.data_ptr(), d_rows.data_ptr(), address(d_x)
        ways, d_weights, befores = [], [], []
        for d, q in enumerate(mine):
            way = WayBack(q, form, layout, kept[d] if spend else None, x)
            d_w = [pool.empty_like(t) if n else None for t, n in zip(q.weights.tensors, wanted[d], strict=True)]
            is_gathered = wanted[d][1] and not layout.is_dense
            before = room_of(q, layout, dt).tape(kept[d], layout).before_all(0) if is_gathered else None
            places = [address(t) for t in (d_w if q.weights.b_ih is not None else [*d_w[:2], None, None])[:4]]
            addresses += [x_at, d_rows_at + d * P * size, d_x_at, kept[d].data_ptr(), way.gates_at]
            addresses += [address(before), address(way.d_projected), *q.weights_at(), *q.panels_at(form, True), *places]
            if form.K:
                addresses += [*q.params_at(), *[t.data_ptr() for t in way.d_params]]
            ways.append(way)
            d_weights.append(d_w)
            befores.append(before)
        program.run(addresses)
        if p.lasting:
            for q in mine:
                q.done(True, with_w=needs.x and ours(self.schedule, N, I, GH, packed=True))
        derivatives, is_asked = [], not program.complete or not all(map(any, wanted))
        for d, (way, d_w) in enumerate(zip(ways, d_weights, strict=True)):
            if form.K:
                for total, some in zip(way.d_params, d_w[-form.K :], strict=True):
                    if some is not None:
                        torch.sum(total, 0, out=some)
            if is_asked:
                tape, g = room_of(mine[d], layout, dt).tape(kept[d], layout), way.derivative()
                derivatives.append(g)
                if not program.complete:
                    d_x_rows = None if d_x is None else d_x.view(N, I)
                    self.rest(x.view(N, I), mine[d], tape, befores[d], g, d_x_rows, d_w, first=d == 0)
        return Gradients(d_x, d_state0, d_weights, derivatives)

    def nothing(
        self, ps: Sequence[Packed], form: Form, x: Tensor, d_finals: States, layout: Layout, needs: Needs
    ) -> Gradients:
        """No steps or no sequences: the last states are the initial ones, and so are their gradients."""
        shape = len(ps), layout.B
        d_state0 = [
            x.new_zeros(*shape, n) if d is None else d.clone() for d, n in zip(d_finals, ps[0].widths, strict=True)
        ]
        d_w = [
            [torch.zeros_like(t) if n else None for t, n in zip(p.weights.tensors, some, strict=True)]
            for p, some in zip(ps, needs.weights, strict=True)
        ]
        derivatives = [WayBack(p, form, layout, None, x).derivative() for p in ps]
        return Gradients(torch.zeros_like(x) if needs.x else None, d_state0, d_w, derivatives)

    def rest(
        self,
        x: Tensor,
        p: Packed,
        tape: Tape,
        before: Tensor | None,
        g: Derivative,
        d_x: Tensor | None,
        d_w: Sequence[Tensor | None],
        *,
        first: bool,
    ) -> None:
        """The products that torch computes, after the walk. `first`: nothing was written to d_x yet."""
        w, N, (GH, I), P = p.weights, x.shape[0], p.weights.w_ih.shape, p.P
        if d_x is not None and not ours(self.schedule, N, I, GH, packed=p.lasting):
            d_x.addmm_(g.d_wx, w.w_ih, beta=0 if first else 1)
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
                if d_w[1] is not None:
                    before = tape.before_all(0) if before is None else before
                    torch.mm(part.t(), before, out=d_w[1][row:end])
                if biases[1] is not None and biases[0] is not None and g.d_rh[0] is g.d_wx:
                    biases[1].copy_(biases[0])
                elif biases[1] is not None:
                    torch.sum(part, 0, out=biases[1][row:end])
            row = end
        if w.w_hr is not None and tape.raw is not None and g.d_projected is not None:
            d_w_hr = d_w[4 if w.b_ih is not None else 2]
            if d_w_hr is not None:
                torch.mm(g.d_projected.t(), tape.raw, out=d_w_hr)


def project_rows(x: Tensor, w: Weights, memory: Tensor) -> None:
    """W x + b, written to the gates of the tape."""
    to = matrix(memory, 0, x.shape[0], w.w_ih.shape[0])
    if w.b_ih is None:
        torch.mm(x, w.w_ih.t(), out=to)
    else:
        torch.addmm(w.b_ih, x, w.w_ih.t(), out=to)
