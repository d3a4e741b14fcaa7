"""Which rows of a product to compute, and which leaf gets the results."""

from . import MOST_STATES

COUNT = 0  # how many rows
A = 1  # address of the first row, in the first run; 0: rows of zeros
FROM = 2  # number of the first row in the matrices of the other runs
LEAF = 3  # address of the leaf that gets the results
BLOCK, LAST = 4, 5  # the blocks of columns to compute, LAST not included
ROW, SEQUENCE = 6, 7  # number of the first row in the matrices of the owner, and of its sequence
OLDS = 8  # per state: address of the old state of the first row
SPAN_SIZE = OLDS + MOST_STATES
