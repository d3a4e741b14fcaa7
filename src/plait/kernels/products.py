"""Products of rows and panels of weights. The products of a step and of whole sequences share one loop.

numba compiles this once, for all cells. The arithmetic is in the leaves (leaves.py), which are called by address.
"""

from . import records
from .machine import Int, call2, call9, compiled, get, memory, put, ticket, wait
from .packing import blocks
from .records import launch as LAUNCH
from .records import product as PRODUCT
from .records import span as SPAN
from .sums import ADDED, add_parts, outer_product

results = memory(records.GROUP * records.MOST_GATES * records.MOST_TILE // 8)
new_span = memory(SPAN.SPAN_SIZE)


# --- some rows -------------------------------------------------------------------------------------------------------
@compiled(11)
def some_panels(product, leaf, size, narrow, a, lda, depth, panel, stride, panels, scratch):
    """`size` rows, which fit into one tile, times any number of panels: few rows take more panels at a time."""
    SIZE, TILE_ROWS = get(product, PRODUCT.SIZE), get(product, PRODUCT.TILE_ROWS)
    slot, some, most = TILE_ROWS * get(product, PRODUCT.WIDTH) * SIZE, 0, 1
    while most * 2 * size <= TILE_ROWS:
        most *= 2
    while some < panels:
        while most > panels - some:
            most //= 2
        key, at, to = size * 32 + most * 2 + narrow, panel + some * stride, scratch + some * slot
        call9(leaf, key, a, lda, SIZE, depth, at, stride, to, 0)
        some += most


@compiled(8)
def tile(product, span, first, size, count, narrow, panel, scratch):
    """`size` rows of the span, `first` and following, times the panels of `count` blocks. They fit into one tile.

    If count is 0, it is the last block, whose panels are joined.
    """
    a, lda = get(span, SPAN.A), get(product, PRODUCT.RUN_ROW)
    line, depth = get(product, PRODUCT.WIDTH) * get(product, PRODUCT.SIZE), get(product, PRODUCT.RUN_COLUMNS)
    stride, panels = (get(product, PRODUCT.DEPTH) + 1) * line, get(product, PRODUCT.EACH) * count if count else 1
    leaf, h = get(product, PRODUCT.TILE), a + first * lda
    some_panels(product, leaf, size, narrow, h, lda, depth if a else 0, panel, stride, panels, scratch)
    for run in range(1, get(product, PRODUCT.RUNS) if a else 1):
        panel += depth * line  # past those of the run before
        word, leaf = run * PRODUCT.PER_RUN, get(product, PRODUCT.TILE_ON)
        lda, depth = get(product, PRODUCT.RUN_ROW + word), get(product, PRODUCT.RUN_COLUMNS + word)
        h = get(product, PRODUCT.RUN + word) + (get(span, SPAN.FROM) + first) * lda
        some_panels(product, leaf, size, narrow, h, lda, depth, panel, stride, panels, scratch)


@compiled(8)
def tile_folded(product, span, first, size, count, narrow, panel, scratch):
    """The same for R h and W x. The panels of a block are some of R alone, some of R and W, and some of W alone."""
    on, on_top, a = get(product, PRODUCT.TILE), get(product, PRODUCT.TILE_ON), get(span, SPAN.A)
    lda, ldx = get(product, PRODUCT.RUN_ROW), get(product, PRODUCT.RUN_ROW + PRODUCT.PER_RUN)
    P, I = get(product, PRODUCT.RUN_COLUMNS), get(product, PRODUCT.RUN_COLUMNS + PRODUCT.PER_RUN)
    h, x = a + first * lda, get(product, PRODUCT.RUN + PRODUCT.PER_RUN) + (get(span, SPAN.FROM) + first) * ldx
    line, panels = get(product, PRODUCT.WIDTH) * get(product, PRODUCT.SIZE), get(product, PRODUCT.EACH) if count else 1
    stride, slot = (get(product, PRODUCT.DEPTH) + 1) * line, get(product, PRODUCT.TILE_ROWS) * line
    alone = get(product, PRODUCT.SEPARATE) if count else 0
    for _ in range(max(count, 1)):
        some_panels(product, on, size, narrow, h, lda, P if a else 0, panel, stride, panels - alone, scratch)
        both, to = panel + alone * stride + P * line, scratch + alone * slot
        some_panels(product, on_top, size, narrow, x, ldx, I, both, stride, panels - 2 * alone, to)
        of_w, to = panel + (panels - alone) * stride, scratch + (panels - alone) * slot
        some_panels(product, on, size, narrow, x, ldx, I, of_w, stride, alone, to)
        panel += panels * stride
        scratch += panels * slot


@compiled(4)
def chunk_of_rows(product, span, first, n):
    """n rows of the span, `first` and following, block after block. So the weights of a block stay in cache."""
    SIZE, WIDTH, TILE_ROWS = get(product, PRODUCT.SIZE), get(product, PRODUCT.WIDTH), get(product, PRODUCT.TILE_ROWS)
    COLUMNS, EACH = get(product, PRODUCT.COLUMNS), get(product, PRODUCT.EACH)
    owner, leaf, touch = get(product, PRODUCT.OWNER), get(span, SPAN.LEAF), get(product, PRODUCT.TOUCH)
    row, sequence, olds = get(span, SPAN.ROW) + first, get(span, SPAN.SEQUENCE) + first, span + SPAN.OLDS * 8
    slot, stride = TILE_ROWS * WIDTH * SIZE, (get(product, PRODUCT.DEPTH) + 1) * WIDTH * SIZE
    scratch, apart, joined = results(), get(product, PRODUCT.APART), get(product, PRODUCT.JOINED)
    final = blocks(product, COLUMNS) - 1
    most = get(product, PRODUCT.MOST_ROWS)
    tiles = (n + most - 1) // most
    # few rows: take more panels at a time, so that the multipliers are busy
    group = records.GROUP if n == 1 else 2 if n < 4 else 1
    full = 2 * (n // tiles) > TILE_ROWS
    for phase in range(2 if apart else 1):
        block = get(span, SPAN.BLOCK)
        while block < get(span, SPAN.LAST):
            count = min(group, get(span, SPAN.LAST) - block)
            if joined and count > 1 and block + count > final:
                count -= 1
            panel = get(product, PRODUCT.PANELS) + block * EACH * stride
            units = joined * EACH if joined and block == final else COLUMNS - block * WIDTH
            narrow = 1 if full and count == 1 and units <= get(product, PRODUCT.LANES) else 0
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
                    some = 0 if joined and block == final else count
                    if get(product, PRODUCT.FOLDED):
                        tile_folded(product, span, first + done, size, some, narrow, panel, scratch)
                    else:
                        tile(product, span, first + done, size, some, narrow, panel, scratch)
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
@compiled(1, Int)
def items_of(product):
    """The number of pieces of work that a product is cut into; 0 if the walk computes it."""
    if get(product, PRODUCT.UNITED):
        return 0
    if get(product, PRODUCT.TOTAL):
        return (get(product, PRODUCT.M) + ADDED - 1) // ADDED
    if get(product, PRODUCT.OUTER):
        return get(product, PRODUCT.GROUPS) * get(product, PRODUCT.CHUNKS)
    return (get(product, PRODUCT.M) + get(product, PRODUCT.CHUNK) - 1) // get(product, PRODUCT.CHUNK)


@compiled(2, Int)
def workspace_of(launch, me):
    """One that no other thread has: that of its number, if it can be had."""
    count, claims = get(launch, LAUNCH.THREADS), get(launch, LAUNCH.WORKSPACE_CLAIMS)
    number = me % count
    while ticket(claims, number):
        number = (number + 1) % count
    return get(launch, LAUNCH.WORKSPACE) + number * get(launch, LAUNCH.WORKSPACE_SIZE)


@compiled(3)
def compute(product, turn, workspace):
    """Takes pieces of the product until none is left."""
    items, item = items_of(product), ticket(product, PRODUCT.TAKEN)
    while item < items:
        if get(product, PRODUCT.TOTAL):
            add_parts(product, item)
        elif get(product, PRODUCT.OUTER):
            outer_product(product, item, workspace)
        else:
            row = item * get(product, PRODUCT.CHUNK)
            leaf = get(product, PRODUCT.ADD if turn else PRODUCT.STORE)
            n = min(get(product, PRODUCT.CHUNK), get(product, PRODUCT.M) - row)
            rows_of_whole(product, row, n, leaf)
        ticket(product, PRODUCT.DONE)
        item = ticket(product, PRODUCT.TAKEN)


@compiled(2)
def multiply(launch, me):
    """All products of whole sequences, one round after another. Those of a part are computed by one thread, first of
    all by the one that has its number: another one would take that memory out of its cache. The others are shared.

    No thread waits for a thread, only for work to be finished. So it also ends if a thread comes late, or not at all.
    """
    stride, first = PRODUCT.PRODUCT_SIZE * 8, get(launch, LAUNCH.FIRST_PRODUCT)
    workspace = workspace_of(launch, me)
    whole, count, own = get(launch, LAUNCH.WHOLE), get(launch, LAUNCH.PRODUCTS), get(launch, LAUNCH.OWN)
    for turn in range(get(launch, LAUNCH.ROUNDS)):
        for w in range(own):
            walk = (me + w) % own
            if ticket(get(launch, LAUNCH.CLAIMS), (turn + 1) * own + walk) == 0:
                for k in range(whole, count):
                    product = first + k * stride
                    if get(product, PRODUCT.ROUND) == turn and get(product, PRODUCT.OF_WALK) == walk:
                        compute(product, turn, workspace)
        for k in range(whole, count):
            product = first + k * stride
            if get(product, PRODUCT.ROUND) == turn and get(product, PRODUCT.OF_WALK) < 0:
                compute(product, turn, workspace)
        for k in range(whole, count):
            product = first + k * stride
            if get(product, PRODUCT.ROUND) == turn:
                wait(launch, product, PRODUCT.DONE, items_of(product))
