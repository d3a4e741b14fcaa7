"""A register tile: a few rows of A times one or more panels of weights, accumulated in registers.

A panel has `width` columns, one row after another: first the row that the sums start from (the bias), then the weights.
The result goes to a scratch of fixed layout, [panel][row][column], where the gates read it. A sum runs over k in order
in every tile. So the result of a row does not depend on the rows beside it.
"""

from itertools import product

from llvmlite import ir
from numba.core import cgutils

from .target import I32, I64, Target
from .vectors import Emitter

FEW = 4  # rows
LINE = 64  # bytes of a line of the caches


def slot(target: Target, panel: int, row: int) -> int:
    """Where a row of a panel's result begins in the scratch, in numbers."""
    return (panel * target.rows + row) * target.width


def tile_function(module: ir.Module, target: Target, rows: int, panels: int, vectors: int, resume: bool) -> ir.Function:
    """void tile(a, bytes from row to row, and from k to k, depth, panel, bytes from panel to panel, scratch)"""
    name = f"plait_tile_{rows}x{panels}x{vectors}{'_resume' if resume else ''}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 7), name)
    function.linkage = "internal"
    a, lda, step, depth, panel, stride, scratch = function.args
    before = function.append_basic_block("start")
    build = ir.IRBuilder(before)
    emit = Emitter(build, target)
    cells = list(product(range(rows), range(panels), range(vectors)))
    panel_at = [build.add(panel, build.mul(stride, ir.Constant(I64, p))) for p in range(panels)]
    row_at = [build.add(a, build.mul(lda, ir.Constant(I64, r))) for r in range(rows)]
    out_at = {(r, p, v): emit.offset(scratch, slot(target, p, r) + v * target.lanes) for r, p, v in cells}
    if resume:
        start = {c: emit.load(out_at[c]) for c in cells}
    else:
        bias = {
            (p, v): emit.load(emit.offset(panel_at[p], v * target.lanes)) for p in range(panels) for v in range(vectors)
        }
        start = {(r, p, v): bias[p, v] for r, p, v in cells}
    loop, after = function.append_basic_block("k"), function.append_basic_block("end")
    build.cbranch(build.icmp_signed(">", depth, ir.Constant(I64, 0)), loop, after)
    build.position_at_end(after)
    results = {c: build.phi(target.vector) for c in cells}
    for c in cells:
        results[c].add_incoming(start[c], before)
    build.position_at_end(loop)
    k = build.phi(I64)
    k.add_incoming(ir.Constant(I64, 0), before)
    sums = {c: build.phi(target.vector) for c in cells}
    next_k = build.add(k, ir.Constant(I64, 1))
    in_a = build.mul(k, step)
    in_panel = build.mul(next_k, ir.Constant(I64, target.width * target.size))

    def number(r: int) -> ir.Value:
        return emit.splat(build.load(emit.at(build.add(row_at[r], in_a), target.number)))

    def weights(p: int, v: int) -> ir.Value:
        at = emit.offset(build.add(panel_at[p], in_panel), v * target.lanes)
        is_new_line = v * target.lanes * target.size % LINE == 0
        if target.ahead and is_new_line and rows >= FEW:  # with fewer rows the loads themselves take the time
            emit.prefetch(build.add(at, ir.Constant(I64, target.ahead)), to_write=False, near=2)
        return emit.load(at)

    def add(r: int, p: int, v: int, x: ir.Value, w: ir.Value) -> None:
        total = emit.intrinsic(f"llvm.fma.{target.suffix}", target.vector, x, w, sums[r, p, v])
        sums[r, p, v].add_incoming(start[r, p, v], before)
        sums[r, p, v].add_incoming(total, loop)
        start[r, p, v] = total  # from here on the end of the sum

    # The smaller operand stays in registers, the other is loaded again; the sums never leave.
    columns = list(product(range(panels), range(vectors)))
    if rows < len(columns):
        held = [number(r) for r in range(rows)]
        for p, v in columns:
            w = weights(p, v)
            for r in range(rows):
                add(r, p, v, held[r], w)
    else:
        panel_held = {(p, v): weights(p, v) for p, v in columns}
        for r in range(rows):
            x = number(r)
            for p, v in columns:
                add(r, p, v, x, panel_held[p, v])
    k.add_incoming(next_k, loop)
    build.cbranch(build.icmp_signed("<", next_k, depth), loop, after)
    build.position_at_end(after)
    for c in cells:
        results[c].add_incoming(start[c], loop)
        emit.store(out_at[c], results[c])
    build.ret_void()
    return function


def product_function(module: ir.Module, target: Target, name: str, *, resume: bool) -> None:
    """void name(key, a, lda, step, depth, panel, stride, scratch, -): the tile of key = 32 rows + 2 panels + narrow."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 9), name)
    build = ir.IRBuilder(function.append_basic_block())
    end = function.append_basic_block("end")
    switch = build.switch(function.args[0], end)
    for rows in range(1, target.rows + 1):
        count = target.panels(rows)
        shapes = [(count >> k, target.vectors) for k in range(count.bit_length())]
        for panels, vectors in [*shapes, (1, 1)] if target.vectors > 1 else shapes:
            tile = tile_function(module, target, rows, panels, vectors, resume)
            build.position_at_end(function.append_basic_block())
            switch.add_case(ir.Constant(I64, rows * 32 + panels * 2 + (vectors < target.vectors)), build.block)
            build.call(tile, function.args[1:8])
            build.branch(end)
    build.position_at_end(end)
    build.ret_void()


def pack_transposed_function(module: ir.Module, target: Target, name: str) -> None:
    """void name(to, from, bytes from row to row of it, depth, units, keep): to[k][j] = from[j][k], then zeros; or what
    is there, if `keep` is not 0.
    """
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 6), name)
    to, origin, stride, depth, units, keep = function.args
    build = ir.IRBuilder(function.append_basic_block())
    emit, size, lanes = Emitter(build, target), ir.Constant(I64, target.size), target.lanes
    row = ir.Constant(I64, target.width * target.size)

    def numbers(value: int) -> ir.Constant:
        return ir.Constant(I64, value)

    full = build.icmp_signed("==", units, numbers(target.width))
    blocked = build.select(full, build.sub(depth, build.srem(depth, numbers(lanes))), numbers(0))
    with cgutils.for_range_slice(build, numbers(0), blocked, numbers(lanes)) as (k, _):
        for v in range(target.vectors):
            at = [
                build.add(origin, build.add(build.mul(stride, numbers(v * lanes + j)), build.mul(k, size)))
                for j in range(lanes)
            ]
            for j, part in enumerate(transposed(emit, [emit.load(a) for a in at])):
                emit.store(emit.offset(build.add(to, build.mul(build.add(k, numbers(j)), row)), v * lanes), part)
    with cgutils.for_range_slice(build, blocked, depth, numbers(1)) as (k, _):
        line = build.add(to, build.mul(k, row))
        with build.if_then(build.icmp_signed("==", keep, numbers(0))):
            for v in range(target.vectors):
                emit.store(emit.offset(line, v * lanes), emit.splat(0.0))
        with cgutils.for_range_slice(build, numbers(0), units, numbers(1)) as (j, _):
            value = build.load(
                emit.at(build.add(origin, build.add(build.mul(stride, j), build.mul(k, size))), target.number)
            )
            build.store(value, emit.at(build.add(line, build.mul(j, size)), target.number))
    build.ret_void()


def transposed(emit: Emitter, rows: list[ir.Value]) -> list[ir.Value]:
    """The transpose of a square of vectors: exchanges single numbers, then pairs, then fours, and so on."""
    lanes, half = len(rows), 1
    while half < lanes:
        for i in range(0, lanes):
            if i & half:
                continue
            a, b = rows[i], rows[i + half]
            low = [k if not k & half else lanes + k - half for k in range(lanes)]
            high = [k + half if not k & half else lanes + k for k in range(lanes)]
            rows[i], rows[i + half] = (
                emit.build.shuffle_vector(
                    a, b, ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, k) for k in order])
                )
                for order in (low, high)
            )
        half *= 2
    return rows


def pack_columns_function(module: ir.Module, target: Target, name: str) -> None:
    """void name(to, from, bytes from row to row of it, depth, units, -): to[k][j] = from[k][j], then zeros."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 6), name)
    to, origin, stride, depth, units, _ = function.args
    build = ir.IRBuilder(function.append_basic_block())
    emit, width = Emitter(build, target), ir.Constant(I64, target.width * target.size)
    masks = [emit.mask(build.sub(units, ir.Constant(I64, v * target.lanes))) for v in range(target.vectors)]
    with cgutils.for_range_slice(build, ir.Constant(I64, 0), depth, ir.Constant(I64, 1)) as (k, _):
        line, column = build.add(to, build.mul(k, width)), build.add(origin, build.mul(k, stride))
        for v, mask in enumerate(masks):
            emit.store(emit.offset(line, v * target.lanes), emit.load(emit.offset(column, v * target.lanes), mask))
    build.ret_void()


def add_bias_function(module: ir.Module, target: Target, name: str) -> None:
    """void name(to, from, units, -, -, -): to[j] += from[j]"""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 6), name)
    to, origin, units, *_ = function.args
    build = ir.IRBuilder(function.append_basic_block())
    emit = Emitter(build, target)
    with cgutils.for_range(build, units) as loop:
        offset = build.mul(loop.index, ir.Constant(I64, target.size))
        place, more = (emit.at(build.add(start, offset), target.number) for start in (to, origin))
        build.store(build.fadd(build.load(place), build.load(more)), place)
    build.ret_void()


def pack_side_function(module: ir.Module, target: Target, name: str) -> None:
    """void name(to, from, bytes from row to row of it, depth, n, -): to[k][r] = from[k][r] for r < n, rows of a
    tile. Whole vectors are stored: what is too much lies in the next row, or in the room after the last one.
    """
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 6), name)
    to, origin, stride, depth, n, _ = function.args
    build = ir.IRBuilder(function.append_basic_block())
    emit, row = Emitter(build, target), build.mul(n, ir.Constant(I64, target.size))
    starts = range(0, target.rows, target.lanes)
    masks = [emit.mask(build.sub(n, ir.Constant(I64, start))) for start in starts]
    with cgutils.for_range_slice(build, ir.Constant(I64, 0), depth, ir.Constant(I64, 1)) as (k, _):
        source, line = build.add(origin, build.mul(k, stride)), build.add(to, build.mul(k, row))
        for start, mask in zip(starts, masks, strict=True):
            emit.store(emit.offset(line, start), emit.load(emit.offset(source, start), mask))
    build.ret_void()


def write_function(module: ir.Module, target: Target, name: str) -> None:
    """void name(to, bytes from row to row of it, n, units, scratch, -): to[j][r] = scratch[r][j], r < n, j < units."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 6), name)
    to, stride, n, units, scratch, _ = function.args
    build = ir.IRBuilder(function.append_basic_block())
    emit, lanes = Emitter(build, target), target.lanes

    def number(value: int) -> ir.Constant:
        return ir.Constant(I64, value)

    for v in range(target.vectors):
        first = number(v * lanes)
        whole = build.icmp_signed(">=", units, number((v + 1) * lanes))
        with build.if_else(whole) as (vectors, single):
            with vectors:
                for start in range(0, target.rows, lanes):
                    count = build.sub(n, number(start))
                    with build.if_then(build.icmp_signed(">", count, number(0))):
                        rows = [
                            emit.load(emit.offset(scratch, (start + r) * target.width + v * lanes))
                            if start + r < target.rows
                            else emit.splat(0.0)
                            for r in range(lanes)
                        ]
                        places = [
                            (emit.offset(build.add(to, build.mul(stride, number(v * lanes + j))), start), column)
                            for j, column in enumerate(transposed(emit, rows))
                        ]
                        with build.if_else(build.icmp_signed(">=", count, number(lanes))) as (full, some):
                            with full:
                                for address, column in places:
                                    emit.store(address, column)
                            with some:
                                emit.store_first(places, count)
            with (
                single,
                cgutils.for_range_slice(build, first, units, number(1)) as (j, _),
                cgutils.for_range_slice(build, number(0), n, number(1)) as (r, _),
            ):
                place = build.add(build.mul(r, number(target.width)), j)
                value = build.load(emit.at(build.add(scratch, build.mul(place, number(target.size))), target.number))
                at = build.add(build.add(to, build.mul(stride, j)), build.mul(r, number(target.size)))
                build.store(value, emit.at(at, target.number))
    build.ret_void()
