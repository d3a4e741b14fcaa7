"""Products of rows and panels of weights. The products of a step and of whole sequences share one loop.

numba compiles this once, for all cells. The arithmetic is in functions that are made for a cell (emit/functions.py)
and called by their addresses.
"""

from ..records import GROUP, MOST_GATES, MOST_TILE, Launch, Product, Span
from .machine import Int, call2, call9, compiled, count_up, get, memory, put, ticket, wait
from .packing import blocks
from .sums import ADDED, add_slabs, outer_product

results = memory(GROUP * MOST_GATES * MOST_TILE // 8)
new_span = memory(Span.SIZE)


@compiled(3)
def set_blocks(span, block, last):
    """Tells the span to compute the blocks from `block` up to `last`, not included."""
    put(span, Span.BLOCK, block)
    put(span, Span.LAST, last)


# --- some rows -------------------------------------------------------------------------------------------------------
@compiled(9)
def some_panels(product, function, key, a, lda, depth, panel, panels, scratch):
    """Rows that fit into one tile, times any number of panels: few rows take more panels at a time.

    key: 32 times the number of rows, and 1 if one vector is enough
    """
    SIZE, stride, some, most = get(product, Product.NUMBER), get(product, Product.STRIDE), 0, 1
    while most * 2 * (key // 32) <= get(product, Product.TILE_ROWS):
        most *= 2
    while some < panels:
        while most > panels - some:
            most //= 2
        at, to = panel + some * stride, scratch + some * get(product, Product.SLOT)
        call9(function, key + most * 2, a, lda, SIZE, depth, at, stride, to, 0)
        some += most


@compiled(7)
def tile(product, span, first, key, count, panel, scratch):
    """Rows of the span, `first` and following, times the panels of `count` blocks. They fit into one tile.

    If count is 0, it is the last block, whose panels are joined.
    """
    a, panels = get(span, Span.A), get(product, Product.EACH) * count if count else 1
    for run in range(get(product, Product.RUNS) if a else 1):
        word, function = run * Product.RUN_SIZE, get(product, Product.TILE_ON if run else Product.TILE)
        lda, depth = get(product, Product.RUN_ROW + word), get(product, Product.RUN_COLUMNS + word)
        h = (get(product, Product.RUN + word) + get(span, Span.FROM) * lda if run else a) + first * lda
        some_panels(product, function, key, h, lda, depth if a else 0, panel, panels, scratch)
        panel += depth * get(product, Product.LINE)


@compiled(7)
def tile_folded(product, span, first, key, count, panel, scratch):
    """The same for R h and W x. The panels of a block are some of R alone, some of R and W, and some of W alone."""
    on, on_top, a = get(product, Product.TILE), get(product, Product.TILE_ON), get(span, Span.A)
    lda, ldx = get(product, Product.RUN_ROW), get(product, Product.RUN_ROW + Product.RUN_SIZE)
    P, I = get(product, Product.RUN_COLUMNS), get(product, Product.RUN_COLUMNS + Product.RUN_SIZE)
    h, x = a + first * lda, get(product, Product.RUN + Product.RUN_SIZE) + (get(span, Span.FROM) + first) * ldx
    stride, slot = get(product, Product.STRIDE), get(product, Product.SLOT)
    panels, alone = 1, 0
    if count:
        panels, alone = get(product, Product.EACH), get(product, Product.SEPARATE)
    for _ in range(max(count, 1)):
        some_panels(product, on, key, h, lda, P if a else 0, panel, panels - alone, scratch)
        both, to = panel + alone * stride + P * get(product, Product.LINE), scratch + alone * slot
        some_panels(product, on_top, key, x, ldx, I, both, panels - 2 * alone, to)
        of_w, to = panel + (panels - alone) * stride, scratch + (panels - alone) * slot
        some_panels(product, on, key, x, ldx, I, of_w, alone, to)
        panel += panels * stride
        scratch += panels * slot


@compiled(4)
def chunk_of_rows(product, span, first, n):
    """n rows of the span, `first` and following, block after block. So the weights of a block stay in cache."""
    WIDTH, COLUMNS, EACH = get(product, Product.WIDTH), get(product, Product.COLUMNS), get(product, Product.EACH)
    owner, function, touch = get(product, Product.OWNER), get(span, Span.FUNCTION), get(product, Product.TOUCH)
    row, sequence, olds = get(span, Span.ROW) + first, get(span, Span.SEQUENCE) + first, span + Span.OLDS * 8
    slot, final, most = EACH * get(product, Product.SLOT), blocks(product, COLUMNS) - 1, get(product, Product.MOST_ROWS)
    scratch, apart, joined = results(), get(product, Product.APART), get(product, Product.JOINED)
    tiles = (n + most - 1) // most
    # few rows: take more panels at a time, so that the multipliers are busy
    group = GROUP if n == 1 else 2 if n < 4 else 1
    full = 2 * (n // tiles) > get(product, Product.TILE_ROWS)
    for phase in range(2 if apart else 1):
        block = get(span, Span.BLOCK)
        while block < get(span, Span.LAST):
            count = min(group, get(span, Span.LAST) - block)
            if joined and count > 1 and block + count > final:
                count -= 1
            panel = get(product, Product.PANELS) + block * EACH * get(product, Product.STRIDE)
            units = joined * EACH if joined and block == final else COLUMNS - block * WIDTH
            narrow = 1 if full and count == 1 and units <= get(product, Product.LANES) else 0
            done = 0
            for i in range(tiles):
                size = (n - done + tiles - i - 1) // (tiles - i)
                if apart:
                    scratch = apart + ((sequence + i) * (final + 1) + block) * slot
                elif touch:
                    for j in range(count):
                        unit = (block + j) * WIDTH
                        call9(touch, owner, unit, COLUMNS - unit, 0, 0, row + done, 0, 0, size)
                if phase == 0:
                    some, key = 0 if joined and block == final else count, size * 32 + narrow
                    if get(product, Product.FOLDED):
                        tile_folded(product, span, first + done, key, some, panel, scratch)
                    else:
                        tile(product, span, first + done, key, some, panel, scratch)
                if phase == 1 or not apart:
                    r, at, unit = first + done, scratch, block * WIDTH
                    for _ in range(count):
                        left = COLUMNS - unit
                        call9(function, owner, unit, left, olds, r, row + done, sequence + done, at, size)
                        unit += WIDTH
                        at += slot
                done += size
            block += count


@compiled(2)
def multiply_rows(product, span):
    """The rows of the span times the panels of its blocks. The function of the span gets the results."""
    n, chunk, first = get(span, Span.COUNT), get(product, Product.ROW_CHUNK), 0
    while first < n:
        some = min(n - first, chunk) if chunk else n
        chunk_of_rows(product, span, first, some)
        first += some


@compiled(8)
def rows(product, span, n, function, row, sequence, a, other):
    """multiply_rows for n rows, `row` and following, which start at address `a`. The function gets the results.

    It is called by its address: so it is compiled once, and not again into each of its callers. other: the number of
    the first row in the matrices of the other runs. Blocks and old states are in the span.
    """
    put(span, Span.COUNT, n)
    put(span, Span.FUNCTION, function)
    put(span, Span.ROW, row)
    put(span, Span.SEQUENCE, sequence)
    put(span, Span.A, a)
    put(span, Span.FROM, other)
    call2(get(product, Product.MULTIPLY_ROWS), product, span)


@compiled(4)
def rows_of_whole(product, row, n, function):
    """n rows of C, `row` and following, in all columns. The rows of A stay in cache, the panels are read one by one."""
    span = new_span()
    set_blocks(span, 0, blocks(product, get(product, Product.COLUMNS)))
    rows(product, span, n, function, row, 0, get(product, Product.RUN) + row * get(product, Product.RUN_ROW), row)


# --- whole sequences -------------------------------------------------------------------------------------------------
@compiled(1, Int)
def items_of(product):
    """The number of pieces of work that a product is cut into; 0 if the walk computes it."""
    if get(product, Product.UNITED):
        return 0
    if get(product, Product.TOTAL):
        return (get(product, Product.M) + ADDED - 1) // ADDED
    if get(product, Product.OUTER):
        return get(product, Product.GROUPS) * get(product, Product.CHUNKS)
    return (get(product, Product.M) + get(product, Product.CHUNK) - 1) // get(product, Product.CHUNK)


@compiled(2, Int)
def workspace_of(launch, me):
    """Claims a free workspace, preferring the one this thread used last (still in its cache)."""
    count, claims = get(launch, Launch.THREADS), get(launch, Launch.WORKSPACE_CLAIMS)
    number = me % count
    while ticket(claims, number):
        number = (number + 1) % count
    return get(launch, Launch.WORKSPACE) + number * get(launch, Launch.WORKSPACE_SIZE)


@compiled(4)
def compute(launch, product, turn, workspace):
    """Takes pieces of the product until none is left."""
    items, item = items_of(product), ticket(product, Product.TAKEN)
    while item < items:
        if get(product, Product.TOTAL):
            add_slabs(product, item)
        elif get(product, Product.OUTER):
            outer_product(product, item, workspace)
        else:
            row = item * get(product, Product.CHUNK)
            function = get(product, Product.ADD if turn else Product.STORE)
            n = min(get(product, Product.CHUNK), get(product, Product.M) - row)
            rows_of_whole(product, row, n, function)
        count_up(launch, product, Product.DONE)
        item = ticket(product, Product.TAKEN)


@compiled(4)
def compute_those_of(launch, turn, walk, workspace):
    """The products of a walk in one round; if walk is -1, those that all threads share."""
    for k in range(get(launch, Launch.WHOLE), get(launch, Launch.PRODUCTS)):
        product = get(launch, Launch.FIRST_PRODUCT) + k * Product.SIZE * 8
        if get(product, Product.ROUND) == turn and get(product, Product.OF_WALK) == walk:
            compute(launch, product, turn, workspace)


@compiled(2)
def multiply(launch, me):
    """All products of whole sequences, one round after another. Those of a slab are computed by one thread, first of
    all by the one that has its number: another one would take that memory out of its cache. The others are shared.

    No thread waits for a thread, only for work to be finished. So it also ends if a thread comes late, or not at all.
    """
    workspace, own = workspace_of(launch, me), get(launch, Launch.OWN)
    for turn in range(get(launch, Launch.ROUNDS)):
        for w in range(own):
            walk = (me + w) % own
            if ticket(get(launch, Launch.CLAIMS), (turn + 1) * own + walk) == 0:
                compute_those_of(launch, turn, walk, workspace)
        compute_those_of(launch, turn, -1, workspace)
        for k in range(get(launch, Launch.WHOLE), get(launch, Launch.PRODUCTS)):
            product = get(launch, Launch.FIRST_PRODUCT) + k * Product.SIZE * 8
            if get(product, Product.ROUND) == turn:
                wait(launch, product, Product.DONE, items_of(product))
