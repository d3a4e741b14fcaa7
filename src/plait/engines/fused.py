"""Kernels compiled for the CPU at hand: a layer, in all its directions, is one call forward and one back."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..cells import Cell
from ..cells.trace import why_untraceable
from ..kernels import pool, records, threads
from ..kernels.addresses import OF_DIRECTION, Direction, OfLayer, OfWalk, Table
from ..kernels.layer import Layer, Sizes, ours
from ..kernels.program import Program
from ..kernels.schedule import DEFAULT, Schedule
from ..kernels.target import Form
from ..layout import Layout
from .base import Derivative, Engine, Gradients, Needs, Prepared, States, Weights, check_source
from .checks import check_backward, check_forward, check_recur, check_recur_vjp
from .packed import Packed
from .shot import MOST_SHOTS, Shot
from .tape import Room, Tape

MOST_PROGRAMS = 1024
WORTH_A_TEAM = 1 << 19  # multiplications, some ten microseconds: if there are fewer, one thread works alone
WITHOUT_TAPE = 1 << 22  # bytes of gates that are in memory at a time if no tape is kept


known = lru_cache(MOST_PROGRAMS)(Room)  # not for the symbolic sizes of torch.compile


class FusedEngine(Engine):
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
        room = records.MOST_GATES, records.MOST_STATES, records.MOST_PARAMS
        found = len(cell.gates), len(cell.states), len(cell.params)
        if any(n > most for n, most in zip(found, room, strict=True)):
            has = "cell {} has {} gates, {} states and {} vectors".format(cell.name, *found)
            return "fused has room for {} gates, {} states and {} vectors, ".format(*room) + f"{has}: use 'torch'."
        return why_untraceable(cell)

    def prepare(self, cell: type[Cell], w: Weights, reverse: bool = False, *, lasting: bool = True) -> Packed:
        return Packed(cell, w, reverse, lasting)

    def form(self, p: Prepared, dt: float, sourced: bool = False) -> Form:
        key = (p.cell, dt, p.weights.w_hh.dtype, p.weights.w_hr is not None, sourced)
        form = self.forms.get(key)
        if form is None:
            cell, _, dtype, projected, _ = key
            form = self.forms[key] = Form(cell, dt, self.schedule.target(dtype == torch.float64), projected, sourced)
        return form

    def program(
        self,
        make: Callable[[Layer], Program],
        work: int,
        layout: Layout,
        ps: Sequence[Packed],
        form: Form,
        way: str,
        *more: Any,
    ) -> Program:
        """Programs of dense batches are stored by shape. A ragged layout seldom comes again: its programs are stored
        with it, for the layers of one stack. `work`: multiplications. `way`: forward or backward, of a layer or a walk.
        """
        alone = work < WORTH_A_TEAM or not self.schedule.parallel
        count, p = 1 if alone else threads.threads(), ps[0]
        reverse, I = tuple([q.reverse for q in ps]), p.weights.w_ih.shape[1]
        sizes = Sizes(form, I, p.H, p.P, p.weights.b_ih is not None, reverse, p.packs(way.endswith("backward")))
        programs = self.programs if layout.batch_sizes is None else layout.cache
        key = (self, layout.T, layout.B, count, sizes, way, *more)
        program: Program | None = programs.get(key)
        if program is None:
            if len(self.programs) >= MOST_PROGRAMS:
                self.programs.clear()
            table: Table = OfWalk(form)
            if way in ("forward", "backward"):
                batch = more[-1]
                rooms = [room_of(q, layout, form.dt) for q in ps]
                table = OfLayer(form, len(ps), batch, p.widths, [room.matrices for room in rooms])
            program = programs[key] = make(Layer(self.schedule, layout, count, sizes, table))
        return program

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
            aim = layout.T, layout.B, state0 is None, dt, threads.threads()
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
        steps = layout.T if keep else max(1, WITHOUT_TAPE // (B * p.weights.w_ih.shape[0] * x.element_size()))
        if steps < layout.T:
            for k, final in enumerate(finals):
                final.zero_() if given is None else final.copy_(given[k])
            self.in_chunks(mine, x, y, finals, layout, dt, steps, stateful=given is not None)
            return y, finals, []
        kept = [pool.empty(x, room_of(q, layout, dt).total) for q in mine]
        called = self.launch(mine, range(D), [0] * D, x, y, given, finals, kept, layout, dt)
        if aim is not None and called is not None and len(p.shots) < MOST_SHOTS:
            p.shots[aim] = Shot(*called, x, y, finals, kept, given is not None)
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
        was_ready = all(p.packs(False))
        for q in ps:
            q.done(False, with_w=project)
        return (program, addresses, len(OF_DIRECTION) + 2 * form.K) if was_ready else None

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
        derivatives = []
        for d, (way, d_w) in enumerate(zip(ways, d_weights, strict=True)):
            if form.K:
                for total, some in zip(way.d_params, d_w[-form.K :], strict=True):
                    if some is not None:
                        torch.sum(total, 0, out=some)
            if not program.complete or not any(wanted[d]):
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
                if biases[1] is not None and biases[0] is not None and len(g.d_rh) == 1:
                    biases[1].copy_(biases[0])
                elif biases[1] is not None:
                    torch.sum(part, 0, out=biases[1][row:end])
            row = end
        if w.w_hr is not None and tape.raw is not None and g.d_projected is not None:
            d_w_hr = d_w[4 if w.b_ih is not None else 2]
            if d_w_hr is not None:
                torch.mm(g.d_projected.t(), tape.raw, out=d_w_hr)

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
        check_source(source, keep)
        check_recur(p, wx, state0, layout, source, out)
        wx, N, S = wx.contiguous(), layout.N, len(p.cell.states)
        last = [wx.new_zeros(layout.B, width) for width in p.widths]
        if state0 is not None:
            for final, state in zip(last, state0, strict=True):
                final.copy_(state)
        if N == 0:
            room = p.room(layout, dt)
            tape = room.tape(wx.new_empty(room.total), layout)
            for initial, state in zip(tape.initial, last, strict=True):
                initial.copy_(state)
            return last, tape if keep else None
        form, out = self.form(p, dt, source is not None), out or [None] * S
        added = None if source is None else [t.contiguous() for t in source]
        steps = layout.T if keep else max(1, WITHOUT_TAPE // (layout.B * wx.shape[1] * wx.element_size()))
        begun, made = state0 is not None, None
        for t0, t1 in layout.cuts(steps):
            mine = (layout.T - t1, layout.T - t0) if p.reverse else (t0, t1)
            chunk, rows = layout.cut(*mine), layout.rows(*mine)
            memory = pool.empty(wx, room_of(p, chunk, dt).total)
            to = None if out[0] is None else out[0][rows]
            self.recur_rows(p, form, wx[rows], last, begun, memory, chunk, dt, to, added and [t[rows] for t in added])
            begun = True
            if keep or any(t is not None for t in out[1:]):
                made = room_of(p, chunk, dt).tape(memory, chunk)
                for state, target in zip(made.states[1:], out[1:], strict=True):
                    if target is not None:
                        target[rows] = state
        return last, made if keep else None

    def recur_rows(
        self,
        p: Prepared,
        form: Form,
        wx: Tensor,
        last: Sequence[Tensor],
        stateful: bool,
        memory: Tensor,
        layout: Layout,
        dt: float,
        out: Tensor | None,
        source: Sequence[Tensor] | None,
    ) -> None:
        """From the states in `last`, or zeros if it is not stateful. The new last states replace those in `last`."""
        q: Packed = p  # type: ignore[assignment]
        stride = p.P if out is None else out.stride(0)
        program = self.program(
            lambda layer: layer.forward(project=False, stateful=stateful, stride=stride),
            layout.N * wx.shape[1] * p.P,
            layout,
            [q],
            form,
            "walk forward",
            *(stateful, stride),
        )
        start, size, ends = memory.data_ptr(), memory.element_size(), [t.data_ptr() for t in last]
        matrices = room_of(p, layout, dt).matrices

        def at(name: str) -> list[int]:
            return [start + size * matrices[name, k] for k in range(form.S)]

        direction = Direction(
            rows=at("states")[0] if out is None else out.data_ptr(),
            wx=wx.data_ptr(),
            gates=start,
            extra=start + size * matrices["extra", 0],
            raw=start + size * matrices["raw", 0],
            states=at("states"),
            initial=at("initial"),
            given=ends if stateful else (),
            last=ends,
            source=() if source is None else [t.data_ptr() for t in source],
            **weights_at(q, form, back=False),
        )
        program.run([address(layout.offsets), *direction.flat(form)])
        q.done(False, with_w=False)

    def recur_vjp(
        self, p: Prepared, tape: Tape, d_states: States | None, d_last: States, *, spend: bool = False
    ) -> tuple[Derivative, list[Tensor]]:
        q: Packed = p  # type: ignore[assignment]
        layout, S = tape.layout, len(p.cell.states)
        given = list(d_states or [None] * S)
        check_recur_vjp(p, tape, given, d_last)
        is_sourced = any(d is not None for d in given[1:])
        form, like = self.form(p, tape.dt, is_sourced), tape.gates
        d_state0 = [like.new_zeros(*s.shape) for s in tape.initial]
        way = WayBack(p, form, layout, tape if spend else None, like)
        if layout.N == 0:
            for d, final in zip(d_state0, d_last, strict=True):
                d.zero_() if final is None else d.copy_(final)
            return way.derivative(), d_state0
        d_rows, stride = rows_of(given[0], like, p.P)
        source = [
            like.new_zeros(*s.shape) if d is None else d.contiguous() for d, s in zip(given, tape.states, strict=True)
        ]
        program = self.program(
            lambda layer: layer.backward(stride=stride, needs_x=False, needs_states=True, needs=[NO_WEIGHTS]),
            layout.N * like.shape[1] * p.P,
            layout,
            [q],
            form,
            "walk backward",
            stride,
        )
        ends = [None if d is None else d.contiguous() for d in d_last]
        direction = Direction(
            rows=d_rows.data_ptr(),
            d_projected=address(way.d_projected),
            gates=tape.gates.data_ptr(),
            extra=tape.extra.data_ptr(),
            raw=address(tape.raw),
            d_gates=way.gates_at,
            d_extra=way.extra_at,
            states=[t.data_ptr() for t in tape.states],
            old=[t.data_ptr() for t in tape.path],
            initial=[t.data_ptr() for t in tape.initial],
            given=[address(t) for t in ends],
            last=[t.data_ptr() for t in d_state0],
            source=[t.data_ptr() for t in source] if is_sourced else (),
            d_params=[t.data_ptr() for t in way.d_params],
            **weights_at(q, form, back=True),
        )
        program.run([address(layout.offsets), *direction.flat(form)])
        q.done(True, with_w=False)
        return way.derivative(), d_state0

    def weight_gradients(
        self,
        p: Prepared,
        x: Tensor,
        tape: Tape,
        g: Derivative,
        wanted: Sequence[bool] | None = None,
        into: Sequence[Tensor | None] | None = None,
    ) -> list[Tensor | None]:
        """Products are added to their targets directly, without a matrix in between."""
        w, before = p.weights, tape.before_all(0)
        result = [
            None if wanted is not None and not wanted[k] else torch.zeros_like(t) if into is None else into[k]
            for k, t in enumerate(w.tensors)
        ]
        if result[0] is not None:
            result[0].addmm_(g.d_wx.t(), x)
        row, bias = 0, w.b_ih is not None
        if bias and result[2] is not None:
            result[2].add_(g.d_wx.sum(0))
        for part in g.d_rh:
            end = row + part.shape[1]
            if result[1] is not None:
                result[1][row:end].addmm_(part.t(), before)
            if bias and result[3] is not None:
                result[3][row:end].add_(part.sum(0))
            row = end
        rest = result[4 if bias else 2 :]
        if g.d_projected is not None and tape.raw is not None and (total := rest.pop(0)) is not None:
            total.addmm_(g.d_projected.t(), tape.raw)
        for total, d in zip(rest, g.d_params, strict=True):
            if total is not None:
                total.add_(d)
        return result


NO_WEIGHTS = (False,) * 8


class WayBack:
    """What a kernel writes on the way back of one direction: into the tape, if that is spent, or into other memory."""

    def __init__(self, p: Prepared, form: Form, layout: Layout, spent: Tensor | Tape | None, like: Tensor) -> None:
        N, GH, EH = layout.N, form.G * p.H, form.E * p.H
        self.p, self.form, self.N, self.GH, self.EH, self.spent = p, form, N, GH, EH, spent
        if isinstance(spent, Tape):
            self.gates_at, self.extra_at = spent.gates.data_ptr(), spent.extra.data_ptr()
        else:  # the memory of a tape begins with gates and extra
            self.memory = pool.empty(like, N * (GH + EH)) if spent is None else spent
            self.gates_at = self.memory.data_ptr()
            self.extra_at = self.gates_at + N * GH * like.element_size()
        self.d_projected = pool.empty(like, N, p.P) if form.projected else None
        self.d_params = [like.new_empty(layout.B, p.H) for _ in range(form.K)]

    def derivative(self) -> Derivative:
        H, N, GH = self.p.H, self.N, self.GH
        if isinstance(self.spent, Tape):
            places = {"gates": self.spent.gates, "extra": self.spent.extra}
        else:
            places = {"gates": matrix(self.memory, 0, N, GH), "extra": matrix(self.memory, N * GH, N, self.EH)}
        d_rh = [places[name][:, first * H : (first + count) * H] for name, first, count in self.form.runs]
        return Derivative(places["gates"], d_rh, self.d_projected, [t.sum(0) for t in self.d_params])


def room_of(p: Prepared, layout: Layout, dt: float) -> Room:
    of: Any = p.cell  # mypy takes a class's __hash__ for that of its objects
    return known(of, dt, layout.N, layout.B, p.H, p.P, p.weights.w_hr is not None, p.reverse)


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def weights_at(p: Packed, form: Form, *, back: bool) -> dict[str, Any]:
    """Addresses, by their names in Direction."""
    _, w_hh, _, b_hh, w_hr = p.weights_at()
    r_panels, _, p_panels = p.panels_at(form, back)
    places = {"w_hh": w_hh, "b_hh": b_hh, "w_hr": w_hr, "r_panels": r_panels, "p_panels": p_panels}
    return {**places, "params": p.params_at()}


def matrix(tensor: Tensor, start: int, rows: int, columns: int) -> Tensor:
    return tensor.as_strided((rows, columns), (columns, 1), tensor.storage_offset() + start)


def rows_of(d_rows: Tensor | None, x: Tensor, width: int) -> tuple[Tensor, int]:
    """d_ of the output in a form that a kernel can read, and the numbers from one row to the next."""
    if d_rows is None:
        return x.new_zeros(width), 0
    if d_rows.is_contiguous() or d_rows.dim() != 2 or d_rows.stride(1) != 1:
        return d_rows.contiguous(), width
    return d_rows, d_rows.stride(0)


def project_rows(x: Tensor, w: Weights, memory: Tensor) -> None:
    """W x + b, written to the gates of the tape."""
    to = matrix(memory, 0, x.shape[0], w.w_ih.shape[0])
    if w.b_ih is None:
        torch.mm(x, w.w_ih.t(), out=to)
    else:
        torch.addmm(w.b_ih, x, w.w_ih.t(), out=to)
