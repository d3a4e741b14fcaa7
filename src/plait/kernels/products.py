"""Products of rows and panels of weights. The products of a step and of whole sequences share one loop.

numba compiles this once, for all cells. The arithmetic is in the leaves (leaves.py), which are called by address.
"""

from . import records
from .machine import Int, call2, call6, call9, compiled, copy, get, memory, put, ticket, wait, zero
from .records import launch as LAUNCH
from .records import product as PRODUCT
from .records import span as SPAN

results = memory(records.GROUP * records.MOST_GATES * records.MOST_TILE // 8)
new_span = memory(SPAN.SPAN_SIZE)


@compiled(2, Int)
def blocks(product, columns):
    """How many blocks there are in that many columns."""
    return (columns + get(product, PRODUCT.WIDTH) - 1) // get(product, PRODUCT.WIDTH)


# --- packing ---------------------------------------------------------------------------------------------------------
@compiled(7)
def pack(product, leaf, panel, origin, stride, depth, units):
    """One panel: a line of zeros that the sums start from, then the weights."""
    line = get(product, PRODUCT.WIDTH) * get(product, PRODUCT.SIZE)
    zero(panel, line)
    if depth:
        call6(leaf, panel + line, origin, stride, depth, units, 0)


@compiled(2)
def pack_block(product, block):
    """Packs all panels of a block."""
    SIZE, WIDTH, DEPTH = get(product, PRODUCT.SIZE), get(product, PRODUCT.WIDTH), get(product, PRODUCT.DEPTH)
    EACH, COLUMNS, row = get(product, PRODUCT.EACH), get(product, PRODUCT.COLUMNS), get(product, PRODUCT.FACTOR_ROW)
    units, depth = min(WIDTH, COLUMNS - block * WIDTH), 0 if get(product, PRODUCT.IDLE) else DEPTH
    for each in range(EACH):
        panel = get(product, PRODUCT.PANELS) + (block * EACH + each) * (DEPTH + 1) * WIDTH * SIZE
        column = each * COLUMNS + block * WIDTH
        origin = get(product, PRODUCT.FACTOR) + column * (row if get(product, PRODUCT.TRANSPOSED) else SIZE)
        pack(product, get(product, PRODUCT.PACK), panel, origin, row, depth, units)
        if get(product, PRODUCT.BIAS):
            copy(panel, get(product, PRODUCT.BIAS) + column * SIZE, units * SIZE)


@compiled(1, Int)
def blocks_to_pack(product):
    if get(product, PRODUCT.OUTER) or get(product, PRODUCT.READY):
        return 0
    return blocks(product, get(product, PRODUCT.COLUMNS))


# --- some rows -------------------------------------------------------------------------------------------------------
@compiled(8)
def tile(product, span, first, size, panels, narrow, panel, scratch):
    """`size` rows of the span, `first` and following, times any number of panels. They fit into one tile."""
    SIZE, WIDTH, TILE_ROWS = get(product, PRODUCT.SIZE), get(product, PRODUCT.WIDTH), get(product, PRODUCT.TILE_ROWS)
    a, row = get(span, SPAN.A), get(span, SPAN.FROM) + first
    stride, slot = (get(product, PRODUCT.DEPTH) + 1) * WIDTH * SIZE, TILE_ROWS * WIDTH * SIZE
    lda, depth = get(product, PRODUCT.RUN_ROW), get(product, PRODUCT.RUN_COLUMNS) if a else 0
    some, most = 0, 1
    while most * 2 * size <= TILE_ROWS:
        most *= 2
    while some < panels:
        while most > panels - some:
            most //= 2
        key, at, to = size * 32 + most * 2 + narrow, panel + some * stride, scratch + some * slot
        call9(get(product, PRODUCT.TILE), key, a + first * lda, lda, SIZE, depth, at, stride, to, 0)
        for run in range(1, get(product, PRODUCT.RUNS) if a else 1):
            word = run * PRODUCT.PER_RUN
            at += get(product, PRODUCT.RUN_COLUMNS + word - PRODUCT.PER_RUN) * WIDTH * SIZE  # those of the run before
            base, ldm = get(product, PRODUCT.RUN + word), get(product, PRODUCT.RUN_ROW + word)
            more = get(product, PRODUCT.RUN_COLUMNS + word)
            call9(get(product, PRODUCT.TILE_ON), key, base + row * ldm, ldm, SIZE, more, at, stride, to, 0)
        some += most


@compiled(4)
def chunk_of_rows(product, span, first, n):
    """n rows of the span, `first` and following, block after block. So the weights of a block stay in cache."""
    SIZE, WIDTH, TILE_ROWS = get(product, PRODUCT.SIZE), get(product, PRODUCT.WIDTH), get(product, PRODUCT.TILE_ROWS)
    COLUMNS, EACH = get(product, PRODUCT.COLUMNS), get(product, PRODUCT.EACH)
    owner, leaf, touch = get(product, PRODUCT.OWNER), get(span, SPAN.LEAF), get(product, PRODUCT.TOUCH)
    row, sequence, olds = get(span, SPAN.ROW) + first, get(span, SPAN.SEQUENCE) + first, span + SPAN.OLDS * 8
    slot, stride = TILE_ROWS * WIDTH * SIZE, (get(product, PRODUCT.DEPTH) + 1) * WIDTH * SIZE
    scratch, apart = results(), get(product, PRODUCT.APART)
    tiles = (n + TILE_ROWS - 1) // TILE_ROWS
    # few rows: take more panels at a time, so that the multipliers are busy
    group = records.GROUP if n == 1 else 2 if n < 4 else 1
    full = 2 * (n // tiles) > TILE_ROWS
    for phase in range(2 if apart else 1):
        block = get(span, SPAN.BLOCK)
        while block < get(span, SPAN.LAST):
            count = min(group, get(span, SPAN.LAST) - block)
            panel = get(product, PRODUCT.PANELS) + block * EACH * stride
            narrow = 1 if full and count == 1 and COLUMNS - block * WIDTH <= get(product, PRODUCT.LANES) else 0
            done = 0
            for i in range(tiles):
                size = (n - done + tiles - i - 1) // (tiles - i)
                if apart:
                    scratch = apart + ((sequence + i) * blocks(product, COLUMNS) + block) * EACH * slot
                elif touch:
                    for j in range(count):
                        unit = (block + j) * WIDTH
                        call9(touch, owner, unit, COLUMNS - unit, 0, 0, row + done, 0, 0, size)
                if phase == 0:
                    tile(product, span, first + done, size, count * EACH, narrow, panel, scratch)
                if phase == 1 or not apart:
                    for j in range(count):
                        at, unit = scratch + j * EACH * slot, (block + j) * WIDTH
                        call9(
                            leaf, owner, unit, COLUMNS - unit, olds, first + done, row + done, sequence + done, at, size
                        )
                done += size
            block += count


@compiled(2)
def multiply_rows(product, span):
    """The rows of the span times the panels of its blocks. The leaf of the span gets the results."""
    n, chunk, first = get(span, SPAN.COUNT), get(product, PRODUCT.ROW_CHUNK), 0
    while first < n:
        some = min(n - first, chunk) if chunk else n
        chunk_of_rows(product, span, first, some)
        first += some


@compiled(2)
def rows(product, span):
    """multiply_rows, called by its address: so it is compiled once, and not again into each of its callers."""
    call2(get(product, PRODUCT.MULTIPLY_ROWS), product, span)


@compiled(4)
def rows_of_whole(product, row, n, leaf):
    """n rows of C, `row` and following, in all columns. The rows of A stay in cache, the panels are read one by one."""
    span = new_span()
    put(span, SPAN.COUNT, n)
    put(span, SPAN.A, get(product, PRODUCT.RUN) + row * get(product, PRODUCT.RUN_ROW))
    put(span, SPAN.FROM, row)
    put(span, SPAN.LEAF, leaf)
    put(span, SPAN.BLOCK, 0)
    put(span, SPAN.LAST, blocks(product, get(product, PRODUCT.COLUMNS)))
    put(span, SPAN.ROW, row)
    put(span, SPAN.SEQUENCE, 0)
    rows(product, span)


# --- whole sequences -------------------------------------------------------------------------------------------------
@compiled(3)
def outer_product(product, item, workspace):
    """Piece number `item` of C: some rows and columns, summed over parts of K that fit into the cache."""
    SIZE, WIDTH, TILE_ROWS = get(product, PRODUCT.SIZE), get(product, PRODUCT.WIDTH), get(product, PRODUCT.TILE_ROWS)
    M, K, COLUMNS = get(product, PRODUCT.M), get(product, PRODUCT.DEPTH), get(product, PRODUCT.COLUMNS)
    chunk, columns = get(product, PRODUCT.CHUNK), get(product, PRODUCT.BLOCKS)
    groups, line, scratch = (blocks(product, COLUMNS) + columns - 1) // columns, WIDTH * SIZE, results()
    first, block = item // groups * chunk, item % groups * columns
    n, count = min(chunk, M - first), min(columns, blocks(product, COLUMNS) - block)
    row, step, factor = get(product, PRODUCT.RUN_ROW), get(product, PRODUCT.STEP), get(product, PRODUCT.FACTOR_ROW)
    tiles, start = (n + TILE_ROWS - 1) // TILE_ROWS, 0
    while start < K:
        depth = min(records.PIECE, K - start)
        stride, a = (depth + 1) * line, get(product, PRODUCT.RUN) + first * row + start * step
        for j in range(count):
            units, origin = min(WIDTH, COLUMNS - (block + j) * WIDTH), get(product, PRODUCT.FACTOR) + (block + j) * line
            leaf = get(product, PRODUCT.PACK)
            pack(product, leaf, workspace + j * stride, origin + start * factor, factor, depth, units)
        if get(product, PRODUCT.SUMS) and block == 0:
            to = get(product, PRODUCT.SUMS) + first * SIZE
            call6(get(product, PRODUCT.SUM), to, a, step, depth, n, 1 if start == 0 else 0)
        done, leaf = 0, get(product, PRODUCT.ADD if start else PRODUCT.STORE)
        for i in range(tiles):
            size = (n - done + tiles - i - 1) // (tiles - i)
            for j in range(count):
                unit = (block + j) * WIDTH
                narrow = 1 if COLUMNS - unit <= get(product, PRODUCT.LANES) else 0
                key, panel = size * 32 + 2 + narrow, workspace + j * stride
                call9(get(product, PRODUCT.TILE), key, a + done * row, row, step, depth, panel, stride, scratch, 0)
                call9(leaf, product, unit, COLUMNS - unit, 0, 0, first + done, 0, scratch, size)
            done += size
        start += depth


@compiled(1, Int)
def items_of(product):
    """The number of pieces of work that a product is cut into; 0 if the walk computes it."""
    items = (get(product, PRODUCT.M) + get(product, PRODUCT.CHUNK) - 1) // get(product, PRODUCT.CHUNK)
    if get(product, PRODUCT.UNITED):
        return 0
    if get(product, PRODUCT.OUTER):
        columns = get(product, PRODUCT.BLOCKS)
        items *= (blocks(product, get(product, PRODUCT.COLUMNS)) + columns - 1) // columns
    return items


@compiled(2)
def multiply(launch, team):
    """All products of whole sequences, one round after another.

    No thread waits for a thread, only for work to be finished. So it also ends if a thread comes late, or not at all.
    """
    stride, first = PRODUCT.PRODUCT_SIZE * 8, get(launch, LAUNCH.FIRST_PRODUCT)
    member = ticket(launch, LAUNCH.MEMBER) % team
    workspace = get(launch, LAUNCH.WORKSPACE) + member * get(launch, LAUNCH.WORKSPACE_SIZE)
    for turn in range(get(launch, LAUNCH.ROUNDS)):
        for k in range(get(launch, LAUNCH.WHOLE), get(launch, LAUNCH.PRODUCTS)):
            product = first + k * stride
            if get(product, PRODUCT.ROUND) == turn:
                items, item = items_of(product), ticket(product, PRODUCT.TAKEN)
                while item < items:
                    if get(product, PRODUCT.OUTER):
                        outer_product(product, item, workspace)
                    else:
                        row = item * get(product, PRODUCT.CHUNK)
                        leaf = get(product, PRODUCT.ADD if turn else PRODUCT.STORE)
                        n = min(get(product, PRODUCT.CHUNK), get(product, PRODUCT.M) - row)
                        rows_of_whole(product, row, n, leaf)
                    ticket(product, PRODUCT.DONE)
                    item = ticket(product, PRODUCT.TAKEN)
        for k in range(get(launch, LAUNCH.WHOLE), get(launch, LAUNCH.PRODUCTS)):
            product = first + k * stride
            if get(product, PRODUCT.ROUND) == turn:
                wait(launch, product, PRODUCT.DONE, items_of(product))
