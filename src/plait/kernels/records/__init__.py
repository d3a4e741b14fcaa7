"""What a kernel is told: records of 64-bit words, numbers and addresses. One module a record, one name a word.

launch   one for all threads: the team, the walks, the products, and how the work is shared
walk     one direction of a layer: its steps, and where its matrices are
product  rows times panels of weights: of a step of a walk, or of a whole sequence
span     which rows of a product are meant: a thread makes one for each call

program.py writes the first three into one block, and copies of that block are what kernels read. Both sides must agree
on what follows.
"""

PIECE = 256  # terms of a long sum that are added at a time: so much of a panel stays in the first cache
GROUP = 4  # the most blocks of columns that are computed together
MOST_TILE = 14 * 128  # bytes of a tile's results
MOST_STATES, MOST_GATES, MOST_PARAMS = 4, 8, 8

# --- a program begins with these words; then come the block, the slots and the inner pointers (program.py)
KERNEL, COUNT, WORDS, SLOTS, INNER = range(5)  # address of plait_run; how many threads, words, slots, pointers
PROGRAM_SIZE = 5
