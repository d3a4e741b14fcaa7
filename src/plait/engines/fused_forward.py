"""Compiled kernels: all directions of a layer, forward."""

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from ..kernels import pool, threads
from ..kernels.addresses import of_direction, within_tapes
from ..kernels.choices import folds
from ..kernels.layer import NO_COPIES
from ..layout import Layout
from .base import Prepared, Weights
from .checks import check_forward
from .copies import Copies
from .fused_walk import FusedWalk, Setup, steps_without_tape
from .packed import Packed, packs_of
from .padding import Padding
from .ready_call import MOST_READY_CALLS, ReadyCall
from .way_back import matrix


class FusedForward(FusedWalk):
    def forward(
        self,
        ps: Sequence[Prepared],
        x: Tensor,
        state0: Sequence[Tensor] | None,
        layout: Layout,
        *,
        keep: bool = True,
        dt: float = 1,
        padding: Padding | None = None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        mine: Sequence[Packed] = ps  # type: ignore[assignment]  # an engine is given what it has prepared itself
        if padding is not None:
            return self.forward_padded(mine, x, state0, layout, padding, keep=keep, dt=dt)
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

    def forward_padded(
        self,
        ps: Sequence[Packed],
        x: Tensor,
        state0: Sequence[Tensor] | None,
        layout: Layout,
        padding: Padding,
        *,
        keep: bool,
        dt: float,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The launch copies the rows, unless torch computes W x before, or nothing is kept and there are many."""
        for q in ps:
            q.check_usable()
        check_forward(ps, x, state0, layout, padding)
        p, D, B, N, I, size = ps[0], len(ps), layout.B, layout.N, x.shape[-1], x.element_size()
        enters, leaves, wide = padding.enters, padding.leaves, D * p.P
        given = None if state0 is None else padding.sorted(state0)
        setup, counts = None, (int(enters), leaves + len(p.widths))
        if keep or steps_without_tape(layout, p.weights.w_ih.shape[0], size) >= layout.T:
            setup = self.forward_setup(ps, layout, dt, given is not None, wide, B, counts)
        if setup is None or setup.program.left:
            y, finals, kept = self.forward(ps, padding.entering(x), given, layout, keep=keep, dt=dt)
            return padding.leaving(y), padding.unsorted(finals), kept
        x = x.contiguous()
        finals = [pool.empty(x, D, B, width, exact=True) for width in p.widths]
        y = pool.empty(x, *padding.of_output(), wide, exact=True)
        kept = [pool.empty(x, room.total) for room in setup.rooms]
        copies = Copies(x, N * (enters * I + leaves * wide) + D * B * sum(p.widths))
        x_at, y_at, last_at = x.data_ptr(), y.data_ptr(), []
        if enters:
            x_at = copies.into_new(x_at, *padding.to_rows, I)
        if leaves:
            y_at = copies.room(N, wide)
            copies.out_of(y_at, y.data_ptr(), *padding.to_padded, wide)
        for final, width in zip(finals, p.widths, strict=True):
            last_at.append(copies.room(D * B, width))
            copies.out_of(last_at[-1], final.data_ptr(), padding.to_states, D * B, width)
        assert copies.counts == counts
        given_at = [0] * len(finals) if given is None else [s.data_ptr() for s in given]
        ys_at = [y_at + d * p.P * size for d in range(D)]
        self.walk(setup, ps, [*setup.lead, *given_at, *last_at], [x_at] * D, ys_at, kept, copies)
        return y, finals, kept if keep else []

    def forward_setup(
        self,
        ps: Sequence[Packed],
        layout: Layout,
        dt: float,
        stateful: bool,
        stride: int,
        batch: int,
        copies: tuple[int, int] = NO_COPIES,
    ) -> Setup:
        p = ps[0]
        folded = folds(self.schedule, self.form(p, dt), batch, p.weights.w_ih.shape[1], p.H, p.P)
        options: dict[str, Any] = {"project": True, "stateful": stateful, "stride": stride, "copies": copies}
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
        p, N, I, P, stride, size = ps[0], layout.N, x.shape[-1], ps[0].P, y.shape[-1], x.element_size()
        skipped = of[0] * finals[0].shape[1] * size  # bytes per column of a state, before the first direction
        addresses = [*setup.lead]
        for states in (given, finals):
            for k, width in enumerate(p.widths):
                addresses.append(0 if states is None else states[k].data_ptr() + skipped * width)
        for left in setup.program.left:
            i = left.direction  # of these, not of the layer
            project_rows(x.view(-1, I)[first[i] : first[i] + N], ps[i].weights, kept[i])
        xs_at = [x.data_ptr() + row * I * size for row in first]
        ys_at = [y.data_ptr() + (row * stride + d * P) * size for d, row in zip(of, first, strict=True)]
        return self.walk(setup, ps, addresses, xs_at, ys_at, kept)

    def walk(
        self,
        setup: Setup,
        ps: Sequence[Packed],
        addresses: list[int],
        xs_at: Sequence[int],
        ys_at: Sequence[int],
        kept: Sequence[Tensor],
        copies: Copies | None = None,
    ) -> list[int] | None:
        """All directions from the addresses of their first rows. addresses: those that come before the directions'

        -> the addresses, as `launch`
        """
        program, form, folded = setup.program, setup.form, setup.folded
        for q, x_at, y_at, memory, room in zip(ps, xs_at, ys_at, kept, setup.rooms, strict=True):
            tape = memory.data_ptr()
            addresses += of_direction(
                x=x_at,
                rows=y_at,
                tape=tape,
                weights=q.weights_at(),
                panels=q.panels_at(form, False, folded),
                params=q.params_at(),
                d_params=[0] * form.K,
                within=within_tapes(form.S, room.matrices, memory.itemsize, tape) if setup.is_ragged else (),
            )
        program.run(addresses if copies is None else [*addresses, *copies.before, *copies.after])
        if not ps[0].lasting:
            return None
        was_ready = all(packs_of(ps, False, folded)[: 2 if folded else 3])
        for q in ps:
            q.mark_ready(False, with_w=not program.left and not folded, folded=folded)
        return addresses if was_ready and not program.left else None


def project_rows(x: Tensor, w: Weights, memory: Tensor) -> None:
    """W x + b, written to the gates of the tape."""
    to = matrix(memory, 0, x.shape[0], w.w_ih.shape[0])
    if w.b_ih is None:
        torch.mm(x, w.w_ih.t(), out=to)
    else:
        torch.addmm(w.b_ih, x, w.w_ih.t(), out=to)
