"""A cell's step and its derivative on vector registers: the traced texts, run on vectors."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from ..cells.trace import compiled
from . import activations
from .records import product as PRODUCT
from .records import walk as WALK
from .target import I64, Form, Target
from .tile import slot
from .vectors import Emitter, Vector


def ops_of(form: Form) -> Any:
    return activations.double if form.target.double else activations.single


class Place:
    """The addresses of one vector, or of as many as are computed side by side, in the matrices of a walk."""

    def __init__(
        self,
        form: Form,
        build: ir.IRBuilder,
        walk: ir.Value,
        unit: ir.Value,
        vectors: int,
        count: ir.Value | None = None,
    ) -> None:
        self.form, self.build, self.walk, self.unit = form, build, walk, unit
        self.emit = Emitter(build, form.target)
        self.count, self.mask = count, None if count is None else self.emit.mask(count)
        self.vectors, self.last = vectors, list[tuple[ir.Value, ir.Value]]()
        self.H = self.field(WALK.H)

    def field(self, index: int) -> ir.Value:
        return self.word(self.walk, index)

    def word(self, address: ir.Value, index: int) -> ir.Value:
        return self.build.load(self.build.gep(self.emit.at(address, I64), [ir.Constant(I64, index)]))

    def spread(self, address: ir.Value) -> list[ir.Value]:
        return [self.emit.offset(address, v * self.form.target.lanes) for v in range(self.vectors)]

    def number(self, base: ir.Value, index: ir.Value) -> list[ir.Value]:
        return self.spread(self.build.add(base, self.build.mul(index, ir.Constant(I64, self.form.target.size))))

    def unit_of(self, base: ir.Value, row: ir.Value, width: ir.Value) -> list[ir.Value]:
        """Column `unit` of a row of a matrix of that width."""
        return self.number(base, self.build.add(self.build.mul(row, width), self.unit))

    def column(self, base: int, row: ir.Value, columns: int, column: int) -> list[ir.Value]:
        """Unit `unit` of one of the columns of H of a row: of a gate, say."""
        place = self.build.add(self.build.mul(row, ir.Constant(I64, columns)), ir.Constant(I64, column))
        return self.unit_of(self.field(base), place, self.H)

    def saved(self, k: int, row: ir.Value) -> list[ir.Value]:
        G, E = self.form.G, self.form.E
        return self.column(WALK.GATES, row, G, k) if k < G else self.column(WALK.EXTRA, row, E, k - G)

    def params(self) -> list[Vector]:
        return [self.read(self.number(self.field(WALK.PARAM + k), self.unit)) for k in range(self.form.K)]

    def with_source(self, value: Any, k: int, row: ir.Value, width: ir.Value) -> Any:
        """What is added to a state, or to its d_, from outside; only in forms that are made for it."""
        return value + self.read(self.unit_of(self.field(WALK.SOURCE + k), row, width)) if self.form.sourced else value

    def row_of_caller(self, row: ir.Value) -> list[ir.Value]:
        offset = self.build.mul(row, self.field(WALK.ROWS_STRIDE))
        return self.number(self.build.add(self.field(WALK.ROWS), offset), self.unit)

    def read(self, addresses: list[ir.Value]) -> Vector:
        return self.emit.read(addresses, self.mask)

    def write(self, addresses: list[ir.Value], value: Vector | float) -> None:
        parts = value.parts if isinstance(value, Vector) else [self.emit.splat(value)] * len(addresses)
        self.last += zip(addresses, parts, strict=True)

    def flush(self) -> None:
        """Stores what was written: nothing is overwritten that is still to be read."""
        if self.count is None:
            for address, part in self.last:
                self.emit.store(address, part)
        else:
            self.emit.store_first(self.last, self.count)


def emit_forward(
    form: Form, at: Place, olds: ir.Value, r: ir.Value, row: ir.Value, sequence: ir.Value, scratch: ir.Value
) -> None:
    G, S = form.G, form.S
    wx = [at.read(at.column(WALK.WX, row, G, g)) for g in range(G)]
    rh = [at.emit.read(at.spread(at.emit.offset(scratch, slot(form.target, g, 0)))) for g in range(G)]
    old = [0.0 if form.projected and k == 0 else at.read(at.unit_of(at.word(olds, k), r, at.H)) for k in range(S)]
    result = compiled(form.trace.step, ops_of(form))(*wx, *rh, *old, *at.params())
    new, saved = result[:S], result[S:]
    for k, value in enumerate(new):
        if k == 0 and form.projected:
            at.write(at.unit_of(at.field(WALK.RAW), row, at.H), value)
            continue
        value = at.with_source(value, k, row, at.H)
        at.write(at.unit_of(at.field(WALK.STATES + k), row, at.H), value)
        if k == 0:
            at.write(at.row_of_caller(row), value)
    for k, value in enumerate(saved):
        at.write(at.saved(k, row), value)


def emit_backward(
    form: Form, at: Place, olds: ir.Value, r: ir.Value, row: ir.Value, sequence: ir.Value, scratch: ir.Value
) -> None:
    G, S = form.G, form.S
    carry = [at.unit_of(at.field(WALK.CARRY + k), sequence, at.H) for k in range(S)]
    back = at.emit.read(at.spread(scratch))
    saved = [at.read(at.saved(k, row)) for k in range(len(form.trace.saved))]
    old = [0.0 if form.projected and k == 0 else at.read(at.unit_of(at.word(olds, k), r, at.H)) for k in range(S)]
    new = [at.read(at.unit_of(at.field(WALK.STATES + k), row, at.H)) for k in range(1, S)]
    if form.projected:
        new.insert(0, at.read(at.unit_of(at.field(WALK.RAW), row, at.H)))
        d_new = [back]
    else:
        new.insert(0, at.read(at.unit_of(at.field(WALK.STATES), row, at.H)))
        d_new = [at.read(carry[0]) + at.read(at.row_of_caller(row)) + back]
    d_new += [at.with_source(at.read(carry[k]), k, row, at.H) for k in range(1, S)]
    d = compiled(form.trace.vjp, ops_of(form))(*saved, *old, *new, *at.params(), *d_new)
    d_wx, d_rh, d_old, d_params = d[:G], d[G : 2 * G], d[2 * G : 2 * G + S], d[2 * G + S :]
    for g in range(G):
        at.write(at.column(WALK.D_GATES, row, G, g), d_wx[g])
    for e, g in enumerate(form.apart):
        at.write(at.column(WALK.D_EXTRA, row, form.E, e), d_rh[g])
    for k in range(S):
        if not (form.projected and k == 0):
            at.write(carry[k], d_old[k])
    for k, value in enumerate(d_params):
        total = at.unit_of(at.field(WALK.D_PARAM + k), sequence, at.H)
        at.write(total, at.read(total) + value)


def emit_finish(
    form: Form, at: Place, olds: ir.Value, r: ir.Value, row: ir.Value, sequence: ir.Value, scratch: ir.Value
) -> None:
    """The last product belongs to the initial h."""
    carry = at.unit_of(at.field(WALK.CARRY), sequence, at.field(WALK.P))
    at.write(carry, at.read(carry) + at.emit.read(at.spread(scratch)))


def emit_projected(
    form: Form, at: Place, olds: ir.Value, r: ir.Value, row: ir.Value, sequence: ir.Value, scratch: ir.Value
) -> None:
    """h is what the projection has made of it."""
    h = at.with_source(at.emit.read(at.spread(scratch)), 0, row, at.field(WALK.P))
    at.write(at.unit_of(at.field(WALK.STATES), row, at.field(WALK.P)), h)
    at.write(at.row_of_caller(row), h)


def emit_d_projected(
    form: Form, at: Place, olds: ir.Value, r: ir.Value, row: ir.Value, sequence: ir.Value, scratch: ir.Value
) -> None:
    """d_ of h, all of it: what goes back through the projection."""
    carry = at.unit_of(at.field(WALK.CARRY), sequence, at.field(WALK.P))
    d_h = at.read(carry) + at.read(at.row_of_caller(row)) + at.emit.read(at.spread(scratch))
    at.write(at.unit_of(at.field(WALK.D_PROJECTED), row, at.field(WALK.P)), d_h)
    at.write(carry, 0.0)


def emit_touch(
    form: Form, at: Place, olds: ir.Value, r: ir.Value, row: ir.Value, sequence: ir.Value, scratch: ir.Value
) -> None:
    """Asks for the cache lines that the step will need while the tile is still busy: they lie a row apart, where no
    prefetcher sees a pattern.
    """
    places = [at.column(WALK.GATES, row, form.G, g) for g in range(form.G)]
    places += [at.column(WALK.EXTRA, row, form.E, e) for e in range(form.E)]
    places += [at.unit_of(at.field(WALK.STATES + k), row, at.H) for k in range(int(form.projected), form.S)]
    places += [] if form.projected else [at.row_of_caller(row)]
    for addresses in places:
        at.emit.prefetch(addresses[0])
        at.emit.prefetch(at.emit.offset(addresses[-1], form.target.lanes - 1))  # which may be on another line


def result_of_product(at: Place, row: ir.Value) -> list[ir.Value]:
    """Column `unit` of a row of C."""
    offset = at.build.mul(row, at.field(PRODUCT.C_ROW))
    return at.number(at.build.add(at.field(PRODUCT.C), offset), at.unit)


def emit_store(
    form: Form, at: Place, olds: ir.Value, r: ir.Value, row: ir.Value, sequence: ir.Value, scratch: ir.Value
) -> None:
    at.write(result_of_product(at, row), at.emit.read(at.spread(scratch)))


def emit_add(
    form: Form, at: Place, olds: ir.Value, r: ir.Value, row: ir.Value, sequence: ir.Value, scratch: ir.Value
) -> None:
    c = result_of_product(at, row)
    at.write(c, at.read(c) + at.emit.read(at.spread(scratch)))


def sums_function(module: ir.Module, form: Form, name: str) -> None:
    """void name(to, from, bytes between rows of from, rows, columns, first): to[j] (+)= the sum of from[.][j]"""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 6), name)
    to, origin, stride, rows, columns, first = function.args
    build = ir.IRBuilder(function.append_basic_block())
    target, zero = form.target, ir.Constant(I64, 0)
    number = Target(target.double, 1, 1, 1)
    fresh = build.icmp_signed("!=", first, zero)

    def add(j: ir.Value, emit: Emitter) -> None:
        offset = build.mul(j, ir.Constant(I64, target.size))
        place = build.add(to, offset)
        start = build.select(fresh, emit.splat(0.0), emit.load(place))
        total = cgutils.alloca_once_value(build, start)
        with cgutils.for_range(build, rows) as loop:
            row = build.add(build.add(origin, offset), build.mul(loop.index, stride))
            build.store(build.fadd(build.load(total), emit.load(row)), total)
        emit.store(place, build.load(total))

    whole = build.sub(columns, build.srem(columns, ir.Constant(I64, target.lanes)))
    with cgutils.for_range_slice(build, zero, whole, ir.Constant(I64, target.lanes)) as (j, _):
        add(j, Emitter(build, target))
    with cgutils.for_range_slice(build, whole, columns, ir.Constant(I64, 1)) as (j, _):
        add(j, Emitter(build, number))
    build.ret_void()


def pointwise_function(module: ir.Module, form: Form, name: str, emit: Callable[..., None]) -> None:
    """void name(walk, unit, left, olds, r, row, sequence, scratch, n): `emit` on n rows of the block that starts at
    `unit` and has `left` units or more. `olds` holds the addresses of the first row's old states, if r is 0.
    """
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 9), name)
    walk, unit, left, olds, r, row, sequence, scratch, n = function.args
    build = ir.IRBuilder(function.append_basic_block())
    target = form.target

    def rows(vector: int, vectors: int, count: ir.Value | None = None) -> None:
        start = build.add(unit, ir.Constant(I64, vector * target.lanes))
        with cgutils.for_range(build, n) as loop:
            at = Place(form, build, walk, start, vectors, count)
            place = build.mul(loop.index, ir.Constant(I64, target.width * target.size))
            result = at.emit.offset(build.add(scratch, place), vector * target.lanes)
            emit(form, at, olds, *(build.add(i, loop.index) for i in (r, row, sequence)), result)
            at.flush()

    def at_least(value: ir.Value, bound: int) -> ir.Value:
        return build.icmp_signed(">=", value, ir.Constant(I64, bound))

    with build.if_else(at_least(left, target.width)) as (whole, parts):
        with whole:
            rows(0, target.vectors)
        with parts:
            for vector in range(target.vectors):
                rest = build.sub(left, ir.Constant(I64, vector * target.lanes))
                with build.if_else(at_least(rest, target.lanes)) as (one, some):
                    with one:
                        rows(vector, 1)
                    with some, build.if_then(at_least(rest, 1)):
                        rows(vector, 1, rest)
    build.ret_void()
