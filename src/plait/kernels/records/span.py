"""Which rows of a product are meant, and what their results are for."""

from . import MOST_STATES

COUNT = 0  # how many rows
A = 1  # address of the first one's first run; 0: rows of zeros
FROM = 2  # its number in the other runs' matrices
LEAF = 3  # what is called on the results
BLOCK, LAST = 4, 5  # the blocks of columns that are computed
ROW, SEQUENCE = 6, 7  # the first one's number in the owner's matrices, and of its sequence
OLDS = 8  # per state: where the first one's old state is
SPAN_SIZE = OLDS + MOST_STATES
