"""Rows of A times B, whose columns are packed in panels: the sum over k of A[row][k] B[k][column].

A row of A may lie in several places: in runs of columns, one after another. A block is as many columns as a tile has;
the products of a walk have one panel a gate for each block.
"""

from . import MOST_GATES

# what the tile was compiled for, and where it is
SIZE, WIDTH, TILE_ROWS = 0, 1, 2  # bytes of a number, columns of a block, rows of a tile
LANES = 3  # columns for which a tile of one vector is enough; 0 if all tiles have but one
ROW_CHUNK = 4  # rows that are computed together, 0 for all
TILE, TILE_ON = 5, 6  # addresses: of a tile that starts from the panel's first line, and of one that adds on
MULTIPLY_ROWS = 7  # address of plait_rows
OWNER = 8  # the record that what is called on the results is told of: the walk, or this one
TOUCH = 9  # address: asks for the memory that the results will need, or 0
APART = 10  # where all results of a step go before they are used; 0: each tile's are used at once
# packing
PANELS, EACH, COLUMNS, DEPTH = 11, 12, 13, 14  # address; panels a block; columns; terms of a sum
FACTOR, FACTOR_ROW = 15, 16  # B, or its transpose: address, bytes from row to row
TRANSPOSED, PACK = 17, 18  # whether it is the transpose; address of what packs it
BIAS = 19  # address of what the sums start from, or 0 for zeros
READY = 20  # the panels are packed already
IDLE = 21  # all rows are zeros: only what the sums start from is packed
# the runs of A: address of the first row, bytes from row to row, columns
RUNS, RUN = 22, 23
PER_RUN = 3
# of a whole sequence
M = RUN + PER_RUN * MOST_GATES  # rows of A and C
OUTER = M + 1  # K is the longest: A and B are read by columns, B is packed piece by piece, C adds up
C, C_ROW = M + 2, M + 3  # address, bytes from row to row
STEP = M + 4  # OUTER: bytes from k to k of A
SUMS = M + 5  # OUTER: where the sums of A over k go, or 0
CHUNK = M + 6  # rows of C that are computed together
BLOCKS = M + 7  # OUTER: blocks of columns that are
ROUND = M + 8
UNITED = M + 9  # the walk does it
STORE, ADD, SUM = M + 10, M + 11, M + 12  # addresses: C = results, C += results, sums
TAKEN, DONE = M + 16, M + 24  # tickets
PRODUCT_SIZE = M + 32
