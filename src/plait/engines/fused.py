"""Kernels compiled for the CPU at hand: a plan runs a layer, or a stack of them, in one launch forward and one back."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cells import Cell
from ..cells.trace import why_untraceable
from ..errors import PlaitError
from ..kernels import pool, records
from ..kernels.emit.target import Form
from ..kernels.launch import costs, threads
from ..kernels.launch.key import Key
from ..kernels.launch.schedule import DEFAULT, Schedule
from ..layout import Layout
from .base import Derivative, Engine, Gradients, Needs, Prepared, States, Weights, check_source
from .checks import check_alike, check_backward, check_forward, check_recur, check_recur_vjp
from .packed import Packed, as_read
from .plan import Plan, address, rows_of
from .stretches import Stretches, tensors_of
from .tape import Tape

MOST_PLANS = 1024
WITHOUT_TAPE = 1 << 22  # bytes of gates that are in memory at a time if no tape is kept


class FusedEngine(Engine):
    name, about = "fused", "kernels compiled for this CPU, on torch's threads"

    def __init__(self, schedule: Schedule = DEFAULT) -> None:
        self.schedule, self.machine = schedule, schedule.machine()
        self.forms: dict[tuple[Any, ...], Form] = {}
        self.plans: dict[Key, Plan] = {}

    def why_not(self, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"fused runs on the CPU, the layer is on {device}: use engine='torch' there."
        if dtype not in (torch.float32, torch.float64):
            return f"fused runs float32 and float64, the layer is {dtype}: convert it, or use engine='torch'."
        room = records.MOST_GATES, records.MOST_STATES, records.MOST_PARAMS
        found = len(cell.gates), len(cell.states), len(cell.params)
        if any(n > most for n, most in zip(found, room, strict=True)):
            has = "cell {} has {} gates, {} states and {} vectors".format(cell.name, *found)
            return "fused has room for {} gates, {} states and {} vectors, ".format(*room) + f"{has}: use 'torch'."
        return why_untraceable(cell)

    def prepare(
        self, cell: type[Cell], w: Weights, reverse: bool = False, *, lasting: bool = True, rounded: bool = False
    ) -> Packed:
        return Packed(cell, w, reverse, lasting, rounded)

    # --- plans
    def plan(self, key: Key) -> Plan:
        found = self.plans.get(key)
        if found is None:
            if len(self.plans) >= MOST_PLANS:
                oldest, *_ = self.plans  # a list at once: other threads add plans meanwhile
                self.plans.pop(oldest, None)
            form = self.form(key)
            plain = self.form(key._replace(rounded=False))  # costs are of numbers that are not rounded
            found = self.plans[key] = Plan(key, self.schedule, form, costs.of_this_process(plain))
        return found

    def form(self, key: Key) -> Form:
        """One object for each, because kernels are found by it."""
        name = (key.cell, key.dt, key.dtype, key.projected, key.sourced, key.rounded)
        form = self.forms.get(name)
        if form is None:
            target = self.schedule.target(key.dtype == torch.float64, self.machine, rounded=key.rounded)
            form = self.forms[name] = Form(key.cell, key.dt, target, key.projected, key.sourced)
        return form

    def key(self, ps: Sequence[Packed], layout: Layout, *, stateful: bool, **more: Any) -> Key:
        p, w, ragged = ps[0], ps[0].weights, not layout.is_dense
        sizes = 0 if ragged else layout.T, layout.B, w.w_ih.shape[1], p.H, p.P, 1
        has = w.b_ih is not None, w.w_hr is not None, stateful
        reverse = tuple(q.reverse for q in ps)
        more |= {"pinned": p.lasting, "rounded": p.rounded}
        return Key(p.cell, w.w_ih.dtype, ragged, *sizes, reverse, *has, threads.threads(), **more)

    def usable(self, ps: Sequence[Prepared]) -> Sequence[Packed]:
        mine: Sequence[Packed] = ps  # type: ignore[assignment]  # an engine is given what it has prepared itself
        for q in mine:
            q.check_usable()
        check_alike(mine)
        return mine

    # --- a layer
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
        mine = self.usable(ps)
        check_forward(mine, x, state0, layout)
        x, given = x.contiguous(), [s.contiguous() for s in state0 or ()]
        p = mine[0]
        if layout.N == 0:
            return super().forward(unrounded(mine), x, state0, layout, keep=keep, dt=dt)
        steps = layout.T if keep else steps_without_tape(layout, p.weights.w_ih.shape[0], x.element_size())
        if steps < layout.T:
            lasting = [q if q.lasting else Packed(q.cell, q.weights, q.reverse, True, q.rounded) for q in mine]
            key = self.key(lasting, layout, stateful=bool(given), dt=dt)
            return *Stretches(self.plan, key, lasting, layout, steps).forward(x, given), []
        plan = self.plan(self.key(mine, layout, stateful=bool(given), dt=dt))
        y, finals, tapes = plan.forward(x, given, tensors_of(mine), layout, pins=mine if p.lasting else ())
        return y, finals, tapes if keep else []

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
        mine = self.usable(ps)
        check_backward(mine, x, kept, d_rows, d_finals, layout)
        x, *tapes = as_read((x, *kept))
        if layout.N == 0:
            ps = unrounded(mine)
            return super().backward(ps, x, tapes, d_rows, d_finals, layout, needs=needs, spend=spend, dt=dt)
        plan = self.plan(self.key(mine, layout, stateful=True, dt=dt))
        wanted = [n for some in needs.weights for n in some]
        states = [True in needs.states] * len(d_finals)
        pins, wants = mine if mine[0].lasting else (), (needs.x, *states, *wanted)
        d_outputs = d_rows, *d_finals
        back = plan.backward(x, tensors_of(mine), tapes, d_outputs, layout, wants, spend=spend, pins=pins)
        each = len(mine[0].tensors)
        weights = [list(back.weights[k : k + each]) for k in range(0, len(wanted), each)]
        is_all = all(map(all, needs.weights)) and len(back.variant.segments) == 1
        derivatives = [] if is_all else [back.variant.torch.derivative(back.frame, d) for d in range(len(mine))]
        return Gradients(back.x, back.states, weights, derivatives)

    # --- one direction, from given wx
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
        (q,) = self.usable([p])
        check_not_rounded(q)
        check_source(source, keep)
        check_recur(p, wx, state0, layout, source, out)
        wx, S = wx.contiguous(), len(p.cell.states)
        last = [wx.new_zeros(layout.B, width) for width in p.widths]
        if state0 is not None:
            for final, state in zip(last, state0, strict=True):
                final.copy_(state)
        if layout.N == 0:
            tape = blank_tape(p, wx, layout, dt)
            for initial, state in zip(tape.initial, last, strict=True):
                initial.copy_(state)
            return last, tape if keep else None
        out = out or [None] * S
        added = None if source is None else [t.contiguous() for t in source]
        steps = layout.T if keep else steps_without_tape(layout, wx.shape[1], wx.element_size())
        stateful = state0 is not None
        h = out[0] if out[0] is not None and out[0].stride(1) == 1 else None  # the kernel writes h there by itself
        targets = [None if h is not None else out[0], *out[1:]]
        for cut in layout.cuts(steps, p.reverse):
            chunk, rows = layout.cut(*cut), layout.rows(*cut)
            tape = blank_tape(p, wx, chunk, dt)
            to = tape.states[0] if h is None else h[rows]
            self.walk(q, wx[rows], last, tape, to, stateful=stateful, source=added and [t[rows] for t in added])
            stateful = True
            for state, target in zip(tape.states, targets, strict=True):
                if target is not None:
                    target[rows] = state
        return last, tape if keep else None

    def walk(
        self,
        p: Packed,
        wx: Tensor,
        last: Sequence[Tensor],
        tape: Tape,
        out: Tensor,
        *,
        stateful: bool,
        source: Sequence[Tensor] | None,
    ) -> None:
        """From the states in `last`, or zeros. The new last states replace those in `last`."""
        key = self.key([p], tape.layout, stateful=stateful, dt=tape.dt, walk=True, sourced=source is not None)
        found = {"rows": out.data_ptr(), "wx": wx.data_ptr(), **matrices_of(tape)}
        for k, end in enumerate(last):
            found |= {f"last.{k}": end.data_ptr(), f"given.{k}": end.data_ptr() if stateful else 0}
        found |= {f"source.{k}": t.data_ptr() for k, t in enumerate(source or ())}
        self.plan(key).walk(found, p, tape.layout, out.stride(0))

    def recur_vjp(
        self, p: Prepared, tape: Tape, d_states: States | None, d_last: States, *, spend: bool = False
    ) -> tuple[Derivative, list[Tensor]]:
        (q,), layout, like = self.usable([p]), tape.layout, tape.gates
        check_not_rounded(q)
        given = list(d_states or [None] * len(p.cell.states))
        check_recur_vjp(p, tape, given, d_last)
        is_sourced = any(d is not None for d in given[1:])
        key = self.key([q], layout, stateful=True, dt=tape.dt, walk=True, sourced=is_sourced)
        form, N = self.form(key), layout.N
        d_state0 = [like.new_zeros(*s.shape) for s in tape.initial]
        d_gates, d_extra = (t if spend else pool.empty(like, *t.shape) for t in (tape.gates, tape.extra))
        d_projected = pool.empty(like, N, p.P) if form.projected else None
        d_params = [like.new_empty(layout.B, p.H) for _ in range(form.K)]
        if N == 0:
            for d, final in zip(d_state0, d_last, strict=True):
                d.zero_() if final is None else d.copy_(final)
            for total in d_params:
                total.zero_()
        else:
            d_rows, stride = rows_of(given[0], like, p.P)
            source = [d_rows, *given[1:]] if is_sourced else []
            source = [
                like.new_zeros(s.shape) if d is None else d.contiguous()
                for d, s in zip(source, tape.states, strict=False)
            ]
            ends = [None if d is None else d.contiguous() for d in d_last]
            found = {"rows": d_rows.data_ptr(), "d_projected": address(d_projected), **matrices_of(tape)}
            found |= {"d_gates": d_gates.data_ptr(), "d_extra": d_extra.data_ptr()}
            named: dict[str, Sequence[Any]] = {"given": ends, "last": d_state0, "source": source, "d_params": d_params}
            found |= {f"{name}.{k}": address(t) for name, some in named.items() for k, t in enumerate(some)}
            self.plan(key).walk(found, q, layout, stride, back=True)
        places, H = {"gates": d_gates, "extra": d_extra}, p.H
        d_rh = [places[name][:, first * H : (first + count) * H] for name, first, count in form.runs]
        d_rh = [d_gates] if all(form.trace.shared) else d_rh
        return Derivative(d_gates, d_rh, d_projected, [t.sum(0) for t in d_params]), d_state0

    def add_mm(self, total: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return total.addmm_(a, b)


def unrounded(ps: Sequence[Packed]) -> Sequence[Packed]:
    """For batches without rows."""
    return [Packed(p.cell, p.weights, p.reverse, p.lasting) for p in ps] if ps[0].rounded else ps


def check_not_rounded(p: Packed) -> None:
    if p.rounded:
        raise PlaitError("a walk from given W x is in float32: prepare the weights with rounded=False.")


def blank_tape(p: Prepared, like: Tensor, layout: Layout, dt: float) -> Tape:
    room = p.room(layout, dt)
    return room.tape(pool.empty(like, room.total), layout)


def matrices_of(tape: Tape) -> dict[str, int]:
    """The bindings of its matrices."""
    found = {"gates": tape.gates.data_ptr(), "extra": tape.extra.data_ptr(), "raw": address(tape.raw)}
    for name, matrices in (("states", tape.states), ("old", tape.path), ("initial", tape.initial)):
        found |= {f"{name}.{k}": t.data_ptr() for k, t in enumerate(matrices)}
    return found


def steps_without_tape(layout: Layout, gates: int, size: int) -> int:
    """How many steps at a time, if nothing is kept. gates: numbers of a row; size: bytes of one."""
    return max(1, WITHOUT_TAPE // (layout.B * gates * size))
