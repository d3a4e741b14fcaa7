"""bfloat16: rounding, and products of pairs.

A pair is two consecutive terms of a sum, the first in the lower half of a 32-bit word. CPUs with avx512_bf16 multiply
pairs with pairs and add both products to a float32 number in one instruction. On all others this is two instructions of
float32. There, too, each product is exact, so that only the roundings of the sums differ.
"""

from collections.abc import Sequence

from llvmlite import ir
from numba.core.cgutils import for_range, for_range_slice

from .target import I32, Target, i64
from .vectors import Emitter, intrinsic, new_function, transposed

I16 = ir.IntType(16)
QUIET = 0x7FC0  # the bits of a NaN


class BFloat(ir.Type):
    """llvmlite has no name for it."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def like(value: ir.Value, kind: ir.Type) -> ir.Type:
    """That kind of number, or as many of them as the value is a vector of."""
    return ir.VectorType(kind, value.type.count) if isinstance(value.type, ir.VectorType) else kind


def constant(value: ir.Value, kind: ir.IntType, bits: int) -> ir.Constant:
    found = like(value, kind)
    return ir.Constant(found, [ir.Constant(kind, bits)] * found.count if found is not kind else bits)


def rounded(emit: Emitter, value: ir.Value) -> ir.Value:
    """float32 -> bfloat16, to the nearest, ties to even; as 16-bit integers. One number, or a vector."""
    build, short = emit.build, like(value, I16)
    if emit.target.dot and short is not I16:
        return build.bitcast(build.fptrunc(value, like(value, BFloat())), short)
    bits = build.bitcast(value, like(value, I32))
    last = build.and_(build.lshr(bits, constant(value, I32, 16)), constant(value, I32, 1))
    up = build.add(build.add(bits, constant(value, I32, 0x7FFF)), last)
    found = build.trunc(build.lshr(up, constant(value, I32, 16)), short)
    return build.select(build.fcmp_unordered("uno", value, value), constant(value, I16, QUIET), found)


def widened(emit: Emitter, value: ir.Value) -> ir.Value:
    """bfloat16 -> float32: exact."""
    bits = emit.build.zext(value, like(value, I32))
    return emit.build.bitcast(emit.build.shl(bits, constant(value, I32, 16)), like(value, ir.FloatType()))


def paired(emit: Emitter, first: ir.Value, second: ir.Value) -> ir.Value:
    """16-bit integers -> pairs."""
    build = emit.build
    low, high = (build.zext(v, like(v, I32)) for v in (first, second))
    return build.or_(low, build.shl(high, constant(first, I32, 16)))


def term(emit: Emitter, pairs: ir.Value, second: bool) -> ir.Value:
    """The first or the second number of each pair, in float32."""
    alone, place = (emit.build.and_, 0xFFFF0000) if second else (emit.build.shl, 16)
    return emit.build.bitcast(alone(pairs, constant(pairs, I32, place)), like(pairs, ir.FloatType()))


def add_dot(emit: Emitter, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
    """total + a[0] b[0] + a[1] b[1], for vectors of pairs: one instruction."""
    target, kind = emit.target, ir.VectorType(BFloat(), 2 * emit.target.lanes)
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * target.lanes}"
    operands = (emit.build.bitcast(pairs, kind) for pairs in (a, b))
    return intrinsic(emit.build, name, target.vector, total, *operands)


def load_short(emit: Emitter, address: ir.Value, count: ir.Value | None = None) -> ir.Value:
    """A vector of bfloat16 numbers, or its first `count` lanes, then zeros. Reads whole pairs: rows are padded to an
    even number. count: may be 0 or less
    """
    build, lanes = emit.build, emit.target.lanes
    short = ir.VectorType(I16, lanes)
    if count is None:
        value = build.load(emit.at(address, short))
        value.align = 2
        return value
    words = ir.VectorType(I32, lanes // 2)
    half = build.ashr(build.add(count, i64(1)), i64(1))
    name = f"llvm.masked.load.v{lanes // 2}i32.p0"
    mask, align = emit.mask(half, lanes // 2), ir.Constant(I32, 2)
    found = intrinsic(build, name, words, emit.at(address, words), align, mask, ir.Constant(words, None))
    return first_of(emit, build.bitcast(found, short), count)


def first_of(emit: Emitter, short: ir.Value, count: ir.Value) -> ir.Value:
    """The first `count` numbers, then zeros."""
    return emit.build.select(emit.mask(count), short, ir.Constant(short.type, None))


def even(build: ir.IRBuilder, count: ir.Value) -> ir.Value:
    return build.and_(build.add(count, i64(1)), i64(-2))


def store_first(emit: Emitter, places: Sequence[tuple[ir.Value, ir.Value]], count: ir.Value) -> None:
    """Stores the first `count` numbers, fewer than a vector has, and a zero behind them if that is odd."""
    some = [(address, first_of(emit, short, count)) for address, short in places]
    full = even(emit.build, count)
    with emit.build.if_else(emit.build.icmp_signed("==", full, i64(emit.target.lanes))) as (whole, part):
        with whole:
            for address, short in some:
                emit.store(address, short)
        with part:
            emit.store_first(some, full)


# --- functions -------------------------------------------------------------------------------------------------------
def round_function(module: ir.Module, target: Target, name: str) -> None:
    """void name(to, from, n, -, -, -): n float32 numbers as bfloat16, and a zero behind them if n is odd."""
    emit, (to, origin, n, *_) = new_function(module, target, name, 6)
    build, lanes = emit.build, target.lanes
    whole = build.sub(n, build.srem(n, i64(lanes)))

    def places(k: ir.Value) -> tuple[ir.Value, ir.Value]:
        return build.add(to, build.mul(k, i64(2))), build.add(origin, build.mul(k, i64(target.size)))

    with for_range_slice(build, i64(0), whole, i64(lanes)) as (k, _):
        place, source = places(k)
        emit.store(place, rounded(emit, emit.load(source)))
    count = build.sub(n, whole)
    with build.if_then(build.icmp_signed(">", count, i64(0))):
        place, source = places(whole)
        store_first(emit, [(place, rounded(emit, emit.load(source, emit.mask(count))))], count)
    build.ret_void()


def pack_transposed_function(module: ir.Module, target: Target, name: str) -> None:
    """void name(to, from, bytes from row to row of it, depth, units, keep): the pair to[k][j] is from[j][2 k] and the
    number behind it, or zero if there is none. Then zeros, or what is there, if `keep` is not 0.
    """
    emit, (to, origin, stride, depth, units, keep) = new_function(module, target, name, 6)
    build, lanes, line = emit.build, target.lanes, i64(target.width * target.size)
    full = build.icmp_signed("==", units, i64(target.width))
    blocked = build.select(full, build.sub(depth, build.srem(depth, i64(lanes))), i64(0))

    def line_at(k: ir.Value) -> ir.Value:
        return build.add(to, build.mul(build.lshr(k, i64(1)), line))

    with for_range_slice(build, i64(0), blocked, i64(lanes)) as (k, _):
        start = build.add(origin, build.mul(k, i64(target.size)))
        for v in range(target.vectors):
            rows = [emit.load(build.add(start, build.mul(stride, i64(v * lanes + j)))) for j in range(lanes)]
            columns = [rounded(emit, column) for column in transposed(emit, rows)]
            for j in range(0, lanes, 2):
                place = build.add(line_at(build.add(k, i64(j))), i64(v * lanes * target.size))
                emit.store(place, paired(emit, columns[j], columns[j + 1]))
    with for_range_slice(build, blocked, depth, i64(2)) as (k, _):
        start, place = build.add(origin, build.mul(k, i64(target.size))), line_at(k)
        has_second = build.icmp_signed("<", build.add(k, i64(1)), depth)
        with build.if_then(build.icmp_signed("==", keep, i64(0))):
            for v in range(target.vectors):
                emit.store(emit.offset(place, v * lanes), emit.splat(0.0))
        with for_range(build, units) as loop:
            at = build.add(start, build.mul(stride, loop.index))
            behind = build.select(has_second, emit.offset(at, 1), at)
            first, second = (rounded(emit, build.load(emit.at(a, target.number))) for a in (at, behind))
            second = build.select(has_second, second, ir.Constant(I16, 0))
            build.store(
                paired(emit, first, second), emit.at(build.add(place, build.mul(loop.index, i64(target.size))), I32)
            )
    build.ret_void()


def pair_rows_function(module: ir.Module, target: Target, name: str, *, side: bool, short: bool) -> None:
    """void name(to, from, bytes from row to row of it, depth, n, -): the pair to[k][j] is from[2 k][j] and from[2 k +
    1][j] for j < n, or zero if there is no such row. Then zeros.

    A row of `to` is a line of a panel; of a side it is n pairs, as in tile.pack_rows_function. short: `from` is
    bfloat16, else it is rounded
    """
    emit, (to, origin, stride, depth, n, _) = new_function(module, target, name, 6)
    build, lanes = emit.build, target.lanes
    line = build.mul(n, i64(target.size)) if side else i64(target.width * target.size)
    starts = range(0, target.rows if side else target.width, lanes)
    counts = [build.sub(n, i64(start)) for start in starts]

    def numbers(row: ir.Value, start: int, count: ir.Value) -> ir.Value:
        if short:
            return load_short(emit, build.add(row, i64(2 * start)), count)
        return rounded(emit, emit.load(emit.offset(row, start), emit.mask(count)))

    with for_range_slice(build, i64(0), depth, i64(2)) as (k, _):
        place, row = build.add(to, build.mul(build.lshr(k, i64(1)), line)), build.add(origin, build.mul(stride, k))
        has_second = build.icmp_signed("<", build.add(k, i64(1)), depth)
        behind = build.select(has_second, build.add(row, stride), row)
        for start, count in zip(starts, counts, strict=True):
            first, second = (numbers(at, start, count) for at in (row, behind))
            second = build.select(has_second, second, ir.Constant(second.type, None))
            emit.store(emit.offset(place, start), paired(emit, first, second))
    build.ret_void()
