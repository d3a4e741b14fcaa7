"""Kernels compiled for the CPU at hand: a layer, in all its directions, is one call forward and one back."""

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from ..kernels import pool, threads
from ..kernels.addresses import of_direction, within_tapes
from ..kernels.layer import folds
from ..kernels.program import Left
from ..kernels.schedule import DEFAULT, Schedule
from ..kernels.target import Form
from ..layout import Layout
from .base import Derivative, Gradients, Needs, Prepared, States, Weights
from .checks import check_alike, check_backward, check_forward
from .fused_walk import MOST_SETUPS, FusedWalk, Setup, steps_without_tape
from .packed import Packed, packs_of
from .ready_call import MOST_READY_CALLS, ReadyCall
from .small import Sizes, SmallStack
from .tape import Room
from .way_back import WayBack, address, matrix, rows_of


class FusedEngine(FusedWalk):
    name, about = "fused", "kernels compiled for this CPU, on torch's threads"

    def __init__(self, schedule: Schedule = DEFAULT) -> None:
        super().__init__(schedule)
        self.stacks: dict[tuple[Any, ...], SmallStack] = {}

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
        key = None
        if not keep and mine[0].lasting and layout.batch_sizes is None:
            others = map(id, mine[1:])  # a ready call keeps them alive
            key = layout.T, layout.B, state0 is None, dt, threads.threads(), get_ident(), *others
            ready = mine[0].ready_calls.get(key)
            if ready is not None and ready.fits(x, state0):
                return ready.run(x, state0)
        x = x.contiguous()
        for q in mine:
            q.check_usable()
        check_forward(mine, x, state0, layout)
        p, D, B, N = mine[0], len(mine), layout.B, layout.N
        y = pool.empty(x, *x.shape[:-1], D * p.P, exact=True)
        finals = [pool.empty(x, D, B, width, exact=True) for width in p.widths]
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
        setup = self.forward_setup(mine, layout, dt, given is not None, D * p.P, B)
        kept = [pool.empty(x, room.total) for room in setup.rooms]
        addresses = self.launch(setup, mine, range(D), [0] * D, x, y, given, finals, kept, layout)
        if key is not None and addresses is not None and len(p.ready_calls) < MOST_READY_CALLS:
            p.ready_calls[key] = ReadyCall(setup.program, addresses, mine, x, y, finals, kept)
        return y, finals, kept if keep else []

    def forward_setup(
        self, ps: Sequence[Packed], layout: Layout, dt: float, stateful: bool, stride: int, batch: int
    ) -> Setup:
        p = ps[0]
        folded = folds(self.schedule, self.form(p, dt), batch, p.weights.w_ih.shape[1], p.H, p.P)
        options: dict[str, Any] = {"project": True, "stateful": stateful, "stride": stride}
        return self.setup(False, layout, ps, dt, folded=folded, batch=batch, **options)

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
            for mine in zip(*[layout.cuts(steps, p.reverse) for p in some], strict=True):
                chunk = layout.cut(*mine[0])
                setup = self.forward_setup(some, chunk, dt, begun, y.shape[-1], layout.B)
                memory = [pool.empty(x, room.total) for room in setup.rooms]
                first = [layout.rows(*cut).start for cut in mine]
                self.launch(setup, some, group, first, x, y, running if begun else None, running, memory, chunk)
                begun = True

    def launch(
        self,
        setup: Setup,
        ps: Sequence[Packed],
        of: range,
        first: Sequence[int],
        x: Tensor,
        y: Tensor,
        given: Sequence[Tensor] | None,
        finals: Sequence[Tensor],
        kept: Sequence[Tensor],
        layout: Layout,
    ) -> list[int] | None:
        """W x and the walk, for some directions (`of`) of a layer. Each begins at its `first` row of x and y.

        -> the addresses, if the call can be repeated as it is, because all weights are packed; else None
        """
        program, form, folded = setup.program, setup.form, setup.folded
        p, N, I, P, stride, size = ps[0], layout.N, x.shape[-1], ps[0].P, y.shape[-1], x.element_size()
        skipped = of[0] * finals[0].shape[1] * size  # bytes per column of a state, before the first direction
        addresses = [*setup.lead]
        for states in (given, finals):
            for k, width in enumerate(p.widths):
                addresses.append(0 if states is None else states[k].data_ptr() + skipped * width)
        x_at, y_at = x.data_ptr(), y.data_ptr()
        for left in program.left:
            i = left.direction  # of these, not of the layer
            project_rows(x.view(-1, I)[first[i] : first[i] + N], ps[i].weights, kept[i])
        for q, d, row, memory, room in zip(ps, of, first, kept, setup.rooms, strict=True):
            tape = memory.data_ptr()
            addresses += of_direction(
                x=x_at + row * I * size,
                rows=y_at + (row * stride + d * P) * size,
                tape=tape,
                weights=q.weights_at(),
                panels=q.panels_at(form, False, folded),
                params=q.params_at(),
                d_params=[0] * form.K,
                within=() if layout.is_dense else within_tapes(form.S, room.matrices, size, tape),
            )
        program.run(addresses)
        if not p.lasting:
            return None
        was_ready = all(packs_of(ps, False, folded)[: 2 if folded else 3])
        for q in ps:
            q.mark_ready(False, with_w=not program.left and not folded, folded=folded)
        return addresses if was_ready and not program.left else None

    # --- a small stack of layers
    def small(self, sizes: Sizes, weights: Sequence[Tensor]) -> SmallStack | None:
        """What runs these layers in one go, if the launch can compute all of their products. weights: of all layers and
        directions.
        """
        key = (sizes, *[t.shape for t in weights])
        found = self.stacks.get(key)
        if found is None:
            each = 4 if sizes.bias else 2
            ps = []
            for k in range(0, len(weights), each):
                w = Weights.of(sizes.cell, weights[k : k + each], bias=sizes.bias)
                ps.append(self.prepare(sizes.cell, w, k // each % sizes.D == 1))
            check_alike(ps[: sizes.D])
            if len(self.stacks) >= MOST_SETUPS:
                self.stacks.clear()
            found = self.stacks[key] = SmallStack(sizes, self.schedule, self.form(ps[0], 1), ps)
        return found if found.is_whole else None

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
        p, D, N, B = mine[0], len(mine), layout.N, layout.B
        for q in mine:
            q.check_usable()
        check_backward(mine, x, kept, p.room(layout, dt).total, d_rows, d_finals, layout)
        x, kept = x.contiguous(), [t.contiguous() for t in kept]
        if N == 0:
            return self.nothing(mine, self.form(p, dt), x, d_finals, layout, needs)
        P, size, (d_rows, stride) = p.P, x.element_size(), rows_of(d_rows, x, D * p.P)
        wanted, needs_states = tuple([tuple(some) for some in needs.weights]), True in needs.states

        options: dict[str, Any] = {"stride": stride, "needs_x": needs.x, "needs_states": needs_states, "needs": wanted}
        setup = self.setup(True, layout, mine, dt, batch=B, **options)
        program, form, rooms = setup.program, setup.form, setup.rooms
        d_x = pool.empty_like(x) if needs.x else None
        d_state0 = [pool.empty(x, D, B, width) for width in p.widths] if needs_states else []
        d_last = [None if d is None else d.contiguous() for d in d_finals]
        addresses = [*setup.lead, *[0 if d is None else d.data_ptr() for d in d_last]]
        addresses += [d.data_ptr() for d in d_state0] or [0] * form.S
        x_at, d_rows_at, d_x_at = x.data_ptr(), d_rows.data_ptr(), address(d_x)
        ways, d_weights, befores = [], [], []
        for d, q in enumerate(mine):
            way = WayBack(q, form, layout, kept[d] if spend else None, x)
            d_w = [pool.empty_like(t) if n else None for t, n in zip(q.weights.tensors, wanted[d], strict=True)]
            is_gathered = wanted[d][1] and not layout.is_dense
            before = rooms[d].tape(kept[d], layout).before_all(0) if is_gathered else None
            places = d_w[:4] if q.weights.b_ih is not None else [*d_w[:2], None, None]
            tape = kept[d].data_ptr()
            ragged = () if layout.is_dense else within_tapes(form.S, rooms[d].matrices, size, tape, way.gates_at)
            addresses += of_direction(
                x=x_at,
                rows=d_rows_at + d * P * size,
                d_x=d_x_at,
                tape=tape,
                d_tape=way.gates_at,
                before=address(before),
                d_projected=address(way.d_projected),
                weights=q.weights_at(),
                panels=q.panels_at(form, True),
                gradients=[0 if t is None else t.data_ptr() for t in places],
                params=q.params_at(),
                d_params=[t.data_ptr() for t in way.d_params],
                within=ragged,
            )
            ways.append(way)
            d_weights.append(d_w)
            befores.append(before)
        program.run(addresses)
        if p.lasting:
            for q in mine:
                q.mark_ready(True, with_w=needs.x and not any(left.name == "d_x" for left in program.left))
        if form.K:
            for way, d_w in zip(ways, d_weights, strict=True):
                for total, some in zip(way.d_params, d_w[-form.K :], strict=True):
                    if some is not None:
                        torch.sum(total, 0, out=some)
        if not program.left and all(map(any, wanted)):  # else the caller or torch computes some gradients
            return Gradients(d_x, d_state0, d_weights, [])
        derivatives = [way.derivative() for way in ways]
        rows = x.view(N, -1)
        for left in program.left:
            d = left.direction
            compute(left, rows, kept[d], rooms[d], befores[d], mine[d].weights, derivatives[d], d_x, d_weights[d])
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


def project_rows(x: Tensor, w: Weights, memory: Tensor) -> None:
    """W x + b, written to the gates of the tape."""
    to = matrix(memory, 0, x.shape[0], w.w_ih.shape[0])
    if w.b_ih is None:
        torch.mm(x, w.w_ih.t(), out=to)
    else:
        torch.addmm(w.b_ih, x, w.w_ih.t(), out=to)


def compute(
    left: Left,
    x: Tensor,
    memory: Tensor,
    room: Room,
    before: Tensor | None,
    w: Weights,
    g: Derivative,
    d_x: Tensor | None,
    d_w: Sequence[Any],
) -> None:
    """One of the gradients that are left to torch. memory: of the tape."""
    N, name, part = x.shape[0], left.name, g.d_rh[left.run]
    if name == "d_x" and d_x is not None:
        d_x.view(x.shape).addmm_(g.d_wx, w.w_ih, beta=0 if left.direction == 0 else 1)
        return
    to = d_w[w.names.index(name)]
    if name == "w_ih":
        torch.mm(g.d_wx.t(), x, out=to)
    elif name == "b_ih":
        torch.sum(g.d_wx, 0, out=to)
    elif name == "w_hh":
        before = matrix(memory, room.matrices["history", 0], N, room.P) if before is None else before
        torch.mm(part.t(), before, out=to[left.first : left.end])
    elif name == "b_hh" and part is g.d_wx and d_w[2] is not None:  # both biases have the same gradient
        to.copy_(d_w[2])
    elif name == "b_hh":
        torch.sum(part, 0, out=to[left.first : left.end])
    elif name == "w_hr" and g.d_projected is not None:
        torch.mm(g.d_projected.t(), matrix(memory, room.matrices["raw", 0], N, room.H), out=to)
