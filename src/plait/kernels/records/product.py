"""Rows of A times B, whose columns are packed in panels: the sum over k of A[row][k] B[k][column].

A row of A may be in several places: each run of its columns has its own matrix. A block has as many columns as a tile.
The products of a walk have one panel per gate for each block.
"""

from . import MOST_GATES

# what the tile was compiled for, and where it is
SIZE, WIDTH, TILE_ROWS = 0, 1, 2  # bytes of a number, columns of a block, rows of a tile
LANES = 3  # columns for which a tile of one vector is enough; 0 if all tiles have only one
ROW_CHUNK = 4  # rows that are computed together, 0 for all
TILE = 5  # address of a tile whose sums start from the first line of the panel
TILE_ON = 6  # address of one that adds to the results that are there
MULTIPLY_ROWS = 7  # address of plait_rows
OWNER = 8  # the record that is passed to the leaf that gets the results: the walk, or this product
TOUCH = 9  # address of the leaf that prefetches the memory for the results, or 0
APART = 10  # address for all results of a step, which are used later; 0: those of a tile are used at once
JOINED = 11  # units of the last block, if all its panels are columns of one; else 0
# packing
PANELS, EACH, COLUMNS, DEPTH = 12, 13, 14, 15  # address; panels per block; columns; terms of a sum
FACTOR, FACTOR_ROW = 16, 17  # B, or its transpose: address, bytes from row to row
TRANSPOSED, PACK = 18, 19  # 1: it is the transpose; address of the leaf that packs it
BIAS = 20  # address of the numbers that the sums start from, or 0 for zeros
READY = 21  # 1: the panels are packed already
IDLE = 22  # 1: all rows are zeros, so only the bias is packed
# the runs of A: address of the first row, bytes from row to row, columns
RUNS, RUN = 23, 24
RUN_ROW, RUN_COLUMNS = RUN + 1, RUN + 2  # of the first run; those of the next come PER_RUN words later
PER_RUN = 3
# of a whole sequence
M = RUN + PER_RUN * MOST_GATES  # rows of A and C
CHUNK = M + 1  # rows of C that are computed together
C, C_ROW = M + 2, M + 4  # address, bytes from row to row
ROUND = M + 5  # in which round of the launch it is computed
UNITED = M + 6  # 1: the walk computes it, step by step
STORE, ADD = M + 7, M + 8  # addresses of the leaves: C = results, C += results
# a sum over all rows: C = B' A. The columns of A are called sides; there are one or two, and each has its own C: the
# second is at C + 1. M: tiles of all sides, as rows of C'
OUTER = M + 9  # 1: it is one
GROUPS, CHUNKS = M + 10, M + 11  # pieces of the blocks of B, and of the tiles of A
PACK_SIDE, WRITE = M + 12, M + 13  # addresses of leaves: pack some columns of a side; write results, transposed, to C
SUMS, ONE = M + 14, M + 16  # two addresses for the sums of B over all rows, or 0; bits of the number 1, twice if short
# of a walk that adds W x itself: its panels are those of R alone, of R and W, and of W alone. The second run is x
FOLDED = M + 17  # 1: it is
SEPARATE = M + 18  # the number of panels of R alone, and of W alone, in a block
W, W_ROW, W_BIAS = M + 19, M + 20, M + 21  # address, bytes from row to row; address of its bias, or 0
ADD_BIAS = M + 22  # address of the leaf that adds a bias
GATE = M + 23  # of each panel of a block
MOST_ROWS = GATE + MOST_GATES  # that a tile is given; it has room for TILE_ROWS
# of a part (parts.py)
OF_WALK = MOST_ROWS + 1  # the number of its walk, or -1: all threads share it
STEP = OF_WALK + 1  # rows of a step
C_SKIP, SIDE_SKIP = OF_WALK + 2, OF_WALK + 3  # bytes that are skipped after those of a step: in C; in each of two sides
# a sum over parts, of M numbers, which goes to C
TOTAL = OF_WALK + 5  # how many parts; 0: it is another product
PARTIAL, PARTIAL_SIZE = OF_WALK + 6, OF_WALK + 7  # address of the first, bytes from each to the next
TAKEN, DONE = OF_WALK + 8, OF_WALK + 16  # tickets: pieces of work that were taken, and that are done
PRODUCT_SIZE = OF_WALK + 24
