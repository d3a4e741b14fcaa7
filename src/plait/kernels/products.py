"""Products of rows and panels of weights: the one loop that a step of the walk and a whole-sequence product share.

numba compiles this once, for all cells; the arithmetic is in the leaves (leaves.py), which are called by address.
"""

from . import job
from .machine import Int, call6, call9, call17, copy, get, memory, native, ticket, wait, zero

results = memory(job.GROUP * job.MOST_GATES * job.MOST_TILE // 8)


@native(2, Int)
def blocks(walk, columns):
    return (columns + get(walk, job.WIDTH) - 1) // get(walk, job.WIDTH)


@native(13)
def tile(walk, size, panels, narrow, a, lda, depth, more, ldm, more_depth, panel, stride, scratch):
    """One tile of rows times any number of panels. a = 0: rows of zeros."""
    SIZE, WIDTH, TILE_ROWS = get(walk, job.SIZE), get(walk, job.WIDTH), get(walk, job.TILE_ROWS)
    slot, some, most = TILE_ROWS * WIDTH * SIZE, 0, 1
    while most * 2 * size <= TILE_ROWS:
        most *= 2
    while some < panels:
        while most > panels - some:
            most //= 2
        key, at, to = size * 32 + most * 2 + narrow, panel + some * stride, scratch + some * slot
        call9(get(walk, job.PRODUCT), key, a, lda, SIZE, depth if a else 0, at, stride, to, 0)
        if a and more_depth:
            at += depth * WIDTH * SIZE
            call9(get(walk, job.PRODUCT_ON), key, more, ldm, SIZE, more_depth, at, stride, to, 0)
        some += most


@native(18)
def chunk_of_rows(
    walk,
    n,
    a,
    lda,
    depth,
    more,
    ldm,
    more_depth,
    panels,
    each,
    columns,
    leaf,
    block,
    last,
    olds,
    r,
    row,
    sequence,
):
    SIZE, WIDTH, TILE_ROWS = get(walk, job.SIZE), get(walk, job.WIDTH), get(walk, job.TILE_ROWS)
    slot, stride = TILE_ROWS * WIDTH * SIZE, (depth + more_depth + 1) * WIDTH * SIZE
    scratch, apart, begin = results(), get(walk, job.APART), block
    tiles = (n + TILE_ROWS - 1) // TILE_ROWS
    group = job.GROUP if n == 1 else 2 if n < 4 else 1  # few rows: more panels at once, to keep the multipliers busy
    full = 2 * (n // tiles) > TILE_ROWS
    for phase in range(2 if apart else 1):
        block = begin
        while block < last:
            count = min(group, last - block)
            panel = panels + block * each * stride
            narrow = 1 if full and count == 1 and columns - block * WIDTH <= get(walk, job.LANES) else 0
            done = 0
            for i in range(tiles):
                size = (n - done + tiles - i - 1) // (tiles - i)
                if apart:
                    scratch = apart + ((sequence + i) * blocks(walk, columns) + block) * each * slot
                elif get(walk, job.TOUCH) and leaf == get(walk, job.POINTWISE):
                    for j in range(count):
                        unit = (block + j) * WIDTH
                        call9(get(walk, job.TOUCH), walk, unit, columns - unit, 0, 0, row + done, 0, 0, size)
                if phase == 0:
                    tile(
                        walk, size, count * each, narrow, a + done * lda if a else 0, lda, depth,
                        more + done * ldm, ldm, more_depth, panel, stride, scratch,
                    )  # fmt: skip
                if phase == 1 or not apart:
                    for j in range(count):
                        at, unit = scratch + j * each * slot, (block + j) * WIDTH
                        call9(leaf, walk, unit, columns - unit, olds, r + done, row + done, sequence + done, at, size)
                done += size
            block += count


@native(17)
def times_panels(
    walk, n, a, lda, depth, more, ldm, more_depth, panels, each, columns, leaf, block, last, olds, row, sequence
):
    """n rows at `a`, going on at `more`, times the panels of some blocks, `each` a block: the leaf gets the results.

    `olds` and `row` belong to the first of them: where its old states are, and where the leaf's matrices have it.
    """
    chunk, done = get(walk, job.ROW_CHUNK), 0
    while done < n:
        some = min(n - done, chunk) if chunk else n
        at, rest = a + done * lda if a else 0, more + done * ldm
        chunk_of_rows(
            walk, some, at, lda, depth, rest, ldm, more_depth, panels, each, columns, leaf, block, last, olds,
            done, row + done, sequence + done,
        )  # fmt: skip
        done += some


@native(17)
def rows(walk, n, a, lda, depth, more, ldm, more_depth, panels, each, columns, leaf, block, last, olds, row, sequence):
    """times_panels, by its address: what is called so is compiled once, not once more with everybody who calls it."""
    call17(
        get(walk, job.ROWS_TIMES), walk, n, a, lda, depth, more, ldm, more_depth, panels, each, columns, leaf,
        block, last, olds, row, sequence,
    )  # fmt: skip


@native(13)
def rows_of_one(walk, n, a, depth, panels, each, columns, leaf, block, last, olds, row, sequence):
    """The same, if the rows lie one after another, and go on nowhere."""
    lda = depth * get(walk, job.SIZE)
    rows(walk, n, a, lda, depth, 0, 0, 0, panels, each, columns, leaf, block, last, olds, row, sequence)


@native(7)
def pack(walk, leaf, panel, origin, stride, depth, units):
    """One panel: zeros to start from, then the weights."""
    line = get(walk, job.WIDTH) * get(walk, job.SIZE)
    zero(panel, line)
    if depth:
        call6(leaf, panel + line, origin, stride, depth, units, 0)


@native(2)
def pack_block(gemm, block):
    SIZE, WIDTH, K = get(gemm, job.SIZE), get(gemm, job.WIDTH), get(gemm, job.K)
    units, row = min(WIDTH, get(gemm, job.N) - block * WIDTH), get(gemm, job.FACTOR_ROW)
    panel = get(gemm, job.PANELS) + block * (K + 1) * WIDTH * SIZE
    origin = get(gemm, job.FACTOR) + block * WIDTH * (row if get(gemm, job.TRANSPOSED) else SIZE)
    pack(gemm, get(gemm, job.PACK), panel, origin, row, K, units)
    if get(gemm, job.BIAS):
        copy(panel, get(gemm, job.BIAS) + block * WIDTH * SIZE, units * SIZE)


@native(4)
def product_of_rows(gemm, row, n, leaf):
    """n rows of C from `row` on, all columns: the rows of A stay in cache while the panels pass by."""
    N, K, lda = get(gemm, job.N), get(gemm, job.K), get(gemm, job.A_ROW)
    a, panels = get(gemm, job.A) + row * lda, get(gemm, job.PANELS)
    rows(gemm, n, a, lda, K, 0, 0, 0, panels, 1, N, leaf, 0, blocks(gemm, N), 0, row, 0)


@native(3)
def outer_product(gemm, item, workspace):
    """Some rows and columns of C, summed over pieces of K that fit into the cache."""
    SIZE, WIDTH, TILE_ROWS = get(gemm, job.SIZE), get(gemm, job.WIDTH), get(gemm, job.TILE_ROWS)
    M, N, K, chunk, columns = (
        get(gemm, job.M),
        get(gemm, job.N),
        get(gemm, job.K),
        get(gemm, job.CHUNK),
        get(gemm, job.COLUMNS),
    )
    groups, line, scratch = (blocks(gemm, N) + columns - 1) // columns, WIDTH * SIZE, results()
    first, block = item // groups * chunk, item % groups * columns
    n, count = min(chunk, M - first), min(columns, blocks(gemm, N) - block)
    row, step, factor = get(gemm, job.A_ROW), get(gemm, job.A_STEP), get(gemm, job.FACTOR_ROW)
    tiles, start = (n + TILE_ROWS - 1) // TILE_ROWS, 0
    while start < K:
        depth = min(job.PIECE, K - start)
        stride, a = (depth + 1) * line, get(gemm, job.A) + first * row + start * step
        for j in range(count):
            units, origin = min(WIDTH, N - (block + j) * WIDTH), get(gemm, job.FACTOR) + (block + j) * line
            pack(gemm, get(gemm, job.PACK), workspace + j * stride, origin + start * factor, factor, depth, units)
        if get(gemm, job.SUMS) and block == 0:
            to = get(gemm, job.SUMS) + first * SIZE
            call6(get(gemm, job.SUM), to, a, step, depth, n, 1 if start == 0 else 0)
        done, leaf = 0, get(gemm, job.ADD if start else job.STORE)
        for i in range(tiles):
            size = (n - done + tiles - i - 1) // (tiles - i)
            for j in range(count):
                unit = (block + j) * WIDTH
                narrow = 1 if N - unit <= get(gemm, job.LANES) else 0
                key, panel = size * 32 + 2 + narrow, workspace + j * stride
                call9(get(gemm, job.PRODUCT), key, a + done * row, row, step, depth, panel, stride, scratch, 0)
                call9(leaf, gemm, unit, N - unit, 0, 0, first + done, 0, scratch, size)
            done += size
        start += depth


@native(1, Int)
def items_of(gemm):
    """Into how many pieces of work a product is cut."""
    items = (get(gemm, job.M) + get(gemm, job.CHUNK) - 1) // get(gemm, job.CHUNK)
    if get(gemm, job.UNITED):
        return 0
    if get(gemm, job.OUTER):
        columns = get(gemm, job.COLUMNS)
        items *= (blocks(gemm, get(gemm, job.N)) + columns - 1) // columns
    return items


@native(2)
def gemms(launch, team):
    """All of them, one round after another. Nobody waits for a thread that has not begun: only for work to be done."""
    stride = job.WALK_SIZE * 8
    workspace = get(launch, job.WORKSPACE) + ticket(launch, job.MEMBERS) % team * get(launch, job.WORKSPACE_SIZE)
    for phase in range(get(launch, job.GEMM_PHASES)):
        for g in range(get(launch, job.GEMM_COUNT)):
            gemm = get(launch, job.GEMMS) + g * stride
            if get(gemm, job.PHASE) == phase:
                items, item = items_of(gemm), ticket(gemm, job.GEMM_TAKEN)
                while item < items:
                    if get(gemm, job.OUTER):
                        outer_product(gemm, item, workspace)
                    else:
                        first, leaf = item * get(gemm, job.CHUNK), get(gemm, job.ADD if phase else job.STORE)
                        n = min(get(gemm, job.CHUNK), get(gemm, job.M) - first)
                        product_of_rows(gemm, first, n, leaf)
                    ticket(gemm, job.GEMM_DONE)
                    item = ticket(gemm, job.GEMM_TAKEN)
        for g in range(get(launch, job.GEMM_COUNT)):
            gemm = get(launch, job.GEMMS) + g * stride
            if get(gemm, job.PHASE) == phase:
                wait(launch, gemm, job.GEMM_DONE, items_of(gemm))
