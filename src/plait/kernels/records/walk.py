"""One direction of a layer. Addresses are of matrices of rows (layout.py), unless it says otherwise."""

from . import MOST_PARAMS, MOST_STATES

T, B, H = 0, 1, 2
P = 3  # width of h: H, but for a projection
REVERSE = 4
STARTS = 5  # first row of each step, and the end; 0 for a dense batch
STATE_COUNT, SIZE, WIDTH = 6, 7, 8  # bytes of a number, units of a block
WX = 9  # (N, G, H): W x + b. May be GATES: what is saved then takes its place
GATES, EXTRA = 10, 11  # (N, G, H), (N, E, H): what the cell saved
D_GATES = 12  # (N, G, H): d_wx. May be GATES
D_EXTRA = 13  # (N, E, H): those d_rh that are not d_wx. May be EXTRA
RAW = 14  # (N, H): h before the projection
D_PROJECTED = 15  # (N, P): d_ of h, if there is a projection
ROWS = 16  # forward: h, for the caller; backward: d_ of it
ROWS_STRIDE = 17  # bytes from row to row
FINISH = 18  # backward: d_ of the initial states is wanted
RECURRENT, PROJECTION = 19, 20  # addresses of the products with R and with the projection, or 0
WITHIN = 21  # the product of a whole sequence that the walk does step by step (W x, or d_x), or 0
STARTS_GIVEN = 22  # forward: h does not start from zeros
# what is called on the results of a product: the cell, the projection, the end of the way back
POINTWISE, PROJECT, ENDING = 23, 24, 25
PARAM_COUNT = 26
# per state
STATES = 32  # (N, .): after each step
OLD = STATES + MOST_STATES  # backward (N, .): STATES, or others about which it was linearised
INITIAL = OLD + MOST_STATES  # (B, .)
GIVEN = INITIAL + MOST_STATES  # (B, .), or 0 for zeros: what INITIAL (forward) or CARRY (backward) starts from
CARRY = GIVEN + MOST_STATES  # (B, .): d_ of the state, on its way back
FINAL = CARRY + MOST_STATES  # (B, .): each sequence's last one
SOURCE = FINAL + MOST_STATES  # (N, .): what is added to each new state (forward), or to its d_ (backward)
# per parameter
PARAM = SOURCE + MOST_STATES  # (H,)
D_PARAM = PARAM + MOST_PARAMS  # (B, H): of each sequence
WALK_SIZE = D_PARAM + MOST_PARAMS
