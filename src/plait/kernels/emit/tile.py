"""A register tile: a few rows of A times one or more panels of weights, accumulated in registers.

A panel has `width` columns, one row after another: first the row that the sums start from (the bias), then the weights.
The result goes to a scratch of fixed layout, [panel][row][column], where the gates read it. A sum runs over k in order
in every tile. So the result of a row does not depend on the rows beside it.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

from llvmlite import ir
from numba.core.cgutils import for_range, for_range_slice

from . import pairs
from .target import I32, I64, Target, i64
from .vectors import Emitter, intrinsic, new_function, prefetch, transposed

FEW = 4  # rows
LINE = 64  # bytes of a line of the caches
AHEAD = 8192  # bytes: weights are prefetched that far ahead, into the second cache

Cells = dict[tuple[int, int, int], ir.Value]  # by row, panel and vector


def slot(target: Target, panel: int, row: int) -> int:
    """Where a row of a panel's result begins in the scratch, in numbers."""
    return (panel * target.rows + row) * target.width


def tile_function(module: ir.Module, target: Target, rows: int, panels: int, vectors: int, resume: bool) -> ir.Function:
    """void tile(a, bytes from row to row, and from k to k, depth, panel, bytes from panel to panel, scratch)"""
    name = f"plait_tile_{rows}x{panels}x{vectors}{'_resume' if resume else ''}"
    if name in module.globals:
        return module.globals[name]
    emit, (a, lda, step, depth, panel, stride, scratch) = new_function(module, target, name, 7)
    build, before, function = emit.build, emit.build.block, emit.build.function
    function.linkage = "internal"
    cells = list(product(range(rows), range(panels), range(vectors)))
    panel_at = [build.add(panel, build.mul(stride, i64(p))) for p in range(panels)]
    row_at = [build.add(a, build.mul(lda, i64(r))) for r in range(rows)]
    out_at = {(r, p, v): emit.offset(scratch, slot(target, p, r) + v * target.lanes) for r, p, v in cells}
    if resume:
        start = {c: emit.load(out_at[c]) for c in cells}
    else:
        columns = product(range(panels), range(vectors))
        bias = {(p, v): emit.load(emit.offset(panel_at[p], v * target.lanes)) for p, v in columns}
        start = {(r, p, v): bias[p, v] for r, p, v in cells}
    loop, after = function.append_basic_block("k"), function.append_basic_block("end")
    build.cbranch(build.icmp_signed(">", depth, i64(0)), loop, after)
    build.position_at_end(loop)
    k = build.phi(I64)
    sums = {c: build.phi(target.vector) for c in cells}
    next_k = build.add(k, i64(1))
    in_a, in_panel = build.mul(k, step), build.mul(next_k, i64(target.width * target.size))

    def number_at(r: int) -> ir.Value:
        return build.add(row_at[r], in_a)

    def weights_at(p: int, v: int) -> ir.Value:
        at = emit.offset(build.add(panel_at[p], in_panel), v * target.lanes)
        is_new_line = v * target.lanes * target.size % LINE == 0
        if is_new_line and rows >= FEW:  # with fewer rows the loads themselves take the time
            prefetch(build, build.add(at, i64(AHEAD)), to_write=False, near=2)
        return at

    totals = sums
    for kind in terms_of(emit):
        totals = with_term(totals, kind, number_at, weights_at)
    build.cbranch(build.icmp_signed("<", next_k, depth), loop, after)
    build.position_at_end(after)
    results = {c: build.phi(target.vector) for c in cells}
    phis = [(k, i64(0), next_k), *((some[c], start[c], totals[c]) for some in (sums, results) for c in cells)]
    for phi, first, following in phis:
        phi.add_incoming(first, before)
        phi.add_incoming(following, loop)
    for c in cells:
        emit.store(out_at[c], results[c])
    build.ret_void()
    return function


class Term(NamedTuple):
    """How a tile reads its operands, and adds their product to a sum."""

    number: Callable[[ir.Value], ir.Value]  # address -> of A, in all lanes
    weights: Callable[[ir.Value], ir.Value]  # address -> of a panel
    add: Callable[[ir.Value, ir.Value, ir.Value], ir.Value]  # number, weights, sum


def terms_of(emit: Emitter) -> list[Term]:
    """One term for each k; of pairs it is one of two products, or two of one."""
    build, target = emit.build, emit.target
    suffix, vector = target.suffix, target.vector

    def fma(x: ir.Value, w: ir.Value, total: ir.Value) -> ir.Value:
        return intrinsic(build, f"llvm.fma.{suffix}", vector, x, w, total)

    def word(address: ir.Value) -> ir.Value:
        return build.load(emit.at(address, I32))

    def words(address: ir.Value) -> ir.Value:
        return build.bitcast(emit.load(address), ir.VectorType(I32, target.lanes))

    def part(second: bool) -> Term:
        return Term(
            lambda at: emit.splat(pairs.term(emit, word(at), second)),
            lambda at: pairs.term(emit, words(at), second),
            fma,
        )

    if not target.rounded:
        return [Term(lambda at: emit.splat(build.load(emit.at(at, target.number))), emit.load, fma)]
    if target.dot:
        return [Term(lambda at: emit.splat(word(at)), words, partial(pairs.add_dot, emit))]
    return [part(False), part(True)]


def with_term(
    sums: Cells, term: Term, number_at: Callable[[int], ir.Value], weights_at: Callable[[int, int], ir.Value]
) -> Cells:
    """The sums and one term more: that number of each row of A times these weights of each column.

    The smaller operand stays in registers, the other is loaded again; the sums never leave.
    """
    rows, columns = 1 + max(r for r, _, _ in sums), sorted({(p, v) for _, p, v in sums})
    totals: Cells = {}
    if rows < len(columns):
        held = [term.number(number_at(r)) for r in range(rows)]
        for p, v in columns:
            w = term.weights(weights_at(p, v))
            for r in range(rows):
                totals[r, p, v] = term.add(held[r], w, sums[r, p, v])
    else:
        panel_held = {(p, v): term.weights(weights_at(p, v)) for p, v in columns}
        for r in range(rows):
            x = term.number(number_at(r))
            for p, v in columns:
                totals[r, p, v] = term.add(x, panel_held[p, v], sums[r, p, v])
    return totals


def product_function(module: ir.Module, target: Target, name: str, *, resume: bool) -> None:
    """void name(key, a, lda, step, depth, panel, stride, scratch, -): the tile of key = 32 rows + 2 panels + narrow."""
    emit, arguments = new_function(module, target, name, 9)
    build, function = emit.build, emit.build.function
    end = function.append_basic_block("end")
    switch = build.switch(arguments[0], end)
    for rows in range(1, target.rows + 1):
        count = target.panels(rows)
        shapes = [(count >> k, target.vectors) for k in range(count.bit_length())]
        for panels, vectors in [*shapes, (1, 1)] if target.vectors > 1 else shapes:
            tile = tile_function(module, target, rows, panels, vectors, resume)
            build.position_at_end(function.append_basic_block())
            switch.add_case(i64(rows * 32 + panels * 2 + (vectors < target.vectors)), build.block)
            build.call(tile, arguments[1:8])
            build.branch(end)
    build.position_at_end(end)
    build.ret_void()


def pack_transposed_function(module: ir.Module, target: Target, name: str) -> None:
    """void name(to, from, bytes from row to row of it, depth, units, keep): to[k][j] = from[j][k], then zeros; or what
    is there, if `keep` is not 0.
    """
    emit, (to, origin, stride, depth, units, keep) = new_function(module, target, name, 6)
    build, lanes, size, row = emit.build, target.lanes, i64(target.size), i64(target.width * target.size)
    full = build.icmp_signed("==", units, i64(target.width))
    blocked = build.select(full, build.sub(depth, build.srem(depth, i64(lanes))), i64(0))
    with for_range_slice(build, i64(0), blocked, i64(lanes)) as (k, _):
        start = build.add(origin, build.mul(k, size))
        for v in range(target.vectors):
            at = [build.add(start, build.mul(stride, i64(v * lanes + j))) for j in range(lanes)]
            for j, column in enumerate(transposed(emit, [emit.load(a) for a in at])):
                emit.store(emit.offset(build.add(to, build.mul(build.add(k, i64(j)), row)), v * lanes), column)
    with for_range_slice(build, blocked, depth, i64(1)) as (k, _):
        line, start = build.add(to, build.mul(k, row)), build.add(origin, build.mul(k, size))
        with build.if_then(build.icmp_signed("==", keep, i64(0))):
            for v in range(target.vectors):
                emit.store(emit.offset(line, v * lanes), emit.splat(0.0))
        with for_range(build, units) as loop:
            value = build.load(emit.at(build.add(start, build.mul(stride, loop.index)), target.number))
            build.store(value, emit.at(build.add(line, build.mul(loop.index, size)), target.number))
    build.ret_void()


def pack_rows_function(module: ir.Module, target: Target, name: str, *, side: bool) -> None:
    """void name(to, from, bytes from row to row of it, depth, n, -): to[k][j] = from[k][j] for j < n, then zeros.

    A row of `to` is a line of a panel; of a side it is n numbers, as many as a tile has rows at most. There the zeros
    lie in the next row, or in the room after the last one.
    """
    emit, (to, origin, stride, depth, n, _) = new_function(module, target, name, 6)
    build, row = emit.build, i64(target.width * target.size)
    if side:
        row = build.mul(n, i64(target.size))
    starts = range(0, target.rows if side else target.width, target.lanes)
    masks = [emit.mask(build.sub(n, i64(start))) for start in starts]
    with for_range(build, depth) as loop:
        line, source = (build.add(at, build.mul(loop.index, size)) for at, size in ((to, row), (origin, stride)))
        for start, mask in zip(starts, masks, strict=True):
            emit.store(emit.offset(line, start), emit.load(emit.offset(source, start), mask))
    build.ret_void()


def add_bias_function(module: ir.Module, target: Target, name: str) -> None:
    """void name(to, from, units, -, -, -): to[j] += from[j]"""
    emit, (to, origin, units, *_) = new_function(module, target, name, 6)
    build = emit.build
    with for_range(build, units) as loop:
        offset = build.mul(loop.index, i64(target.size))
        place, more = (emit.at(build.add(start, offset), target.number) for start in (to, origin))
        build.store(build.fadd(build.load(place), build.load(more)), place)
    build.ret_void()


def write_function(module: ir.Module, target: Target, name: str) -> None:
    """void name(to, bytes from row to row of it, n, units, scratch, -): to[j][r] = scratch[r][j], r < n, j < units."""
    emit, (to, stride, n, units, scratch, _) = new_function(module, target, name, 6)
    build, lanes = emit.build, target.lanes
    for v in range(target.vectors):
        whole = build.icmp_signed(">=", units, i64((v + 1) * lanes))
        with build.if_else(whole) as (vectors, single):
            with vectors:
                for start in range(0, target.rows, lanes):
                    count = build.sub(n, i64(start))
                    with build.if_then(build.icmp_signed(">", count, i64(0))):
                        rows = [
                            emit.load(emit.offset(scratch, slot(target, 0, r) + v * lanes))
                            if r < target.rows
                            else emit.splat(0.0)
                            for r in range(start, start + lanes)
                        ]
                        places = [
                            (emit.offset(build.add(to, build.mul(stride, i64(v * lanes + j))), start), column)
                            for j, column in enumerate(transposed(emit, rows))
                        ]
                        with build.if_else(build.icmp_signed(">=", count, i64(lanes))) as (full, some):
                            with full:
                                for address, column in places:
                                    emit.store(address, column)
                            with some:
                                emit.store_first(places, count)
            with (
                single,
                for_range_slice(build, i64(v * lanes), units, i64(1)) as (j, _),
                for_range(build, n) as loop,
            ):
                place = build.add(build.mul(loop.index, i64(target.width)), j)
                value = build.load(emit.at(build.add(scratch, build.mul(place, i64(target.size))), target.number))
                at = build.add(build.add(to, build.mul(stride, j)), build.mul(loop.index, i64(target.size)))
                build.store(value, emit.at(at, target.number))
    build.ret_void()


Writes = dict[str, Callable[[ir.Module, Target, str], None]]
FUNCTIONS: Writes = {
    "plait_product": partial(product_function, resume=False),
    "plait_product_on": partial(product_function, resume=True),
    "plait_pack_transposed": pack_transposed_function,
    "plait_pack_columns": partial(pack_rows_function, side=False),
    "plait_pack_side": partial(pack_rows_function, side=True),
    "plait_add_bias": add_bias_function,
    "plait_write": write_function,
}
# if operands are rounded to bfloat16
OF_PAIRS: Writes = {
    "plait_pack_transposed": pairs.pack_transposed_function,
    "plait_pack_columns": partial(pairs.pair_rows_function, side=False, short=False),
    "plait_pack_short": partial(pairs.pair_rows_function, side=False, short=True),
    "plait_pack_side": partial(pairs.pair_rows_function, side=True, short=True),
    "plait_round": pairs.round_function,
}
