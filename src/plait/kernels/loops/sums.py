"""Sums over all rows: C = B' A, the gradients of the weights; and sums over slabs of the batch (slabs.py).

Both factors are packed, some rows at a time. numba compiles this once, for all cells.
"""

from ..records import PIECE, Product, Tile
from .machine import Int, call6, call9, compiled, copy, get, prefetch, put, zero
from .packing import blocks

LINE = 64  # bytes of a line of the caches
ADDED = 4096  # numbers that are added at a time, in a sum over slabs


@compiled(2, Int)
def tile_of(product, number):
    return get(product, Product.TILES) + number * Tile.SIZE * 8


@compiled(4, Int)
def place_of(product, side, k, column):
    """The address of a number of a side, in row k. A slab skips rows of others after each step."""
    run, skip = side * Product.RUN_SIZE, get(product, Product.SIDE_SKIP + side)
    place = get(product, Product.RUN + run) + k * get(product, Product.RUN_ROW + run)
    if skip:
        place += k // get(product, Product.STEP) * skip
    return place + column * get(product, Product.OPERAND)


@compiled(7)
def pack_side(product, side, column, size, start, depth, to):
    """`size` columns of a side, `column` and following, in `depth` rows, `start` and following."""
    SIZE, function, k = get(product, Product.NUMBER), get(product, Product.PACK_SIDE), start
    row, step = get(product, Product.RUN_ROW + side * Product.RUN_SIZE), get(product, Product.STEP)
    while k < start + depth:
        some = start + depth - k
        if get(product, Product.SIDE_SKIP + side):
            some = min(some, step - k % step)
        line = (k - start) // get(product, Product.PER_LINE)
        call6(function, to + line * size * SIZE, place_of(product, side, k, column), row, some, size, 0)
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
    fetch(place_of(product, side, k, column), (last - column) * get(product, Product.OPERAND))


@compiled(2)
def add_slabs(product, item):
    """Piece number `item` of a sum over slabs: one slab after another."""
    SIZE, first = get(product, Product.NUMBER), item * ADDED
    n = min(ADDED, get(product, Product.M) - first)
    to, slab = get(product, Product.C) + first * SIZE, get(product, Product.PARTIAL) + first * SIZE
    copy(to, slab, n * SIZE)
    for _ in range(1, get(product, Product.TOTAL)):
        slab += get(product, Product.PARTIAL_SIZE)
        call6(get(product, Product.ADD_BIAS), to, slab, n, 0, 0, 0)


@compiled(1, Int)
def packed_size(product):
    """Bytes of a packed tile: the last vector of a side ends past its rows."""
    return PIECE * get(product, Product.TILE_ROWS) * get(product, Product.NUMBER) + get(product, Product.LINE)


@compiled(6)
def pack_tiles(product, begin, end, start, depth, to):
    """The columns of some tiles, in `depth` rows, `start` and following. Each has room for a full tile."""
    for number in range(begin, end):
        tile = tile_of(product, number)
        pack_side(product, get(tile, Tile.SIDE), get(tile, Tile.COLUMN), get(tile, Tile.COUNT), start, depth, to)
        to += packed_size(product)


@compiled(7)
def write_results(product, block, last, begin, end, results, sums):
    """Writes C, transposed, and the sums of B if there are any."""
    SIZE, WIDTH, COLUMNS = get(product, Product.NUMBER), get(product, Product.WIDTH), get(product, Product.COLUMNS)
    slot = get(product, Product.SLOT)
    for j in range(last - block):
        unit = (block + j) * WIDTH
        units = min(WIDTH, COLUMNS - unit)
        for number in range(begin, end):
            tile, result = tile_of(product, number), results + ((number - begin) * (last - block) + j) * slot
            side, size = get(tile, Tile.SIDE), get(tile, Tile.COUNT)
            row = get(product, Product.RUN_COLUMNS + side * Product.RUN_SIZE)
            to = get(product, Product.C + side) + (unit * row + get(tile, Tile.COLUMN)) * SIZE
            call6(get(product, Product.WRITE), to, row * SIZE, size, units, result, 0)
        for k in range(2 if sums else 0):
            if get(product, Product.SUMS + k):
                copy(get(product, Product.SUMS + k) + unit * SIZE, sums + j * slot, units * SIZE)


@compiled(3)
def outer_product(product, item, workspace):
    """Piece number `item` of C': the columns of some sides times some blocks of columns of B, summed over pieces of K.

    Both factors are packed, piece by piece, so that a tile reads them from the first two caches. The results stay in
    the workspace until all pieces are added. Then they are written, transposed.
    """
    SIZE, WIDTH, packed = get(product, Product.NUMBER), get(product, Product.WIDTH), packed_size(product)
    K, COLUMNS, factor = get(product, Product.DEPTH), get(product, Product.COLUMNS), get(product, Product.FACTOR_ROW)
    groups, chunks, tiles = get(product, Product.GROUPS), get(product, Product.CHUNKS), get(product, Product.M)
    every, group, chunk = blocks(product, COLUMNS), item % groups, item // groups
    block, last = every * group // groups, every * (group + 1) // groups
    begin, end = tiles * chunk // chunks, tiles * (chunk + 1) // chunks
    line, slot = get(product, Product.LINE), get(product, Product.SLOT)
    work = (end - begin) * (last - block)
    panels = workspace + 64  # first comes the number 1
    sides = panels + (last - block) * (PIECE + 1) * line
    results = sides + (end - begin) * packed
    sums, start = results + work * slot if chunk == 0 and get(product, Product.SUMS) else 0, 0
    put(workspace, 0, get(product, Product.ONE))
    # what it needs of a row: of B, and of one side or two, or none
    first_unit, of_b = block * WIDTH, get(product, Product.OPERAND)
    wanted = get(product, Product.FACTOR) + first_unit * of_b
    wanted_size = (min(last * WIDTH, COLUMNS) - first_unit) * of_b
    one = other = from_column = to_column = end_of_one = 0
    if begin < end:
        first, final = tile_of(product, begin), tile_of(product, end - 1)
        one, other, from_column = get(first, Tile.SIDE), get(final, Tile.SIDE), get(first, Tile.COLUMN)
        to_column = get(final, Tile.COLUMN) + get(final, Tile.COUNT)
        end_of_one = to_column if one == other else get(product, Product.RUN_COLUMNS + one * Product.RUN_SIZE)
    while start < K:
        depth, function = min(PIECE, K - start), get(product, Product.TILE_ON if start else Product.TILE)
        per_line, done, fetched = get(product, Product.PER_LINE), 0, start + depth
        lines = (depth + per_line - 1) // per_line
        stride = (lines + 1) * line
        pack_tiles(product, begin, end, start, depth, sides)
        for j in range(last - block):
            unit, panel = (block + j) * WIDTH, panels + j * stride
            origin = get(product, Product.FACTOR) + start * factor + unit * of_b
            zero(panel, line)
            call6(get(product, Product.PACK_ROWS), panel + line, origin, factor, depth, min(WIDTH, COLUMNS - unit), 0)
            narrow = 1 if COLUMNS - unit <= get(product, Product.LANES) else 0
            if sums:
                call9(function, 32 + 2 + narrow, workspace, 0, 0, lines, panel, stride, sums + j * slot, 0)
            for number in range(begin, end):
                size = get(tile_of(product, number), Tile.COUNT)
                a, to = sides + (number - begin) * packed, results + ((number - begin) * (last - block) + j) * slot
                call9(function, size * 32 + 2 + narrow, a, SIZE, size * SIZE, lines, panel, stride, to, 0)
                done += 1
                further = min(K, start + depth + depth * done // work)
                while fetched < further:  # the rows that come next, bit by bit
                    fetch(wanted + fetched * factor, wanted_size)
                    fetch_side(product, one, fetched, from_column, end_of_one)
                    if one != other:
                        fetch_side(product, other, fetched, 0, to_column)
                    fetched += 1
        start += depth
    write_results(product, block, last, begin, end, results, sums)
