"""One direction on compiled kernels, from given wx on; and what these kernels are made for."""

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..cells import Cell
from ..cells.trace import why_untraceable
from ..kernels import costs, pool, records, threads
from ..kernels.addresses import Direction, OfLayer, OfWalk, Table
from ..kernels.layer import Layer
from ..kernels.program import Program
from ..kernels.schedule import DEFAULT, Schedule
from ..kernels.target import Form
from ..layout import Layout
from .base import Derivative, Engine, Prepared, States, Weights, check_source
from .checks import check_alike, check_recur, check_recur_vjp
from .packed import Packed, packs_of
from .tape import Room, Tape
from .way_back import WayBack, address, rows_of

MOST_SETUPS = 1024
WITHOUT_TAPE = 1 << 22  # bytes of gates that are in memory at a time if no tape is kept
NO_WEIGHTS = (False,) * (5 + records.MOST_PARAMS)


class Setup(NamedTuple):
    """All about a call that depends on its sizes only. A call of the same sizes finds it again."""

    program: Program
    form: Form
    rooms: Sequence[Room]  # per direction: of the tape
    folded: bool  # W x is part of the walk
    lead: Sequence[int]  # the first addresses: of the rows of each step, and the sizes that come with each call
    is_ragged: bool
    held: Sequence[Any] = ()  # what the addresses in `lead` belong to


class FusedWalk(Engine):
    def __init__(self, schedule: Schedule = DEFAULT) -> None:
        self.schedule, self.machine = schedule, schedule.machine()
        self.forms: dict[tuple[Any, ...], Form] = {}
        self.setups: dict[tuple[Any, ...], Setup] = {}
        self.programs: dict[tuple[Any, ...], Program] = {}  # of ragged batches

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
            target = self.schedule.target(dtype == torch.float64, self.machine)
            form = self.forms[key] = Form(cell, dt, target, projected, sourced)
        return form

    def setup(
        self,
        back: bool,
        layout: Layout,
        ps: Sequence[Packed],
        dt: float,
        *,
        sourced: bool = False,
        folded: bool = False,
        batch: int | None = None,
        **options: Any,
    ) -> Setup:
        """Those of dense batches are stored by shape. A ragged layout seldom comes again: its setups are stored with
        it, for the layers of one stack. But their programs serve all ragged batches of as many sequences.

        options: of Layer.forward, or of Layer.backward. batch: of a layer, how many sequences its states have; a ragged
        chunk may have fewer. None: it is a walk from given wx.
        """
        count, packs = threads.threads(), packs_of(ps, back, folded)
        is_ragged = not layout.is_dense
        setups: dict[Any, Setup] = layout.cache if is_ragged else self.setups
        of = (back, layout.B, batch, count, dt, sourced, packs, *options.values(), *[p.kind for p in ps])
        key = (self, layout.T, *of)
        setup = setups.get(key)
        if setup is None:
            check_alike(ps)
            form, p, rooms = self.form(ps[0], dt, sourced), ps[0], [q.room(layout, dt) for q in ps]
            table: Table = OfWalk(form, is_ragged)
            if batch is not None:
                table = OfLayer(form, len(ps), batch, p.widths, [room.matrices for room in rooms], is_ragged)
            layer = Layer(
                self.schedule,
                costs.of_this_process(form),
                layout,
                table,
                form,
                count=count,
                I=p.weights.w_ih.shape[1],
                H=p.H,
                P=p.P,
                bias=p.weights.b_ih is not None,
                reverse=[q.reverse for q in ps],
                packs=packs,
                folded=folded,
            )
            choices = layer.choices(back, options.get("project", False))
            program = self.programs.get((choices, of)) if is_ragged else None
            if program is None:
                program = layer.backward(choices, **options) if back else layer.forward(choices, **options)
                if is_ragged:
                    make_room(self.programs)
                    self.programs[choices, of] = program
            lead, bounds, slices = [0], layout.bounds if is_ragged else None, array("q")
            if bounds is not None:
                slices.extend(layer.slices(choices.threads))
                lead = [bounds.data_ptr(), layout.T, layout.N, slices.buffer_info()[0], layer.chunk(choices, back)]
            else:
                make_room(setups)
            setup = setups[key] = Setup(program, form, rooms, folded, lead, is_ragged, (bounds, slices))
        return setup

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
        q: Packed = p  # type: ignore[assignment]
        q.check_usable()
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
        out = out or [None] * S
        added = None if source is None else [t.contiguous() for t in source]
        steps = layout.T if keep else steps_without_tape(layout, wx.shape[1], wx.element_size())
        begun, made = state0 is not None, None
        h = out[0] if out[0] is not None and out[0].stride(1) == 1 else None  # the kernel writes h there by itself
        targets = [None if h is not None else out[0], *out[1:]]
        for cut in layout.cuts(steps, p.reverse):
            chunk, rows = layout.cut(*cut), layout.rows(*cut)
            memory = pool.empty(wx, p.room(chunk, dt).total)
            to = None if h is None else h[rows]
            self.recur_rows(q, wx[rows], last, begun, memory, chunk, dt, to, added and [t[rows] for t in added])
            begun = True
            if keep or any(t is not None for t in targets):
                made = p.room(chunk, dt).tape(memory, chunk)
                for state, target in zip(made.states, targets, strict=True):
                    if target is not None:
                        target[rows] = state
        return last, made if keep else None

    def recur_rows(
        self,
        p: Packed,
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
        stride = p.P if out is None else out.stride(0)
        sourced = source is not None
        setup = self.setup(False, layout, [p], dt, sourced=sourced, project=False, stateful=stateful, stride=stride)
        form, room = setup.form, setup.rooms[0]
        start, size, ends = memory.data_ptr(), memory.element_size(), [t.data_ptr() for t in last]
        matrices = room.matrices

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
            **named_weights(p, form, back=False),
        )
        setup.program.run([*setup.lead, *direction.flat(form)])
        p.mark_ready(False, with_w=False)

    def recur_vjp(
        self, p: Prepared, tape: Tape, d_states: States | None, d_last: States, *, spend: bool = False
    ) -> tuple[Derivative, list[Tensor]]:
        q: Packed = p  # type: ignore[assignment]
        layout, S = tape.layout, len(p.cell.states)
        given = list(d_states or [None] * S)
        q.check_usable()
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
        source = [d_rows] if is_sourced else []  # per state
        for state, d_state in zip(tape.states[1:], given[1:] if is_sourced else (), strict=False):
            source.append(torch.zeros_like(state) if d_state is None else d_state.contiguous())
        wanted: dict[str, Any] = {"needs_x": False, "needs_states": True, "needs": (NO_WEIGHTS,)}
        setup = self.setup(True, layout, [q], tape.dt, sourced=is_sourced, stride=stride, **wanted)
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
            source=[t.data_ptr() for t in source],
            d_params=[t.data_ptr() for t in way.d_params],
            **named_weights(q, form, back=True),
        )
        setup.program.run([*setup.lead, *direction.flat(form)])
        q.mark_ready(True, with_w=False)
        return way.derivative(), d_state0

    def add_mm(self, total: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return total.addmm_(a, b)


def make_room(stored: dict[Any, Any]) -> None:
    if len(stored) >= MOST_SETUPS:
        stored.clear()


def steps_without_tape(layout: Layout, gates: int, size: int) -> int:
    """How many steps at a time, if nothing is kept. gates: numbers of a row; size: bytes of one."""
    return max(1, WITHOUT_TAPE // (layout.B * gates * size))


def named_weights(p: Packed, form: Form, *, back: bool) -> dict[str, Any]:
    """Addresses, by their names in Direction."""
    _, w_hh, _, b_hh, w_hr = p.weights_at()
    r_panels, _, p_panels = p.panels_at(form, back)
    places = {"w_hh": w_hh, "b_hh": b_hh, "w_hr": w_hr, "r_panels": r_panels, "p_panels": p_panels}
    return {**places, "params": p.params_at()}
