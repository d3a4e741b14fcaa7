"""One direction of a layer, for all sequences or for a part of them.

The addresses are those of matrices of rows (layout.py), if nothing else is said.
"""

from . import MOST_PARAMS, MOST_STATES

T, B, H = 0, 1, 2
P = 3  # width of h: H, or less with a projection
REVERSE = 4  # 1: from the last step to the first
STARTS = 5  # address of the first row of each step, and the end; 0 for a dense batch
STATE_COUNT, SIZE, WIDTH = 6, 7, 8  # bytes of a number, units of a block
WX = 9  # (N, G, H): W x + b. May be GATES: what the cell saves then overwrites it
GATES, EXTRA = 10, 11  # (N, G, H), (N, E, H): what the cell saved
D_GATES = 12  # (N, G, H): d_wx. May be GATES
D_EXTRA = 13  # (N, E, H): d_rh, for those gates where it is not d_wx. May be EXTRA
RAW = 14  # (N, H): h before the projection
D_PROJECTED = 15  # (N, P): d_ of h after the projection, if there is one
ROWS = 16  # forward: h, for the caller; backward: d_ of it. A part that skips rows writes it anew at each step
ROWS_STRIDE = 17  # bytes from row to row
FINISH = 18  # backward, 1: d_ of the initial states is wanted
RECURRENT, PROJECTION = 19, 20  # addresses of the products with R and with the projection, or 0
WITHIN = 21  # address of the product that the walk computes step by step (W x, or d_x), or 0
STARTS_GIVEN = 22  # forward, 1: initial states are given; 0: they are zeros
# addresses of the leaves that get the results of a product: the cell, the projection, the end of the way back
POINTWISE, PROJECT, ENDING = 23, 24, 25
PARAM_COUNT = 26
# of a part (parts.py): rows of x that it skips after each step, and bytes of ROWS; where ROWS begins
X_SKIP, ROWS_SKIP, FIRST_ROWS = 27, 28, 29
# per state
STATES = 32  # (N, .): after each step
OLD = STATES + MOST_STATES  # backward (N, .): STATES, or the states at which it was linearised
INITIAL = OLD + MOST_STATES  # (B, .)
GIVEN = INITIAL + MOST_STATES  # (B, .), or 0 for zeros: what INITIAL (forward) or CARRY (backward) starts from
CARRY = GIVEN + MOST_STATES  # (B, .): d_ of the state, carried from step to step
FINAL = CARRY + MOST_STATES  # (B, .): the last state of each sequence
SOURCE = FINAL + MOST_STATES  # (N, .): added to each new state (forward), or to its d_ (backward)
# per parameter
PARAM = SOURCE + MOST_STATES  # (H,)
D_PARAM = PARAM + MOST_PARAMS  # (B, H): the sum over the steps of each sequence
WALK_SIZE = D_PARAM + MOST_PARAMS
