"""Kernels compiled for the CPU at hand: a layer, in all its directions, is one call forward and one back."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import pool
from ..kernels.addresses import of_direction, within_tapes
from ..kernels.program import Left
from ..kernels.schedule import DEFAULT, Schedule
from ..kernels.target import Form
from ..layout import Layout
from .base import Derivative, Gradients, Needs, Prepared, States, Weights
from .checks import check_alike, check_backward
from .copies import Copies
from .fused_forward import FusedForward
from .fused_walk import MOST_SETUPS
from .packed import Packed
from .padding import Padding
from .small import Sizes, SmallStack
from .tape import Room
from .way_back import WayBack, address, matrix, rows_of


class FusedEngine(FusedForward):
    name, about = "fused", "kernels compiled for this CPU, on torch's threads"

    def __init__(self, schedule: Schedule = DEFAULT) -> None:
        super().__init__(schedule)
        self.stacks: dict[tuple[Any, ...], SmallStack] = {}

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
        padding: Padding | None = None,
    ) -> Gradients:
        mine: Sequence[Packed] = ps  # type: ignore[assignment]
        p, D, N, B = mine[0], len(mine), layout.N, layout.B
        for q in mine:
            q.check_usable()
        I, P, size = x.shape[-1], p.P, x.element_size()
        check_backward(mine, x, kept, p.room(layout, dt).total, d_rows, d_finals, layout, padding)
        enters = leaves = False
        if padding is not None:
            enters, leaves, d_finals = padding.enters, padding.leaves and d_rows is not None, padding.sorted(d_finals)
        x, kept = x.contiguous(), [t.contiguous().resolve_neg() for t in kept]
        if N == 0:
            return self.nothing(mine, self.form(p, dt), x, d_finals, layout, needs)
        given, (d_rows, stride) = d_rows, rows_of(d_rows, x, D * P)
        wanted, needs_states = tuple([tuple(some) for some in needs.weights]), True in needs.states
        gathered = 0 if layout.is_dense else sum(some[1] for some in wanted)  # directions whose h before each step is
        options: dict[str, Any] = {"stride": stride, "needs_x": needs.x, "needs_states": needs_states, "needs": wanted}
        options["copies"] = counts = enters + leaves + gathered, int(enters and needs.x)
        setup = self.setup(True, layout, mine, dt, batch=B, **options)
        program, form, rooms = setup.program, setup.form, setup.rooms
        if padding is not None and program.left:  # torch computes with the rows
            given = padding.rows(d_rows) if leaves else given
            more: dict[str, Any] = {"needs": needs, "spend": spend, "dt": dt}
            return padding.gradients(self.backward(ps, padding.entering(x), kept, given, d_finals, layout, **more))
        copies = Copies(x, N * (enters * I * (1 + needs.x) + leaves * D * P + gathered * P))
        x_at, d_rows_at = x.data_ptr(), d_rows.data_ptr()
        d_x = pool.empty(x, *x.shape) if needs.x else None
        d_x_at = address(d_x)
        if padding is not None:
            if enters:
                x_at = copies.into_new(x_at, *padding.to_rows, I)
            if leaves:
                d_rows_at = copies.into_new(d_rows_at, *padding.to_rows, D * P)
            if enters and needs.x:
                d_x_at = copies.room(N, I)
                copies.out_of(d_x_at, address(d_x), *padding.to_padded, I)
        d_state0 = [pool.empty(x, D, B, width) for width in p.widths] if needs_states else []
        d_last = [None if d is None else d.contiguous() for d in d_finals]
        addresses = [*setup.lead, *[0 if d is None else d.data_ptr() for d in d_last]]
        addresses += [d.data_ptr() for d in d_state0] or [0] * form.S
        ways, d_weights, befores_at = [], [], []
        for d, q in enumerate(mine):
            way = WayBack(q, form, layout, kept[d] if spend else None, x)
            d_w = [pool.empty_like(t) if n else None for t, n in zip(q.weights.tensors, wanted[d], strict=True)]
            tape, before_at = kept[d].data_ptr(), 0
            if wanted[d][1] and not layout.is_dense:
                history = min(rooms[d].matrices["states", 0], rooms[d].matrices["initial", 0])
                index = layout.rows_before(q.reverse)
                before_at = copies.into_new(tape + history * size, index.data_ptr(), N, P)
            places = d_w[:4] if q.weights.b_ih is not None else [*d_w[:2], None, None]
            within = () if layout.is_dense else within_tapes(form.S, rooms[d].matrices, size, tape, way.gates_at)
            addresses += of_direction(
                x=x_at,
                rows=d_rows_at + d * P * size,
                d_x=d_x_at,
                tape=tape,
                d_tape=way.gates_at,
                before=before_at,
                d_projected=address(way.d_projected),
                weights=q.weights_at(),
                panels=q.panels_at(form, True),
                gradients=[0 if t is None else t.data_ptr() for t in places],
                params=q.params_at(),
                d_params=[t.data_ptr() for t in way.d_params],
                within=within,
            )
            ways.append(way)
            d_weights.append(d_w)
            befores_at.append(before_at)
        assert copies.counts == counts
        program.run([*addresses, *copies.before, *copies.after])
        if padding is not None:
            d_state0 = padding.unsorted(d_state0)
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
        for left in program.left:
            d, rows = left.direction, x.view(N, -1)
            before = copies.matrix(befores_at[d], N, P) if befores_at[d] else None
            compute(left, rows, kept[d], rooms[d], before, mine[d].weights, derivatives[d], d_x, d_weights[d])
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
