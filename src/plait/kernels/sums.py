"""Sums over all rows: C = B' A, the gradients of the weights; and sums over parts of the batch (parts.py).

Both factors are packed, some rows at a time. numba compiles this once, for all cells.
"""

from . import records
from .machine import Int, call6, call9, compiled, copy, get, prefetch, put
from .packing import blocks, pack
from .records import product as PRODUCT

LINE = 64  # bytes of a line of the caches
ADDED = 4096  # numbers that are added at a time, in a sum over parts


@compiled(2, Int)
def columns_of(product, side):
    return get(product, PRODUCT.RUN_COLUMNS + side * PRODUCT.PER_RUN)


@compiled(2, Int)
def tiles_of(product, side):
    """How many tiles the columns of a side have, side by side."""
    rows = get(product, PRODUCT.TILE_ROWS)
    return (columns_of(product, side) + rows - 1) // rows


@compiled(2, Int)
def side_of(product, number):
    """The side that tile `number` of all belongs to."""
    side = 0
    while number >= tiles_of(product, side):
        number -= tiles_of(product, side)
        side += 1
    return side


@compiled(3, Int)
def column_of(product, side, number):
    """The first column of tile `number` of all, which is one of that side or the first after it."""
    for before in range(side):
        number -= tiles_of(product, before)
    return columns_of(product, side) * number // tiles_of(product, side)


@compiled(4, Int)
def place_of(product, side, k, column):
    """The address of a number of a side, in row k. A part skips rows of others after each step."""
    run, skip = side * PRODUCT.PER_RUN, get(product, PRODUCT.SIDE_SKIP + side)
    place = get(product, PRODUCT.RUN + run) + k * get(product, PRODUCT.RUN_ROW + run)
    if skip:
        place += k // get(product, PRODUCT.STEP) * skip
    return place + column * get(product, PRODUCT.SIZE)


@compiled(7)
def pack_side(product, side, column, size, start, depth, to):
    """`size` columns of a side, `column` and following, in `depth` rows, `start` and following."""
    SIZE, leaf, k = get(product, PRODUCT.SIZE), get(product, PRODUCT.PACK_SIDE), start
    row, step = get(product, PRODUCT.RUN_ROW + side * PRODUCT.PER_RUN), get(product, PRODUCT.STEP)
    while k < start + depth:
        some = start + depth - k
        if get(product, PRODUCT.SIDE_SKIP + side):
            some = min(some, step - k % step)
        call6(leaf, to + (k - start) * size * SIZE, place_of(product, side, k, column), row, some, size, 0)
        k += some


@compiled(2)
def fetch(origin, size):
    """Prefetches that many bytes: all lines that have some of them."""
    line = origin // LINE * LINE
    while line < origin + size:
        prefetch(line)
        line += LINE


@compiled(5)
def fetch_side(product, side, k, column, last):
    """Prefetches row k of a side, from one column to another."""
    fetch(place_of(product, side, k, column), (last - column) * get(product, PRODUCT.SIZE))


@compiled(2)
def add_parts(product, item):
    """Piece number `item` of a sum over parts: one part after another."""
    SIZE, first = get(product, PRODUCT.SIZE), item * ADDED
    n = min(ADDED, get(product, PRODUCT.M) - first)
    to, part = get(product, PRODUCT.C) + first * SIZE, get(product, PRODUCT.PARTIAL) + first * SIZE
    copy(to, part, n * SIZE)
    for _ in range(1, get(product, PRODUCT.TOTAL)):
        part += get(product, PRODUCT.PARTIAL_SIZE)
        call6(get(product, PRODUCT.ADD_BIAS), to, part, n, 0, 0, 0)


@compiled(3)
def outer_product(product, item, workspace):
    """Piece number `item` of C': the columns of some sides times some blocks of columns of B, summed over pieces of K.

    Both factors are packed, piece by piece, so that a tile reads them from the first two caches. The results stay in
    the workspace until all pieces are added. Then they are written, transposed.
    """
    SIZE, WIDTH, TILE_ROWS = get(product, PRODUCT.SIZE), get(product, PRODUCT.WIDTH), get(product, PRODUCT.TILE_ROWS)
    K, COLUMNS, factor = get(product, PRODUCT.DEPTH), get(product, PRODUCT.COLUMNS), get(product, PRODUCT.FACTOR_ROW)
    groups, chunks, tiles = get(product, PRODUCT.GROUPS), get(product, PRODUCT.CHUNKS), get(product, PRODUCT.M)
    every, group, chunk = blocks(product, COLUMNS), item % groups, item // groups
    block, last = every * group // groups, every * (group + 1) // groups
    begin, end = tiles * chunk // chunks, tiles * (chunk + 1) // chunks
    line, slot = WIDTH * SIZE, TILE_ROWS * WIDTH * SIZE
    packed = (records.PIECE * TILE_ROWS + WIDTH) * SIZE  # the last vector of a side ends past its rows
    panels = workspace + 64  # first comes the number 1
    sides = panels + (last - block) * (records.PIECE + 1) * line
    results = sides + (end - begin) * packed
    sums = results + (end - begin) * (last - block) * slot
    has_sums, start = get(product, PRODUCT.SUMS) if chunk == 0 else 0, 0
    put(workspace, 0, get(product, PRODUCT.ONE))
    # what it needs of a row: of B, and of one side or two, or none
    wanted, wanted_size = get(product, PRODUCT.FACTOR) + block * line, min(last * WIDTH, COLUMNS) * SIZE - block * line
    one = other = from_column = to_column = end_of_one = 0
    if begin < end:
        one, other = side_of(product, begin), side_of(product, end - 1)
        from_column, to_column = column_of(product, one, begin), column_of(product, other, end)
        end_of_one = to_column if one == other else columns_of(product, one)
    while start < K:
        depth, leaf = min(records.PIECE, K - start), get(product, PRODUCT.TILE_ON if start else PRODUCT.TILE)
        stride, done, fetched = (depth + 1) * line, 0, start + depth
        for number in range(begin, end):
            side = side_of(product, number)
            column = column_of(product, side, number)
            size, to = column_of(product, side, number + 1) - column, sides + (number - begin) * packed
            pack_side(product, side, column, size, start, depth, to)
        for j in range(last - block):
            unit, panel = (block + j) * WIDTH, panels + j * stride
            origin = get(product, PRODUCT.FACTOR) + start * factor + unit * SIZE
            pack(product, get(product, PRODUCT.PACK), panel, origin, factor, depth, min(WIDTH, COLUMNS - unit))
            narrow = 1 if COLUMNS - unit <= get(product, PRODUCT.LANES) else 0
            if has_sums:
                call9(leaf, 32 + 2 + narrow, workspace, 0, 0, depth, panel, stride, sums + j * slot, 0)
            for number in range(begin, end):
                side = side_of(product, number)
                size = column_of(product, side, number + 1) - column_of(product, side, number)
                a, to = sides + (number - begin) * packed, results + ((number - begin) * (last - block) + j) * slot
                call9(leaf, size * 32 + 2 + narrow, a, SIZE, size * SIZE, depth, panel, stride, to, 0)
                done += 1
                further = min(K, start + depth + depth * done // ((end - begin) * (last - block)))
                while fetched < further:  # the rows that come next, bit by bit
                    fetch(wanted + fetched * factor, wanted_size)
                    fetch_side(product, one, fetched, from_column, end_of_one)
                    if one != other:
                        fetch_side(product, other, fetched, 0, to_column)
                    fetched += 1
        start += depth
    for j in range(last - block):
        unit = (block + j) * WIDTH
        units = min(WIDTH, COLUMNS - unit)
        for number in range(begin, end):
            side = side_of(product, number)
            column, row = column_of(product, side, number), columns_of(product, side)
            to = get(product, PRODUCT.C + side) + (unit * row + column) * SIZE
            result = results + ((number - begin) * (last - block) + j) * slot
            size = column_of(product, side, number + 1) - column
            call6(get(product, PRODUCT.WRITE), to, row * SIZE, size, units, result, 0)
        for k in range(2 if has_sums else 0):
            if get(product, PRODUCT.SUMS + k):
                copy(get(product, PRODUCT.SUMS + k) + unit * SIZE, sums + j * slot, units * SIZE)
