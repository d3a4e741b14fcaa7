"""One for all threads. The tickets, which threads write, lie a cache line apart from what they read."""

ALONE = 0  # the thread that calls is the team
TEAM = 1  # address of omp_get_num_threads
YIELD = 2  # address of sched_yield
BACK = 3  # whether the walks go back
BY_UNITS = 4  # the threads share the units of each step, not the batch
WALKS, FIRST_WALK = 5, 6  # how many, one a direction; address of the first, the others follow
PRODUCTS, FIRST_PRODUCT = 7, 8  # the same of all products: of the walks first, then those of whole sequences
WHOLE = 9  # the number of the first product of a whole sequence
ROUNDS = 10  # those come in so many rounds: each begins when the one before has ended
MULTIPLY = 11  # address of plait_multiply, which does them
SLICES = 12  # into how many slices the batch is cut
BOUNDS = 13  # address of their first sequences, and of the last one's end
WORKSPACE, WORKSPACE_SIZE = 14, 15  # address of every thread's own memory, bytes of each
# tickets
READY_TAKEN, SLICE_TAKEN, MEMBER = 16, 17, 18
ARRIVED, READY_DONE, SLICE_DONE = 32, 33, 34
LAUNCH_SIZE = 48
