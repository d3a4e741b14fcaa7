"""The arguments of a kernel: records of 64-bit words, which are numbers or addresses.

A class declares the words of a record once, in their order. Python, numba and the emitted code take the offsets from
it: `Walk.T` is a plain int. launch/program.py writes Launch, Walk, Product and Copy into one block, of which a kernel
reads a copy.
"""

from typing import Any, NamedTuple

LINE = 8  # words of a cache line
PIECE = 128  # terms of a long sum that are added at a time: that much of a panel stays in the first cache
GROUP = 4  # blocks of columns that are computed together, at most
MOST_TILE = 14 * 128  # bytes of the results of a tile, at most
MOST_STATES, MOST_GATES, MOST_PARAMS = 4, 8, 8


def words(operands: int, rounded: bool) -> int:
    """Of a row of so many operands of products: bfloat16 numbers come in pairs, and a zero may be the last."""
    return (operands + 1) // 2 if rounded else operands


class _Words(NamedTuple):
    size: int
    new_line: bool


def word(count: int = 1, *, new_line: bool = False) -> Any:
    """The next word of a record, or several in a row: one for each gate, state or parameter.

    new_line: it begins a cache line, because threads write it while others read.
    """
    return _Words(count, new_line)


class RecordType(type):
    """Replaces the declared words by their offsets. SIZE is the number of all words, in whole cache lines."""

    SIZE: int

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> "RecordType":
        offset = 0
        for key, value in body.items():
            if isinstance(value, _Words):
                if value.new_line:
                    offset = -(-offset // LINE) * LINE
                body[key] = offset
                offset += value.size
        body["SIZE"] = -(-offset // LINE) * LINE
        return super().__new__(mcs, name, bases, body)


class Head(metaclass=RecordType):
    """Stands before the block of a program, with the slots and the inner pointers behind it (launch/program.py)."""

    KERNEL = word()  # address of plait_run
    WORDS = word()  # how many words the block has
    SLOTS = word()  # how many words get a binding of the call
    INNER = word()  # how many words point into the block
    N = word()  # which binding is the number of rows


class Launch(metaclass=RecordType):
    """One for all threads: the team, the walks, the products, and how the work is shared."""

    ALONE = word()  # 1: the calling thread works alone
    TEAM = word()  # address of omp_get_num_threads
    WHO = word()  # address of omp_get_thread_num
    YIELD = word()  # address of sched_yield
    SYSCALL = word()  # address of the function that calls the system by number, if it has futexes; else 0
    BACK = word()  # 1: backward pass
    BY_UNITS = word()  # 1: threads share the units of each step; 0: the batch
    WALKS = word()  # how many: one for each slab and direction
    FIRST_WALK = word()  # address; the others follow
    PRODUCTS = word()  # how many: those of the walks, then those over whole sequences
    FIRST_PRODUCT = word()
    WHOLE = word()  # the number of the first product over a whole sequence
    ROUNDS = word()  # of those: a round begins when the one before has ended
    MULTIPLY = word()  # address of plait_multiply, which computes them
    SLICES = word()  # into how many slices the batch is cut
    SLICE_BOUNDS = word()  # address of the first sequence of each slice, and the end of the last
    WORKSPACE = word()  # address of the threads' own memory
    WORKSPACE_SIZE = word()  # bytes for each thread
    THREADS = word()  # how many may come
    WORKSPACE_CLAIMS = word()  # address of tickets: who gets 0 takes that workspace
    CLAIMS = word()  # address of tickets: who gets 0 takes a slice of a walk, or in a round the products of a walk
    OWN = word()  # how many walks have products of their own: all of them if they are slabs, else none
    COPIES = word()  # how many
    FIRST_COPY = word()  # address
    NEXT = word()  # address of the launch that the same threads run after this one, or 0
    READY_TAKEN = word(new_line=True)  # tickets: pieces of preparation that were taken
    ARRIVED = word(new_line=True)
    READY_DONE = word()
    SLICE_DONE = word()
    LEAVING = word()
    ASLEEP = word()  # how many threads sleep until one of the counters changes


class Walk(metaclass=RecordType):
    """One direction of a layer, for all sequences or for a slab of them. Addresses are those of matrices of rows
    (layout.py), if nothing else is said.
    """

    T = word()
    B = word()
    H = word()
    P = word()  # width of h: H, or less with a projection
    REVERSE = word()  # 1: from the last step to the first
    STARTS = word()  # address of the first row of each step, and the end; 0 for a dense batch
    STATE_COUNT = word()
    PARAM_COUNT = word()
    NUMBER = word()  # bytes of a number
    OPERAND = word()  # bytes of a number of the tape: less if it is rounded. Then a row fills whole 32-bit words
    RUNNING = word()  # forward, 1: a step reads the old states from LAST, and writes the new ones there, too
    ROUNDING = word()  # address of the function that rounds numbers, if the tape is rounded
    WIDTH = word()  # units of a block
    WX = word()  # (N, G, H): W x + b. May be GATES: what the cell saves then overwrites it
    GATES = word()  # (N, G, H): what the cell saved
    EXTRA = word()  # (N, E, H): the rest of it
    D_GATES = word()  # (N, G, H): d_wx. May be GATES
    D_EXTRA = word()  # (N, E, H): d_rh of those gates where it is not d_wx. May be EXTRA
    RAW = word()  # (N, H): h before the projection
    D_PROJECTED = word()  # (N, P): d_ of h after the projection, if there is one
    ROWS = word()  # forward: h for the caller; backward: d_ of it. A slab that skips rows rewrites it at each step
    FIRST_ROWS = word()  # where ROWS begins
    ROWS_STRIDE = word()  # bytes from row to row
    ROWS_SKIP = word()  # of a slab (launch/slabs.py): bytes of ROWS that it skips after each step
    X_SKIP = word()  # the same, rows of x
    FINISH = word()  # backward, 1: d_ of the initial states is wanted
    STATEFUL = word()  # forward, 1: initial states are given; 0: they are zeros
    RECURRENT = word()  # address of the product with R
    JOINT = word()  # backward: the same with the d_rh of the step after the last one, if that is in another stretch
    COUNTS = word()  # address of: how many sequences come from that step, how many go on before the first step; or 0
    PROJECTION = word()  # the same with the projection, or 0
    WITHIN = word()  # address of the product that the walk computes step by step (W x, or d_x), or 0
    POINTWISE = word()  # addresses of the functions that get the results of a product: the cell,
    PROJECT = word()  # the projection,
    ENDING = word()  # the end of the backward pass
    STATES = word(MOST_STATES)  # (N, .): after each step
    OLD = word(MOST_STATES)  # backward (N, .): STATES, or the states at which it was linearised
    INITIAL = word(MOST_STATES)  # (B, .)
    GIVEN = word(MOST_STATES)  # (B, .), or 0 for zeros: what INITIAL (forward) or CARRY (backward) starts from
    CARRY = word(MOST_STATES)  # (B, .): d_ of the state, carried from step to step
    LAST = word(MOST_STATES)  # (B, .): the last state of each sequence
    SOURCE = word(MOST_STATES)  # (N, .): added to each new state (forward), or to its d_ (backward)
    PARAM = word(MOST_PARAMS)  # (H,)
    D_PARAM = word(MOST_PARAMS)  # (B, H): the sum over the steps of each sequence


class Product(metaclass=RecordType):
    """Rows of A times B, whose columns are packed in panels: the sum over k of A[row][k] B[k][column].

    A row of A may be in several places: each run of its columns has its own matrix. A block has as many columns as a
    tile. The products of a walk have one panel per gate for each block.
    """

    # what the tile was compiled for, and where it is
    NUMBER = word()  # bytes of a number
    WIDTH = word()  # columns of a block
    TILE_ROWS = word()
    LINE = word()  # bytes of a line of a panel
    SLOT = word()  # bytes of the results of a panel
    MOST_ROWS = word()  # rows that a tile is given; it has room for TILE_ROWS
    LANES = word()  # columns for which a tile of one vector is enough; 0 if all tiles have only one
    ROW_CHUNK = word()  # rows that are computed together, 0 for all
    TILE = word()  # address of a tile whose sums start from the first line of the panel
    TILE_ON = word()  # address of one that adds to the results that are there
    MULTIPLY_ROWS = word()  # address of plait_rows
    OWNER = word()  # the record that is passed to the function that gets the results: the walk, or this product
    TOUCH = word()  # address of the function that prefetches the memory for the results, or 0
    APART = word()  # address for all results of a step, which are used later; 0: those of a tile are used at once
    JOINED = word()  # units of the last block, if all its panels are columns of one; else 0
    # packing
    PANELS = word()  # address
    STRIDE = word()  # bytes from panel to panel
    EACH = word()  # panels per block
    COLUMNS = word()
    DEPTH = word()  # terms of a sum; lines of a panel, if these are pairs of terms
    TERM_GROUPS = word()  # each begins with a new line: if terms come in pairs, those of a gate
    TERMS = word()  # in each of them
    FACTOR = word()  # address of B, or of its transpose
    FACTOR_ROW = word()  # bytes from row to row
    TRANSPOSED = word()  # 1: it is the transpose
    PACK = word()  # address of the function that packs it
    BIAS = word()  # address of the numbers that the sums start from, or 0 for zeros
    READY = word()  # 1: the panels are packed already
    IDLE = word()  # 1: all rows are zeros, so only the bias is packed
    # the runs of A, RUN_SIZE words each: address of the first row, bytes from row to row, columns
    RUNS = word()  # how many
    RUN = word()
    RUN_ROW = word()
    RUN_COLUMNS = word()
    MORE_RUNS = word(3 * (MOST_GATES - 1))
    RUN_SIZE = 3
    # over a whole sequence
    M = word()  # rows of A and C
    CHUNK = word()  # rows of C that are computed together
    C = word(2)  # address
    C_ROW = word()  # bytes from row to row
    ROUND = word()  # in which round of the launch it is computed
    UNITED = word()  # 1: the walk computes it, step by step
    STORE = word()  # address of the function C = results
    ADD = word()  # address of the function C += results
    # a sum over all rows: C = B' A. The columns of A are called sides; there are one or two, and each has its own C.
    # M: tiles of all sides, as rows of C'
    TILES = word()  # address of the first Tile; the others follow
    OUTER = word()  # 1: it is one
    PER_LINE = word()  # terms in a line of its panels: 2 if they are pairs
    OPERAND = word()  # bytes of a number of A and B
    PACK_ROWS = word()  # address of the function that packs rows of B
    GROUPS = word()  # pieces of the blocks of B
    CHUNKS = word()  # pieces of the tiles of A
    PACK_SIDE = word()  # address of the function that packs some columns of a side
    WRITE = word()  # address of the function that writes results, transposed, to C
    SUMS = word(2)  # addresses for the sums of B over all rows, or 0
    ONE = word()  # bits of the number 1, or of a pair of them; twice if that is 32 bits
    # of a walk that adds W x itself: its panels are those of R alone, of R and W, and of W alone. The second run is x
    FOLDED = word()  # 1: it is
    SEPARATE = word()  # the number of panels of R alone, and of W alone, in a block
    W = word()  # address
    W_ROW = word()  # bytes from row to row
    W_TERMS = word()  # its columns
    W_BIAS = word()  # address, or 0
    ADD_BIAS = word()  # address of the function that adds a bias
    GATE = word(MOST_GATES)  # of each panel of a block
    # of a slab (launch/slabs.py)
    OF_WALK = word()  # the number of its walk, or -1: all threads share it
    STEP = word()  # rows of a step
    C_SKIP = word()  # bytes of C that are skipped after those of a step
    SIDE_SKIP = word(2)  # the same in each side
    # a sum over slabs, of M numbers, which goes to C
    TOTAL = word()  # how many slabs; 0: it is another product
    PARTIAL = word()  # address of the first
    PARTIAL_SIZE = word()  # bytes from each to the next
    TAKEN = word(new_line=True)  # tickets: pieces of work that were taken
    DONE = word(new_line=True)  # and that are done


class Tile(metaclass=RecordType):
    """Some columns of a side that are summed together, as rows of a tile."""

    SIDE = word()
    COLUMN = word()  # the first
    COUNT = word()


class Copy(metaclass=RecordType):
    """Rows that are copied to another matrix, before the walks or after all else."""

    TO = word()
    FROM = word()
    INDEX = word()  # address: for each row of TO the number of the row of FROM, or -1: it is zero. 0: they are the same
    ROWS = word()  # how many rows of TO
    ROW = word()  # bytes of a row of FROM
    TO_ROW = word()  # bytes of a row of TO: less if its numbers are rounded
    NUMBERS = word()  # of a row, if they are rounded
    ROUNDING = word()  # address of the function that rounds them, or 0
    AFTER = word()  # 1: after all else; 0: before the walks
    TAKEN = word(new_line=True)  # tickets: pieces of rows that were taken
    DONE = word()  # and that are done


class Span(metaclass=RecordType):
    """Which rows of a product to compute: a thread makes one for each call."""

    COUNT = word()  # how many rows
    A = word()  # address of the first row, in the first run; 0: rows of zeros
    FROM = word()  # number of the first row in the matrices of the other runs
    FUNCTION = word()  # address of the function that gets the results
    BLOCK = word()  # the first block of columns to compute
    LAST = word()  # and the end, not included
    ROW = word()  # number of the first row in the matrices of the owner
    SEQUENCE = word()  # and of its sequence
    OLDS = word(MOST_STATES)  # per state: address of the old state of the first row


class Padded(metaclass=RecordType):
    """The layout of a padded batch (loops/lengths.py), which Python reads: these words, then the arrays

    ORDER    (B,)      the numbers of the sequences, longest first
    INVERSE  (2*B,)    the place of each in that order; in the second half B more
    LENGTHS  (B,)      of the sequences, longest first
    SIZES    (T + 1,)  how many are alive at each step, and 0
    BOUNDS   (T + 1,)  the first row of each step, and the end
    PLACES   (T*B,)    where each row is in the padded batch, whose first two axes are flattened; N of them
    SOURCES  (T*B,)    for each place its row, or -1
    BEFORE   (T*B,)    for each row, the row before it in the history of a tape (Layout.rows_before); N of them
    """

    N = word()  # how many rows, or -1: a length is wrong
    STEPS = word()  # how many steps the longest has
