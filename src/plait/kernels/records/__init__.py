"""The arguments of a kernel: records of 64-bit words, which are numbers or addresses. Each record has a module, each
word a name.

launch   one for all threads: the team, the walks, the products, and how the work is shared
walk     one direction of a layer: its steps, and where its matrices are
product  rows times panels of weights: of a step of a walk, or of a whole sequence
copy     rows that are copied to another matrix
peak     a tile that is computed many times, to be measured
span     which rows of a product to compute: a thread makes one for each call
laid_out the layout of a padded batch, which Python reads

program.py writes the first four into one block, and a kernel reads a copy of that block. Both use these constants.
"""

PIECE = 128  # terms of a long sum that are added at a time: that part of a panel stays in the first cache
GROUP = 4  # blocks of columns that are computed together, at most
MOST_TILE = 14 * 128  # bytes of the results of a tile, at most
MOST_STATES, MOST_GATES, MOST_PARAMS = 4, 8, 8

# --- a program begins with these words; then come the block, the slots and the inner pointers (launched.py)
KERNEL, COUNT, WORDS, SLOTS, INNER = range(5)  # address of plait_run; numbers of threads, words, slots, pointers
PROGRAM_SIZE = 5
