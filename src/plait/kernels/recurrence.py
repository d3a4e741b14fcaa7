"""The walk through time, for any cell. A thread takes all T steps of a slice of the batch, or its share of the units of
every step.

Rows are those of engines/base.py. A slice is a range of sequences, longest first: at each step the live ones are the
first of it.
"""

from . import job
from .machine import (
    Int,
    ask,
    call1,
    call2,
    call4,
    copy,
    flush_denormals,
    get,
    meet,
    memory,
    native,
    put,
    restore_denormals,
    ticket,
    wait,
    zero,
)
from .products import blocks, pack, pack_block, product_of_rows, rows, rows_of_one

addresses = memory(job.MOST_STATES)


@native(2, Int)
def first_row(walk, t):
    starts = get(walk, job.STARTS)
    return get(starts, t) if starts else t * get(walk, job.B)


@native(4, Int)
def live(walk, t, lo, hi):
    """How many sequences of lo..hi there are at step t; none outside of time."""
    if t < 0 or t >= get(walk, job.T):
        return 0
    return max(0, min(first_row(walk, t + 1) - first_row(walk, t), hi) - lo)


@native(4)
def states_at(walk, olds, matrices, row):
    """Where the row begins in each state's matrix."""
    for k in range(get(walk, job.STATE_COUNT)):
        width = get(walk, job.P) if k == 0 else get(walk, job.H)
        put(olds, k, get(walk, matrices + k) + row * width * get(walk, job.SIZE))


@native(6)
def keep_last(walk, t, lo, hi, block, last):
    """The states of the sequences that end with step t, for the units of some blocks."""
    n, following = live(walk, t, lo, hi), live(walk, t - 1 if get(walk, job.REVERSE) else t + 1, lo, hi)
    start, row = block * get(walk, job.WIDTH) * get(walk, job.SIZE), first_row(walk, t) + lo
    for k in range(get(walk, job.STATE_COUNT)):
        stride = (get(walk, job.P) if k == 0 else get(walk, job.H)) * get(walk, job.SIZE)
        size = min(stride, last * get(walk, job.WIDTH) * get(walk, job.SIZE)) - start
        for r in range(following, n):
            copy(
                get(walk, job.FINAL + k) + (lo + r) * stride + start,
                get(walk, job.STATES + k) + (row + r) * stride + start,
                size,
            )


@native(6)
def step_forward(walk, s, lo, hi, block, last):
    H, P, SIZE, G = get(walk, job.H), get(walk, job.P), get(walk, job.SIZE), get(walk, job.GATE_COUNT)
    olds, reverse = addresses(), get(walk, job.REVERSE)
    t = get(walk, job.T) - 1 - s if reverse else s
    before = t + 1 if reverse else t - 1
    n = live(walk, t, lo, hi)
    m = min(n, live(walk, before, lo, hi))  # these go on, the others start here
    row, panels, leaf = first_row(walk, t) + lo, get(walk, job.PANELS), get(walk, job.POINTWISE)
    within = get(walk, job.WITHIN)
    if within and n:
        product_of_rows(within, row, n, get(within, job.STORE))
    if m:
        states_at(walk, olds, job.STATES, first_row(walk, before) + lo)
        rows_of_one(walk, m, get(olds, 0), P, panels, G, H, leaf, block, last, olds, row, lo)
    if m < n:
        states_at(walk, olds, job.INITIAL, lo + m)
        h = get(olds, 0) if get(walk, job.GIVEN) else 0
        rows_of_one(walk, n - m, h, P, panels, G, H, leaf, block, last, olds, row + m, lo + m)
    if get(walk, job.PROJECTION) and n:
        raw, panels, every = get(walk, job.RAW) + row * H * SIZE, get(walk, job.PROJECTION_PANELS), blocks(walk, P)
        rows_of_one(walk, n, raw, H, panels, 1, P, get(walk, job.PROJECT), 0, every, 0, row, lo)
        last = max(last, every)
    keep_last(walk, t, lo, hi, block, last)


@native(10)
def rows_back(walk, n, known, leaf, block, last, olds, from_row, row, sequence):
    """R' d_rh of the n rows from `from_row` on, if it is known, and the leaf on it. d_rh lies in two places."""
    H, SIZE, SHARED = get(walk, job.H), get(walk, job.SIZE), get(walk, job.SHARED)
    G, E, panels, P = get(walk, job.GATE_COUNT), get(walk, job.EXTRA_COUNT), get(walk, job.PANELS), get(walk, job.P)
    depth, rest = SHARED * H, (G - SHARED) * H
    a, lda = get(walk, job.GATES) + from_row * G * H * SIZE, G * H * SIZE
    more, ldm = get(walk, job.EXTRA) + from_row * E * H * SIZE, E * H * SIZE
    if depth == 0:
        a, lda, depth, rest = more, ldm, rest, 0
    a = a if known else 0
    rows(walk, n, a, lda, depth, more, ldm, rest, panels, 1, P, leaf, block, last, olds, row, sequence)


@native(6)
def step_backward(walk, s, lo, hi, block, last):
    H, P, SIZE = get(walk, job.H), get(walk, job.P), get(walk, job.SIZE)
    olds, reverse, projected = addresses(), get(walk, job.REVERSE), get(walk, job.PROJECTION)
    t = s if reverse else get(walk, job.T) - 1 - s
    before, after = (t + 1, t - 1) if reverse else (t - 1, t + 1)
    n, known = live(walk, t, lo, hi), live(walk, after, lo, hi)
    if n < known and get(walk, job.FINISH):  # these had started with the step after
        row = first_row(walk, after) + lo + n
        rows_back(walk, known - n, 1, get(walk, job.ENDING), block, last, olds, row, 0, lo + n)
    known, going_on = min(n, known), min(n, live(walk, before, lo, hi))
    r = 0
    while r < n:
        end = n
        if r < known:
            end = min(end, known)
        if r < going_on:
            end = min(end, going_on)
            states_at(walk, olds, job.STATES, first_row(walk, before) + lo + r)
        else:
            states_at(walk, olds, job.INITIAL, lo + r)
        from_row = first_row(walk, after) + lo + r if r < known else 0
        row, leaf = first_row(walk, t) + lo + r, get(walk, job.PROJECT if projected else job.POINTWISE)
        rows_back(walk, end - r, 1 if r < known else 0, leaf, block, last, olds, from_row, row, lo + r)
        if projected:
            a, leaf = get(walk, job.D_PROJECTED) + row * P * SIZE, get(walk, job.POINTWISE)
            panels, every = get(walk, job.PROJECTION_PANELS), blocks(walk, H)
            rows_of_one(walk, end - r, a, P, panels, 1, H, leaf, 0, every, olds, row, lo + r)
        r = end
    within = get(walk, job.WITHIN)
    if within and n:
        product_of_rows(within, first_row(walk, t) + lo, n, get(within, job.STORE))


@native(5)
def end_backward(walk, lo, hi, block, last):
    if get(walk, job.FINISH) and get(walk, job.T):
        t = get(walk, job.T) - 1 if get(walk, job.REVERSE) else 0
        n = live(walk, t, lo, hi)
        if n:
            rows_back(walk, n, 1, get(walk, job.ENDING), block, last, 0, first_row(walk, t) + lo, 0, lo)


@native(3)
def prepare(walk, back, item):
    """One block's panels; of the projection's, if the item is beyond; or else the initial values."""
    H, P, SIZE, WIDTH = get(walk, job.H), get(walk, job.P), get(walk, job.SIZE), get(walk, job.WIDTH)
    G, leaf, line = get(walk, job.GATE_COUNT), get(walk, job.PACK), WIDTH * SIZE
    weight, bias, panels = get(walk, job.WEIGHT), get(walk, job.BIAS), get(walk, job.PANELS)
    columns, others = (P, H) if back else (H, P)
    first, second = blocks(walk, columns), blocks(walk, others) if get(walk, job.PROJECTION) else 0
    if item == first + second:
        for k in range(get(walk, job.STATE_COUNT)):
            given, to = get(walk, job.GIVEN + k), get(walk, (job.CARRY if back else job.INITIAL) + k)
            size = get(walk, job.B) * (P if k == 0 else H) * SIZE
            if given:
                copy(to, given, size)
            else:
                zero(to, size)
    elif item < first:
        units, idle = min(WIDTH, columns - item * WIDTH), get(walk, job.IDLE)
        if back:
            depth = 0 if idle else G * H
            pack(walk, leaf, panels + item * (G * H + 1) * line, weight + item * line, P * SIZE, depth, units)
        else:
            for g in range(G):
                panel, origin = panels + (item * G + g) * (P + 1) * line, g * H + item * WIDTH
                pack(walk, leaf, panel, weight + origin * P * SIZE, P * SIZE, 0 if idle else P, units)
                if bias:
                    copy(panel, bias + origin * SIZE, units * SIZE)
    else:
        item -= first
        weight, panels = get(walk, job.PROJECTION), get(walk, job.PROJECTION_PANELS)
        units = min(WIDTH, others - item * WIDTH)
        if back:
            pack(walk, leaf, panels + item * (P + 1) * line, weight + item * line, H * SIZE, P, units)
        else:
            pack(walk, leaf, panels + item * (H + 1) * line, weight + item * WIDTH * H * SIZE, H * SIZE, H, units)


@native(2)
def prepare_all(launch, back):
    """Packs what is packed as a whole, item by item, each by whoever is free."""
    walks, first, stride = get(launch, job.WALKS), get(launch, job.FIRST), job.WALK_SIZE * 8
    columns, others = get(first, job.P if back else job.H), get(first, job.H if back else job.P)
    items = blocks(first, columns) + 1 + (blocks(first, others) if get(first, job.PROJECTION) else 0)
    item, passed = ticket(launch, job.PREPARED), walks * items
    while item < passed:
        prepare(first + item % walks * stride, back, item // walks)
        ticket(launch, job.PREPARED_DONE)
        item = ticket(launch, job.PREPARED)
    for g in range(get(launch, job.GEMM_COUNT)):
        gemm = get(launch, job.GEMMS) + g * stride
        if get(gemm, job.OUTER) == 0:
            count = blocks(gemm, get(gemm, job.N))
            while item < passed + count:
                pack_block(gemm, item - passed)
                ticket(launch, job.PREPARED_DONE)
                item = ticket(launch, job.PREPARED)
            passed += count
    wait(launch, launch, job.PREPARED_DONE, passed)


@native(6)
def walk_steps(walk, back, lo, hi, block, last):
    for s in range(get(walk, job.T)):
        if back:
            step_backward(walk, s, lo, hi, block, last)
        else:
            step_forward(walk, s, lo, hi, block, last)
    if back:
        end_backward(walk, lo, hi, block, last)


@native(2)
def walk_slices(launch, back):
    """Slice after slice, each with all its steps, until none is left."""
    walks, first, bounds = get(launch, job.WALKS), get(launch, job.FIRST), get(launch, job.BOUNDS)
    items, item = walks * get(launch, job.SLICES), ticket(launch, job.TAKEN)
    while item < items:
        walk, place = first + item % walks * job.WALK_SIZE * 8, item // walks
        last = blocks(walk, get(walk, job.P if back else job.H))
        walk_steps(walk, back, get(bounds, place), get(bounds, place + 1), 0, last)
        ticket(launch, job.TAKEN_DONE)
        item = ticket(launch, job.TAKEN)
    wait(launch, launch, job.TAKEN_DONE, items)


@native(3)
def walk_units(launch, back, team):
    """This thread's units, in every step; the team meets after each."""
    walks, first, stride = get(launch, job.WALKS), get(launch, job.FIRST), job.WALK_SIZE * 8
    every, me, hi = blocks(first, get(first, job.P if back else job.H)), ticket(launch, job.TAKEN), get(first, job.B)
    block, last = every * me // team, every * (me + 1) // team
    for s in range(get(first, job.T)):
        for w in range(walks):
            if back:
                step_backward(first + w * stride, s, 0, hi, block, last)
            else:
                step_forward(first + w * stride, s, 0, hi, block, last)
        meet(launch, team, s + 1)
    if back:
        for w in range(walks):
            end_backward(first + w * stride, 0, hi, block, last)
        meet(launch, team, get(first, job.T) + 1)


@native(1)
def run(launch):
    """What each thread of the team does. How many they are is asked here: it may be fewer than were called for."""
    mode, back = flush_denormals(), get(launch, job.BACK)
    team = 1 if get(launch, job.ALONE) else ask(get(launch, job.TEAM))
    prepare_all(launch, back)
    if not back:
        call2(get(launch, job.MULTIPLY), launch, team)
    if get(launch, job.BY_UNITS):
        walk_units(launch, back, team)
    else:
        walk_slices(launch, back)
    if back:
        call2(get(launch, job.MULTIPLY), launch, team)
    restore_denormals(mode)


@native(4)
def start(program, addresses, block, parallel):
    """Writes the block of a call (program.py) and has a team run it, or the thread that calls if there is none."""
    words, slots, inner = get(program, job.WORDS), get(program, job.SLOTS), get(program, job.INNER)
    template = program + job.PROGRAM_SIZE * 8
    copy(block, template, words * 8)
    table = template + words * 8
    for i in range(slots):
        address = get(addresses, get(table, 3 * i + 1))
        put(block, get(table, 3 * i), address + get(table, 3 * i + 2) if address else 0)
    table += slots * 3 * 8
    for i in range(inner):
        put(block, get(table, 2 * i), block + get(table, 2 * i + 1))
    if parallel:
        call4(parallel, get(program, job.KERNEL), block, get(program, job.COUNT), 0)
    else:
        put(block, job.ALONE, 1)
        call1(get(program, job.KERNEL), block)
