"""What a kernel is told: numbers and addresses, 64-bit integers all of them, in one block: a launch, its walks, its
products. And what both those who write it (program.py) and those who read it must agree on.
"""

PIECE = 256  # terms of a long sum that are added at a time: so much of a panel stays in the first cache
GROUP = 4  # the most blocks of columns that are computed together
MOST_TILE = 14 * 128  # bytes of a tile's results

# --- a program begins with these; then come the block, the slots and the inner pointers (program.py)
KERNEL, COUNT, WORDS, SLOTS, INNER = range(5)  # address of plait_walk; how many threads, words, slots, pointers
PROGRAM_SIZE = 5

# --- the launch: one for all threads. What they write lies a cache line apart from what they read.
ALONE = 0  # the thread that calls is the team
TEAM = 1  # address of omp_get_num_threads
YIELD = 2  # address of sched_yield
WALKS = 3  # how many there are, one per direction
FIRST = 4  # address of the first walk; the others follow
BY_UNITS = 5  # the threads share the units of each step, not the batch
SLICES = 6  # into how many slices the batch is cut
BOUNDS = 7  # address of their first rows, and of the last one's end
GEMMS = 8  # address of the products before or after the walks
GEMM_COUNT, GEMM_PHASES = 9, 10  # how many, in how many rounds that wait for one another
WORKSPACE, WORKSPACE_SIZE = 11, 12  # address of every thread's own memory, bytes of each
BACK = 13  # whether the walks go back
MULTIPLY = 14  # address of plait_gemms
PREPARED, TAKEN, MEMBERS = 16, 17, 18  # tickets
ARRIVED, PREPARED_DONE, TAKEN_DONE = 32, 33, 34
LAUNCH_SIZE = 48

# --- a walk: one direction of a layer. Addresses of matrices of rows, unless it says otherwise.
T, B, H = 0, 1, 2
P = 3  # width of h: H, but for a projection
REVERSE = 4
STARTS = 5  # first row of each step, and the end; 0 for a dense batch
GATES = 6  # (N, G, H): wx, then what the cell saved, then d_wx
EXTRA = 7  # (N, E, H): what else it saved, then those d_rh that are not d_wx
RAW = 8  # (N, H): h before the projection
D_PROJECTED = 9  # (N, P): d_ of h, if there is a projection
WEIGHT, PROJECTION = 10, 11  # (G*H, P); (P, H), or 0
BIAS = 12  # (G*H,), or 0
PANELS, PROJECTION_PANELS = 13, 14  # the same, packed for the tile
IDLE = 15  # nothing is multiplied by the weight: there is one step, from zeros (backward: d_ of those is not wanted)
ROWS = 16  # forward: h, for the caller; backward: d_ of it
ROWS_STRIDE = 17  # in bytes
FINISH = 18  # backward: d_ of the initial states is wanted
# what the leaves were compiled for, and where they are
GATE_COUNT, STATE_COUNT, EXTRA_COUNT, SHARED = 19, 20, 21, 22
SIZE, WIDTH, TILE_ROWS = 23, 24, 25  # bytes of a number, units of a block, rows of a tile
PACK, PRODUCT, PRODUCT_ON, POINTWISE, PROJECT, ENDING, TOUCH = 26, 27, 28, 29, 30, 31, 32
MOST_STATES, MOST_GATES = 4, 8
STATES = 33  # per state (N, .)
INITIAL = STATES + MOST_STATES  # per state (B, .)
GIVEN = INITIAL + MOST_STATES  # per state (B, .), or 0 for zeros: what INITIAL (forward) or CARRY (backward) start from
CARRY = GIVEN + MOST_STATES  # per state (B, .): d_ of the state, on its way back
FINAL = CARRY + MOST_STATES  # per state (B, .): each sequence's last one
ROW_CHUNK = FINAL + MOST_STATES  # rows that are computed together, 0 for all
APART = ROW_CHUNK + 1  # where all products of a step go before the element-wise work begins, 0: it begins with each
WITHIN = APART + 1  # the product that is computed step by step, with the walk: projection, or d_x. 0: none
LANES = WITHIN + 1  # columns for which a tile of one vector is enough; 0 if all tiles have but one
ROWS_TIMES = LANES + 1  # address of plait_rows, which multiplies rows by panels
WALK_SIZE = 64

# --- a product of whole-sequence matrices, C (M, N) = A (M, K) B (K, N). The leaves are where a walk has them.
M, N, K = 0, 1, 2
OUTER = 3  # K is the longest: B is packed piece by piece, C adds up
A, A_ROW, A_STEP = 4, 5, 6  # address, bytes from row to row, and from k to k
FACTOR, FACTOR_ROW = 7, 8  # B, by columns; or by rows, if PACK transposes
TRANSPOSED = 9
C, C_ROW = 10, 11
# BIAS = 12 and PANELS = 13 as above
SUMS = 14  # where the sums of A over k go, or 0
CHUNK = 16  # rows of C that are computed together
COLUMNS = 17  # OUTER: blocks of columns that are
PHASE = 18
STORE, ADD, SUM = POINTWISE, PROJECT, ENDING
GEMM_TAKEN, GEMM_DONE = 60, 61
UNITED = 19  # the walk does it
