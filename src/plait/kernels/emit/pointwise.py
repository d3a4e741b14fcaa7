"""A cell's step and its derivative on vector registers: the traced texts, run on vectors."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core.cgutils import for_range

from ...cells.trace import compiled
from ..records import Product, Walk
from . import activations, pairs
from .target import I64, Form, i64
from .tile import slot
from .vectors import NOTHING, Emitter, Vector, new_function, prefetch


def run_on_vectors(form: Form, text: str, *values: Any) -> Any:
    """A traced text of the cell."""
    return compiled(text, activations.double if form.target.double else activations.single)(*values)


class Row(NamedTuple):
    """The row that a function works on."""

    olds: ir.Value  # address of the addresses of the old states of the first row
    r: ir.Value  # the row, counted from there
    row: ir.Value  # its number in the matrices of the walk, or of the product
    sequence: ir.Value
    results: ir.Value  # address of its results in the scratch of the tile


class Spot(NamedTuple):
    """Where some units are: the address of each vector."""

    addresses: list[ir.Value]
    rounded: bool = False  # they are bfloat16


class Place:
    """Some units of a row: one vector, or several that are computed side by side. It knows their addresses in the
    matrices of the walk, or of the product.
    """

    def __init__(
        self, form: Form, emit: Emitter, owner: ir.Value, unit: ir.Value, vectors: int, count: ir.Value | None
    ) -> None:
        """count: of the units, if it is less than a vector."""
        self.form, self.emit, self.owner, self.unit, self.vectors = form, emit, owner, unit, vectors
        self.build, self.count, self.mask = emit.build, count, None if count is None else emit.mask(count)
        self.is_last = False  # these are all units of a block that is not full
        self.written: list[tuple[ir.Value, ir.Value]] = []
        self.written_rounded: list[tuple[ir.Value, ir.Value]] = []
        self.H = self.field(Walk.H)

    def field(self, index: int) -> ir.Value:
        """A word of the record of the walk, or of the product."""
        return self.word(self.owner, index)

    def word(self, address: ir.Value, index: int) -> ir.Value:
        return self.build.load(self.build.gep(self.emit.at(address, I64), [i64(index)]))

    def number(self, base: ir.Value, index: ir.Value, *, rounded: bool = False) -> Spot:
        size = 2 if rounded else self.form.target.size
        first = self.build.add(base, self.build.mul(index, i64(size)))
        starts = range(0, self.vectors * self.form.target.lanes, self.form.target.lanes)
        return Spot([self.build.add(first, i64(start * size)) for start in starts], rounded)

    def units(self, base: ir.Value, row: ir.Value, width: ir.Value) -> Spot:
        """In a row of a matrix of that width."""
        return self.number(base, self.build.add(self.build.mul(row, width), self.unit))

    def operand(self, base: ir.Value, row: ir.Value, width: ir.Value, columns: int = 1, column: int = 0) -> Spot:
        """In a matrix of the tape, which products read: its numbers may be bfloat16, an even number of them for each
        width. A row may have several columns of that width: those of the gates, for example.
        """
        build, rounded = self.build, self.form.target.rounded
        if columns > 1:
            row = build.add(build.mul(row, i64(columns)), i64(column))
        if rounded:
            width = pairs.even(build, width)
        return self.number(base, build.add(build.mul(row, width), self.unit), rounded=rounded)

    def column(self, base: int, row: ir.Value, columns: int, column: int) -> Spot:
        return self.operand(self.field(base), row, self.H, columns, column)

    def wx(self, row: ir.Value, gate: int) -> Spot:
        place = self.build.add(self.build.mul(row, i64(self.form.G)), i64(gate))
        return self.units(self.field(Walk.WX), place, self.H)

    def saved(self, k: int, row: ir.Value) -> Spot:
        G, E = self.form.G, self.form.E
        return self.column(Walk.GATES, row, G, k) if k < G else self.column(Walk.EXTRA, row, E, k - G)

    def params(self) -> list[Vector]:
        return [self.read(self.number(self.field(Walk.PARAM + k), self.unit)) for k in range(self.form.K)]

    def old(self, on: Row, place: Callable[[ir.Value, ir.Value, ir.Value], Spot]) -> list[Vector | float]:
        """The old states. A step does not read an h that is projected. place: in which kind of matrix they are"""
        first: list[Vector | float] = [0.0] if self.form.projected else []
        more = range(len(first), self.form.S)
        return [*first, *(self.read(place(self.word(on.olds, k), on.r, self.H)) for k in more)]

    def new(self, k: int, row: ir.Value) -> Spot:
        """A state after the step; of h, if it is projected, before the projection."""
        matrix = Walk.RAW if k == 0 and self.form.projected else Walk.STATES + k
        return self.operand(self.field(matrix), row, self.H)

    def write_state(self, k: int, on: Row, width: ir.Value, value: Vector) -> None:
        """To the tape. If that is rounded, the next step starts from the state as it is in the last states."""
        self.write(self.operand(self.field(Walk.STATES + k), on.row, width), value)
        if self.form.target.rounded:
            self.write(self.units(self.field(Walk.LAST + k), on.sequence, width), value)

    def with_source(self, value: Any, k: int, row: ir.Value, width: ir.Value) -> Any:
        """A state, or its d_, and what is added to it from outside; only in forms that are made for it."""
        return value + self.read(self.units(self.field(Walk.SOURCE + k), row, width)) if self.form.sourced else value

    def row_of_caller(self, row: ir.Value) -> Spot:
        offset = self.build.mul(row, self.field(Walk.ROWS_STRIDE))
        return self.number(self.build.add(self.field(Walk.ROWS), offset), self.unit)

    def row_of_product(self, row: ir.Value) -> Spot:
        """In a row of C."""
        build = self.build
        start = build.add(self.field(Product.C), build.mul(row, self.field(Product.C_ROW)))
        skip, before = self.field(Product.C_SKIP), build.block
        with build.if_then(build.icmp_signed("!=", skip, i64(0)), likely=False):
            skipped = build.add(start, build.mul(build.udiv(row, self.field(Product.STEP)), skip))
            within = build.block
        place = build.phi(I64)
        place.add_incoming(start, before)
        place.add_incoming(skipped, within)
        return self.number(place, self.unit)

    def result(self, on: Row, panel: int = 0, panels: int = 1) -> Vector:
        """What the tile has computed, for one of its panels. The last few units may be joined (Target.most_joined)."""
        target, build = self.form.target, self.build
        place = self.emit.offset(on.results, slot(target, panel, 0))
        if self.is_last and self.count is not None and panels > 1:
            joined = build.mul(self.count, i64(panel * target.size))
            fits = build.icmp_signed("<=", self.count, i64(target.most_joined(panels)))
            place = build.select(fits, build.add(on.results, joined), place)
        lanes = target.lanes
        return self.emit.read([self.emit.offset(place, v * lanes) for v in range(self.vectors)])

    def read(self, spot: Spot) -> Vector:
        if not spot.rounded:
            return self.emit.read(spot.addresses, self.mask)
        emit = self.emit
        shorts = [pairs.load_short(emit, address, self.count) for address in spot.addresses]
        return Vector(emit, tuple(pairs.widened(emit, short) for short in shorts))

    def write(self, spot: Spot, value: Vector | float) -> None:
        vectors = value.registers if isinstance(value, Vector) else [self.emit.splat(value)] * self.vectors
        if spot.rounded:
            shorts = [pairs.rounded(self.emit, vector) for vector in vectors]
            self.written_rounded += zip(spot.addresses, shorts, strict=True)
        else:
            self.written += zip(spot.addresses, vectors, strict=True)

    def flush(self) -> None:
        """Stores the results last, so that nothing is overwritten before it is read."""
        if self.count is None:
            for address, vector in self.written + self.written_rounded:
                self.emit.store(address, vector)
            return
        self.emit.store_first(self.written, self.count)
        if self.written_rounded:
            pairs.store_first(self.emit, self.written_rounded, self.count)


def emit_forward(at: Place, on: Row) -> None:
    gates = range(at.form.G)
    wx = [at.read(at.wx(on.row, g)) for g in gates]
    emit_step(at, on, wx, [at.result(on, g, at.form.G) for g in gates])


def emit_forward_folded(at: Place, on: Row) -> None:
    """The tile has added W x to R h, except for gates that need them apart."""
    G, order, separate = at.form.G, at.form.order, len(at.form.apart)
    wx: list[Any] = [None] * G
    rh: list[Any] = [None] * G
    panels = 1 if separate else G  # those of R alone are not joined with W: an infinite x times 0 is no number
    for panel, g in enumerate(order):
        first = at.result(on, panel, panels)
        rh[g], wx[g] = (first, at.result(on, G + panel, panels)) if panel < separate else (NOTHING, first)
    emit_step(at, on, wx, rh)


def emit_step(at: Place, on: Row, wx: list[Any], rh: list[Any]) -> None:
    form, row = at.form, on.row
    result = run_on_vectors(form, form.trace.step, *wx, *rh, *at.old(on, at.units), *at.params())
    for k, value in enumerate(result[: form.S]):
        if k == 0 and form.projected:
            at.write(at.new(k, row), value)
            continue
        value = at.with_source(value, k, row, at.H)
        at.write_state(k, on, at.H, value)
        if k == 0:
            at.write(at.row_of_caller(row), value)
    for k, value in enumerate(result[form.S :]):
        at.write(at.saved(k, row), value)


def emit_backward(at: Place, on: Row) -> None:
    form, row = at.form, on.row
    G, S = form.G, form.S
    carry = [at.units(at.field(Walk.CARRY + k), on.sequence, at.H) for k in range(S)]
    back = at.result(on)
    saved = [at.read(at.saved(k, row)) for k in range(len(form.trace.saved))]
    new = [at.read(at.new(k, row)) for k in range(S)]
    d_new = [back if form.projected else at.read(carry[0]) + at.read(at.row_of_caller(row)) + back]
    d_new += [at.with_source(at.read(carry[k]), k, row, at.H) for k in range(1, S)]
    d = run_on_vectors(form, form.trace.vjp, *saved, *at.old(on, at.operand), *new, *at.params(), *d_new)
    d_wx, d_rh, d_old, d_params = d[:G], d[G : 2 * G], d[2 * G : 2 * G + S], d[2 * G + S :]
    for g in range(G):
        at.write(at.column(Walk.D_GATES, row, G, g), d_wx[g])
    for e, g in enumerate(form.apart):
        at.write(at.column(Walk.D_EXTRA, row, form.E, e), d_rh[g])
    for k in range(int(form.projected), S):
        at.write(carry[k], d_old[k])
    for k, value in enumerate(d_params):
        total = at.units(at.field(Walk.D_PARAM + k), on.sequence, at.H)
        at.write(total, at.read(total) + value)


def emit_finish(at: Place, on: Row) -> None:
    """The last product is part of d_ of the initial h."""
    carry = at.units(at.field(Walk.CARRY), on.sequence, at.field(Walk.P))
    at.write(carry, at.read(carry) + at.result(on))


def emit_projected(at: Place, on: Row) -> None:
    """The new h is the result of the projection."""
    h = at.with_source(at.result(on), 0, on.row, at.field(Walk.P))
    at.write_state(0, on, at.field(Walk.P), h)
    at.write(at.row_of_caller(on.row), h)


def emit_d_projected(at: Place, on: Row) -> None:
    """All of d_ of h, which then goes back through the projection."""
    carry = at.units(at.field(Walk.CARRY), on.sequence, at.field(Walk.P))
    d_h = at.read(carry) + at.read(at.row_of_caller(on.row)) + at.result(on)
    at.write(at.operand(at.field(Walk.D_PROJECTED), on.row, at.field(Walk.P)), d_h)
    at.write(carry, 0.0)


def emit_touch(at: Place, on: Row, *, back: bool) -> None:
    """Prefetches the cache lines that the step will need, while the tile is computed. The processor would not do it by
    itself: the lines are a whole row apart. In the backward pass states and rows are only read: a line that is
    fetched to be written is taken from all other cores.
    """
    form, row = at.form, on.row
    gates = [at.saved(k, row) for k in range(form.G + form.E)]
    others = [at.new(k, row) for k in range(int(form.projected), form.S)]
    others += [] if form.projected else [at.row_of_caller(row)]
    for places, to_write in ((gates, True), (others, not back)):
        for addresses, rounded in places:
            size = 2 if rounded else form.target.size
            last = at.build.add(addresses[-1], i64((form.target.lanes - 1) * size))  # which may be on another line
            for address in (addresses[0], last):
                prefetch(at.build, address, to_write=to_write, near=3)


def emit_store(at: Place, on: Row) -> None:
    at.write(at.row_of_product(on.row), at.result(on))


def emit_add(at: Place, on: Row) -> None:
    c = at.row_of_product(on.row)
    at.write(c, at.read(c) + at.result(on))


def pointwise_function(module: ir.Module, form: Form, name: str, emit_row: Callable[[Place, Row], None]) -> None:
    """void name(owner, unit, left, olds, r, row, sequence, scratch, n): n rows of the block that starts at `unit`.

    left: units from there to the end of a row. The others are as in Row, for the first of the rows.
    """
    target = form.target
    emit, (owner, unit, left, olds, r, row, sequence, scratch, n) = new_function(module, target, name, 9)
    build = emit.build

    def rows(vector: int, vectors: int, count: ir.Value | None = None) -> None:
        start = build.add(unit, i64(vector * target.lanes))
        with for_range(build, n) as loop:
            at = Place(form, emit, owner, start, vectors, count)
            at.is_last = vector == 0  # if it is not full
            place = build.mul(loop.index, i64(target.width * target.size))
            results = emit.offset(build.add(scratch, place), vector * target.lanes)
            here = (build.add(first, loop.index) for first in (r, row, sequence))
            emit_row(at, Row._make((olds, *here, results)))
            at.flush()

    def at_least(value: ir.Value, bound: int) -> ir.Value:
        return build.icmp_signed(">=", value, i64(bound))

    with build.if_else(at_least(left, target.width)) as (whole, last):
        with whole:
            rows(0, target.vectors)
        with last:
            for vector in range(target.vectors):
                rest = build.sub(left, i64(vector * target.lanes))
                with build.if_else(at_least(rest, target.lanes)) as (one, some):
                    with one:
                        rows(vector, 1)
                    with some, build.if_then(at_least(rest, 1)):
                        rows(vector, 1, rest)
    build.ret_void()


FUNCTIONS: dict[str, Callable[[Place, Row], None]] = {
    "plait_forward": emit_forward,
    "plait_forward_folded": emit_forward_folded,
    "plait_backward": emit_backward,
    "plait_finish": emit_finish,
    "plait_touch": partial(emit_touch, back=False),
    "plait_touch_back": partial(emit_touch, back=True),
    "plait_store": emit_store,
    "plait_add": emit_add,
}
OF_PROJECTION = {"plait_projected": emit_projected, "plait_d_projected": emit_d_projected}
