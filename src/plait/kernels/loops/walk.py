"""The walk through time, for any cell. A thread takes all T steps of a slice of the batch, or its share of the units of
every step.

Rows are those of layout.py. A slice is a range of sequences, longest first: at each step the first of them are alive.
What two threads do with two slices (W x and the gradients are products of whole sequences):

    forward   thread 0   pack  pack  | W x  W x  W x | slice 0: step 0, 1, 2 ... T-1 |
              thread 1   pack  pack  | W x  W x      | slice 1: step 0, 1, 2 ... T-1 |
    backward  thread 0   pack  pack  | slice 0: step T-1 ... 0 | d_W  d_W  d_x |
              thread 1   pack  pack  | slice 1: step T-1 ... 0 | d_R  d_R      |

For a padded batch its rows are copied while weights are packed, and those of the results at the end (copying.py). A
thread that is free takes the next piece before the next bar. At a bar all threads wait until all pieces are done. If
the threads share the units, there is a bar after each step, and a thread has the same blocks of units in all steps:

    by units  thread 0   ... | step t, units 0..H/2 | step t+1, units 0..H/2 | ...
              thread 1   ... | step t, units H/2..H | step t+1, units H/2..H | ...
"""

from ..records import Copy, Head, Launch, Product, Span, Walk
from .copying import copy_piece, copy_results, pieces
from .machine import (
    Int,
    call0,
    call1,
    call2,
    call4,
    call6,
    compiled,
    copy,
    count_up,
    flush_denormals,
    get,
    meet,
    put,
    restore_denormals,
    ticket,
    wait,
    zero,
)
from .packing import blocks, blocks_to_pack, pack_block
from .products import new_span, rows, rows_of_whole, set_blocks


@compiled(2, Int)
def first_row(walk, t):
    starts = get(walk, Walk.STARTS)
    return get(starts, t) if starts else t * get(walk, Walk.B)


@compiled(4, Int)
def live(walk, t, lo, hi):
    """How many of the sequences lo..hi are alive at step t; 0 if there is no such step."""
    if t < 0 or t >= get(walk, Walk.T):
        return 0
    return max(0, min(first_row(walk, t + 1) - first_row(walk, t), hi) - lo)


@compiled(2, Int)
def row_size(walk, state):
    """Bytes of a row: of h it has P numbers, of other states H."""
    return get(walk, Walk.H if state else Walk.P) * get(walk, Walk.NUMBER)


@compiled(2, Int)
def tape_row_size(walk, state):
    """The same in the tape, whose numbers may be rounded: a row fills whole words of 32 bits."""
    return (get(walk, Walk.H if state else Walk.P) * get(walk, Walk.OPERAND) + 3) // 4 * 4


@compiled(4)
def states_at(walk, span, matrices, row):
    """Tells the span where the row is in the matrix of each state."""
    for k in range(get(walk, Walk.STATE_COUNT)):
        put(span, Span.OLDS + k, get(walk, matrices + k) + row * tape_row_size(walk, k))


@compiled(3)
def running_states_at(walk, span, sequence):
    """Tells the span where the old states of a sequence and the following ones are, if they are not in the tape."""
    for k in range(get(walk, Walk.STATE_COUNT) if get(walk, Walk.RUNNING) else 0):
        put(span, Span.OLDS + k, get(walk, Walk.LAST + k) + sequence * row_size(walk, k))


@compiled(6)
def copy_last(walk, t, lo, hi, block, last):
    """Copies the states of the sequences that end with step t, in the units of some blocks, to the last states."""
    n, following = live(walk, t, lo, hi), live(walk, t - 1 if get(walk, Walk.REVERSE) else t + 1, lo, hi)
    row, units = first_row(walk, t) + lo, get(walk, Walk.WIDTH) * get(walk, Walk.NUMBER)
    for k in range(get(walk, Walk.STATE_COUNT)):
        stride, start = row_size(walk, k), block * units
        size = min(stride, last * units) - start
        for r in range(following, n):
            to, origin = get(walk, Walk.LAST + k) + start, get(walk, Walk.STATES + k) + start
            copy(to + (lo + r) * stride, origin + (row + r) * stride, size)


@compiled(2)
def find_rows(walk, t):
    """Tells the walk where the rows of the caller are, if it is a slab that skips some."""
    skip = get(walk, Walk.ROWS_SKIP)
    if skip:
        put(walk, Walk.ROWS, get(walk, Walk.FIRST_ROWS) + t * skip)


@compiled(6)
def step_forward(walk, s, lo, hi, block, last):
    span, reverse, recurrent = new_span(), get(walk, Walk.REVERSE), get(walk, Walk.RECURRENT)
    t = get(walk, Walk.T) - 1 - s if reverse else s
    before = t + 1 if reverse else t - 1
    n = live(walk, t, lo, hi)
    m = min(n, live(walk, before, lo, hi))  # these were alive at the step before, the others start here
    row, function, within = first_row(walk, t) + lo, get(walk, Walk.POINTWISE), get(walk, Walk.WITHIN)
    of_x = row + t * get(walk, Walk.X_SKIP)
    find_rows(walk, t)
    if within and n:
        rows_of_whole(within, row, n, get(within, Product.STORE))
    set_blocks(span, block, last)
    if m:
        states_at(walk, span, Walk.STATES, first_row(walk, before) + lo)
        h = get(span, Span.OLDS)
        running_states_at(walk, span, lo)
        rows(recurrent, span, m, function, row, lo, h, of_x)
    if m < n:
        states_at(walk, span, Walk.INITIAL, lo + m)
        h = get(span, Span.OLDS) if get(walk, Walk.STATEFUL) else 0
        running_states_at(walk, span, lo + m)
        rows(recurrent, span, n - m, function, row + m, lo + m, h, of_x + m)
    projection = get(walk, Walk.PROJECTION)
    if projection and n:
        every = blocks(projection, get(walk, Walk.P))
        raw = get(walk, Walk.RAW) + row * tape_row_size(walk, 1)
        set_blocks(span, 0, every)
        rows(projection, span, n, get(walk, Walk.PROJECT), row, lo, raw, 0)
        last = max(last, every)
    if not get(walk, Walk.RUNNING):
        copy_last(walk, t, lo, hi, block, last)


@compiled(7)
def rows_back(recurrent, span, n, function, row, from_row, sequence):
    """R' d_rh of n rows, `from_row` and following, for the function. If from_row is -1, d_rh is zero there.

    Blocks and old states are in the span.
    """
    a = get(recurrent, Product.RUN) + from_row * get(recurrent, Product.RUN_ROW) if from_row >= 0 else 0
    rows(recurrent, span, n, function, row, sequence, a, from_row)


@compiled(6)
def step_backward(walk, s, lo, hi, block, last):
    span, reverse, projection = new_span(), get(walk, Walk.REVERSE), get(walk, Walk.PROJECTION)
    recurrent, counts = get(walk, Walk.RECURRENT), get(walk, Walk.COUNTS)
    t = s if reverse else get(walk, Walk.T) - 1 - s
    before, after = (t + 1, t - 1) if reverse else (t - 1, t + 1)
    n, known = live(walk, t, lo, hi), live(walk, after, lo, hi)
    find_rows(walk, t)
    set_blocks(span, block, last)
    r = max(n, get(counts, 1) - lo) if counts else n
    if r < known and get(walk, Walk.FINISH):  # these sequences started with the step after
        rows_back(recurrent, span, known - r, get(walk, Walk.ENDING), 0, first_row(walk, after) + lo + r, lo + r)
    base = lo
    if counts and s == 0:
        recurrent, known = get(walk, Walk.JOINT), max(0, get(counts, 0) - lo)
    elif known:
        base += first_row(walk, after)
    known, going_on = min(n, known), min(n, live(walk, before, lo, hi))
    r = 0
    while r < n:
        end = n
        if r < known:
            end = min(end, known)
        if r < going_on:
            end = min(end, going_on)
            states_at(walk, span, Walk.OLD, first_row(walk, before) + lo + r)
        else:
            states_at(walk, span, Walk.INITIAL, lo + r)
        row, function = first_row(walk, t) + lo + r, get(walk, Walk.PROJECT if projection else Walk.POINTWISE)
        rows_back(recurrent, span, end - r, function, row, base + r if r < known else -1, lo + r)
        if projection:
            a = get(walk, Walk.D_PROJECTED) + row * tape_row_size(walk, 0)
            set_blocks(span, 0, blocks(projection, get(walk, Walk.H)))
            rows(projection, span, end - r, get(walk, Walk.POINTWISE), row, lo + r, a, 0)
            set_blocks(span, block, last)
        r = end
    within = get(walk, Walk.WITHIN)
    if within and n:
        rows_of_whole(within, first_row(walk, t) + lo, n, get(within, Product.STORE))


@compiled(7)
def step(walk, back, s, lo, hi, block, last):
    """Step number s of the walk. The backward pass has one more: the end of all sequences that start at step 0."""
    if back:
        step_backward(walk, s, lo, hi, block, last)
    else:
        step_forward(walk, s, lo, hi, block, last)


@compiled(2)
def start_values(walk, back):
    """Writes the states that the walk starts from, and zeros where sums begin."""
    running = get(walk, Walk.RUNNING)
    for k in range(get(walk, Walk.STATE_COUNT)):
        given = get(walk, Walk.GIVEN + k)
        to = get(walk, (Walk.CARRY if back else Walk.LAST if running else Walk.INITIAL) + k)
        size = get(walk, Walk.B) * row_size(walk, k)
        if not given:
            zero(to, size)
        elif given != to:
            copy(to, given, size)
        for b in range(get(walk, Walk.B) if running else 0):
            place = get(walk, Walk.INITIAL + k) + b * tape_row_size(walk, k)
            numbers = get(walk, Walk.H if k else Walk.P)
            call6(get(walk, Walk.ROUNDING), place, to + b * row_size(walk, k), numbers, 0, 0, 0)
    for k in range(get(walk, Walk.PARAM_COUNT) if back else 0):
        zero(get(walk, Walk.D_PARAM + k), get(walk, Walk.B) * row_size(walk, 1))


@compiled(2)
def make_ready(launch, back):
    """Start values, panels and copies. A thread that is free takes the next item."""
    walks, item = get(launch, Launch.WALKS), ticket(launch, Launch.READY_TAKEN)
    passed = walks
    while item < passed:
        start_values(get(launch, Launch.FIRST_WALK) + item * Walk.SIZE * 8, back)
        count_up(launch, launch, Launch.READY_DONE)
        item = ticket(launch, Launch.READY_TAKEN)
    for k in range(get(launch, Launch.PRODUCTS)):
        product = get(launch, Launch.FIRST_PRODUCT) + k * Product.SIZE * 8
        count = blocks_to_pack(product)
        while item < passed + count:
            pack_block(product, item - passed)
            count_up(launch, launch, Launch.READY_DONE)
            item = ticket(launch, Launch.READY_TAKEN)
        passed += count
    for k in range(get(launch, Launch.COPIES)):
        record = get(launch, Launch.FIRST_COPY) + k * Copy.SIZE * 8
        count = pieces(record, 0)
        while item < passed + count:
            copy_piece(record, item - passed)
            count_up(launch, launch, Launch.READY_DONE)
            item = ticket(launch, Launch.READY_TAKEN)
        passed += count
    wait(launch, launch, Launch.READY_DONE, passed)


@compiled(1, Int)
def blocks_of(walk):
    """The number of blocks of the product with R."""
    recurrent = get(walk, Walk.RECURRENT)
    return blocks(recurrent, get(recurrent, Product.COLUMNS))


@compiled(3)
def walk_slices(launch, back, me):
    """Takes slice after slice, each with all its steps, until none is left. A thread begins with the slice of its own
    number: that memory is in its cache from the call before, and from the forward pass.
    """
    walks, first, bounds = get(launch, Launch.WALKS), get(launch, Launch.FIRST_WALK), get(launch, Launch.SLICE_BOUNDS)
    items = walks * get(launch, Launch.SLICES)
    for k in range(items):
        item = (me + k) % items
        if ticket(get(launch, Launch.CLAIMS), item) == 0:
            walk, place = first + item % walks * Walk.SIZE * 8, item // walks
            for s in range(get(walk, Walk.T) + back):
                step(walk, back, s, get(bounds, place), get(bounds, place + 1), 0, blocks_of(walk))
            count_up(launch, launch, Launch.SLICE_DONE)
    wait(launch, launch, Launch.SLICE_DONE, items)


@compiled(3)
def walk_units(launch, back, team):
    """The units of this thread, in every step. The team meets after each step."""
    walks, first, stride = get(launch, Launch.WALKS), get(launch, Launch.FIRST_WALK), Walk.SIZE * 8
    every, me, hi = blocks_of(first), ticket(get(launch, Launch.CLAIMS), 0), get(first, Walk.B)
    block, last = every * me // team, every * (me + 1) // team
    for s in range(get(first, Walk.T) + back):
        for w in range(walks):
            step(first + w * stride, back, s, 0, hi, block, last)
        meet(launch, Launch.ARRIVED, team, s + 1)


@compiled(1)
def run(launch):
    """What each thread of the team does: one launch after another. All of a launch is done when a thread leaves it."""
    mode = flush_denormals()
    while launch:
        back, alone, following = get(launch, Launch.BACK), get(launch, Launch.ALONE), get(launch, Launch.NEXT)
        team, me = 1, 0
        if not alone:  # the team may be smaller than requested
            team, me = call0(get(launch, Launch.TEAM)), call0(get(launch, Launch.WHO))
        make_ready(launch, back)
        if not back:
            call2(get(launch, Launch.MULTIPLY), launch, me)
        if get(launch, Launch.BY_UNITS):
            walk_units(launch, back, team)
        else:
            walk_slices(launch, back, me)
        if back:
            call2(get(launch, Launch.MULTIPLY), launch, me)
        copy_results(launch)
        if not following and not alone:
            # Whoever comes early spins in the team's own barrier for milliseconds, on a core that another may need.
            meet(launch, Launch.LEAVING, team, 1)
        if following and alone:
            put(following, Launch.ALONE, 1)
        launch = following
    restore_denormals(mode)


@compiled(5)
def start(program, bindings, block, parallel, team):
    """Writes the block of a call (launch/program.py), and runs it by a team of so many threads, or fewer. If parallel
    is 0, the calling thread runs it. A slot: word, binding, bytes after that address, bytes for each row of the call.
    """
    words, slots, inner = get(program, Head.WORDS), get(program, Head.SLOTS), get(program, Head.INNER)
    template = program + Head.SIZE * 8
    copy(block, template, words * 8)
    table, rows = template + words * 8, get(bindings, get(program, Head.N))
    for i in range(slots):
        value = get(bindings, get(table, 4 * i + 1))
        if value:
            value += get(table, 4 * i + 2) + rows * get(table, 4 * i + 3)
        put(block, get(table, 4 * i), value)
    table += slots * 4 * 8
    for i in range(inner):
        put(block, get(table, 2 * i), block + get(table, 2 * i + 1))
    if parallel:
        call4(parallel, get(program, Head.KERNEL), block, team, 0)
    else:
        put(block, Launch.ALONE, 1)
        call1(get(program, Head.KERNEL), block)
