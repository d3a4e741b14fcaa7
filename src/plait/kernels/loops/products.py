"""Products of rows and panels of weights. The products of a step and of whole sequences share one loop.

numba compiles this once, for all cells. The arithmetic is in functions that are made for a cell (emit/functions.py)
and called by their addresses.
"""

from ..records import GROUP, MOST_GATES, MOST_TILE, Launch, Product, Span
from .machine import Int, call2, call9, compiled, get, memory, put, ticket, wait
from .packing import blocks
from .sums import ADDED, add_parts, outer_product

results = memory(GROUP * MOST_GATES * MOST_TILE // 8)
new_span = memory(Span.SIZE)


# --- some rows -------------------------------------------------------------------------------------------------------
@compiled(11)
def some_panels(product, function, size, narrow, a, lda, depth, panel, stride, panels, scratch):
    """`size` rows, which fit into one tile, times any number of panels: few rows take more panels at a time."""
    SIZE, TILE_ROWS = get(product, Product.NUMBER), get(product, Product.TILE_ROWS)
    slot, some, most = TILE_ROWS * get(product, Product.WIDTH) * SIZE, 0, 1
    while most * 2 * size <= TILE_ROWS:
        most *= 2
    while some < panels:
        while most > panels - some:
            most //= 2
        key, at, to = size * 32 + most * 2 + narrow, panel + some * stride, scratch + some * slot
        call9(function, key, a, lda, SIZE, depth, at, stride, to, 0)
        some += most


@compiled(8)
def tile(product, span, first, size, count, narrow, panel, scratch):
    """`size` rows of the span, `first` and following, times the panels of `count` blocks. They fit into one tile.

    If count is 0, it is the last block, whose panels are joined.
    """
    a, lda = get(span, Span.A), get(product, Product.RUN_ROW)
    line, depth = get(product, Product.WIDTH) * get(product, Product.NUMBER), get(product, Product.RUN_COLUMNS)
    stride, panels = (get(product, Product.DEPTH) + 1) * line, get(product, Product.EACH) * count if count else 1
    function, h = get(product, Product.TILE), a + first * lda
    some_panels(product, function, size, narrow, h, lda, depth if a else 0, panel, stride, panels, scratch)
    for run in range(1, get(product, Product.RUNS) if a else 1):
        panel += depth * line  # past those of the run before
        word, function = run * Product.RUN_SIZE, get(product, Product.TILE_ON)
        lda, depth = get(product, Product.RUN_ROW + word), get(product, Product.RUN_COLUMNS + word)
        h = get(product, Product.RUN + word) + (get(span, Span.FROM) + first) * lda
        some_panels(product, function, size, narrow, h, lda, depth, panel, stride, panels, scratch)


@compiled(8)
def tile_folded(product, span, first, size, count, narrow, panel, scratch):
    """The same for R h and W x. The panels of a block are some of R alone, some of R and W, and some of W alone."""
    on, on_top, a = get(product, Product.TILE), get(product, Product.TILE_ON), get(span, Span.A)
    lda, ldx = get(product, Product.RUN_ROW), get(product, Product.RUN_ROW + Product.RUN_SIZE)
    P, I = get(product, Product.RUN_COLUMNS), get(product, Product.RUN_COLUMNS + Product.RUN_SIZE)
    h, x = a + first * lda, get(product, Product.RUN + Product.RUN_SIZE) + (get(span, Span.FROM) + first) * ldx
    line, panels = (
        get(product, Product.WIDTH) * get(product, Product.NUMBER),
        get(product, Product.EACH) if count else 1,
    )
    stride, slot = (get(product, Product.DEPTH) + 1) * line, get(product, Product.TILE_ROWS) * line
    alone = get(product, Product.SEPARATE) if count else 0
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
    SIZE, WIDTH, TILE_ROWS = get(product, Product.NUMBER), get(product, Product.WIDTH), get(product, Product.TILE_ROWS)
    COLUMNS, EACH = get(product, Product.COLUMNS), get(product, Product.EACH)
    owner, function, touch = get(product, Product.OWNER), get(span, Span.FUNCTION), get(product, Product.TOUCH)
    row, sequence, olds = get(span, Span.ROW) + first, get(span, Span.SEQUENCE) + first, span + Span.OLDS * 8
    slot, stride = TILE_ROWS * WIDTH * SIZE, (get(product, Product.DEPTH) + 1) * WIDTH * SIZE
    scratch, apart, joined = results(), get(product, Product.APART), get(product, Product.JOINED)
    final = blocks(product, COLUMNS) - 1
    most = get(product, Product.MOST_ROWS)
    tiles = (n + most - 1) // most
    # few rows: take more panels at a time, so that the multipliers are busy
    group = GROUP if n == 1 else 2 if n < 4 else 1
    full = 2 * (n // tiles) > TILE_ROWS
    for phase in range(2 if apart else 1):
        block = get(span, Span.BLOCK)
        while block < get(span, Span.LAST):
            count = min(group, get(span, Span.LAST) - block)
            if joined and count > 1 and block + count > final:
                count -= 1
            panel = get(product, Product.PANELS) + block * EACH * stride
            units = joined * EACH if joined and block == final else COLUMNS - block * WIDTH
            narrow = 1 if full and count == 1 and units <= get(product, Product.LANES) else 0
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
                    if get(product, Product.FOLDED):
                        tile_folded(product, span, first + done, size, some, narrow, panel, scratch)
                    else:
                        tile(product, span, first + done, size, some, narrow, panel, scratch)
                if phase == 1 or not apart:
                    for j in range(count):
                        at, unit = scratch + j * EACH * slot, (block + j) * WIDTH
                        call9(
                            function,
                            owner,
                            unit,
                            COLUMNS - unit,
                            olds,
                            first + done,
                            row + done,
                            sequence + done,
                            at,
                            size,
                        )
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


@compiled(2)
def rows(product, span):
    """multiply_rows, called by its address: so it is compiled once, and not again into each of its callers."""
    call2(get(product, Product.MULTIPLY_ROWS), product, span)


@compiled(4)
def rows_of_whole(product, row, n, function):
    """n rows of C, `row` and following, in all columns. The rows of A stay in cache, the panels are read one by one."""
    span = new_span()
    put(span, Span.COUNT, n)
    put(span, Span.A, get(product, Product.RUN) + row * get(product, Product.RUN_ROW))
    put(span, Span.FROM, row)
    put(span, Span.FUNCTION, function)
    put(span, Span.BLOCK, 0)
    put(span, Span.LAST, blocks(product, get(product, Product.COLUMNS)))
    put(span, Span.ROW, row)
    put(span, Span.SEQUENCE, 0)
    rows(product, span)


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


@compiled(3)
def compute(product, turn, workspace):
    """Takes pieces of the product until none is left."""
    items, item = items_of(product), ticket(product, Product.TAKEN)
    while item < items:
        if get(product, Product.TOTAL):
            add_parts(product, item)
        elif get(product, Product.OUTER):
            outer_product(product, item, workspace)
        else:
            row = item * get(product, Product.CHUNK)
            function = get(product, Product.ADD if turn else Product.STORE)
            n = min(get(product, Product.CHUNK), get(product, Product.M) - row)
            rows_of_whole(product, row, n, function)
        ticket(product, Product.DONE)
        item = ticket(product, Product.TAKEN)


@compiled(2)
def multiply(launch, me):
    """All products of whole sequences, one round after another. Those of a part are computed by one thread, first of
    all by the one that has its number: another one would take that memory out of its cache. The others are shared.

    No thread waits for a thread, only for work to be finished. So it also ends if a thread comes late, or not at all.
    """
    stride, first = Product.SIZE * 8, get(launch, Launch.FIRST_PRODUCT)
    workspace = workspace_of(launch, me)
    whole, count, own = get(launch, Launch.WHOLE), get(launch, Launch.PRODUCTS), get(launch, Launch.OWN)
    for turn in range(get(launch, Launch.ROUNDS)):
        for w in range(own):
            walk = (me + w) % own
            if ticket(get(launch, Launch.CLAIMS), (turn + 1) * own + walk) == 0:
                for k in range(whole, count):
                    product = first + k * stride
                    if get(product, Product.ROUND) == turn and get(product, Product.OF_WALK) == walk:
                        compute(product, turn, workspace)
        for k in range(whole, count):
            product = first + k * stride
            if get(product, Product.ROUND) == turn and get(product, Product.OF_WALK) < 0:
                compute(product, turn, workspace)
        for k in range(whole, count):
            product = first + k * stride
            if get(product, Product.ROUND) == turn:
                wait(launch, product, Product.DONE, items_of(product))
