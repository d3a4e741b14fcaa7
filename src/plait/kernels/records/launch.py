"""One record for all threads. Tickets that threads write often are on other cache lines than the words they read."""

ALONE = 0  # 1: the calling thread works alone
TEAM = 1  # address of omp_get_num_threads
YIELD = 2  # address of sched_yield
BACK = 3  # 1: backward
BY_UNITS = 4  # 1: threads share the units of each step; 0: the batch
WALKS, FIRST_WALK = 5, 6  # how many, one for each part and direction; address of the first, the others follow
PRODUCTS, FIRST_PRODUCT = 7, 8  # the same for the products: those of the walks, then those of whole sequences
WHOLE = 9  # the number of the first product of a whole sequence
ROUNDS = 10  # number of rounds of those: a round begins when the one before has ended
MULTIPLY = 11  # address of plait_multiply, which computes them
SLICES = 12  # into how many slices the batch is cut
SLICE_BOUNDS = 13  # address of the first sequence of each slice, and the end of the last
WORKSPACE, WORKSPACE_SIZE = 14, 15  # address of the memory of the threads, bytes for each thread
# tickets: pieces of work that were taken, and that are done
READY_TAKEN = 16
ARRIVED, READY_DONE, SLICE_DONE = 32, 33, 34
NEXT = 40  # address of the launch that the same threads run after this one, or 0
COPIES, COPIES_AFTER, FIRST_COPY = 41, 42, 43  # how many before the walks and after all else; address of the first
WHO = 44  # address of omp_get_thread_num
CLAIMS = 45  # address of tickets: who gets 0 takes a slice of a walk; or, in a round, the products of a walk
OWN = 46  # how many walks have products of their own: all of them if they are parts, else none
THREADS, WORKSPACE_CLAIMS = 47, 48  # how many may come; address of tickets: who gets 0 takes that workspace
MARK, MARK_VALUE = 49, 50  # address of a word, or 0, and what is written there: how the rows of a tape are ordered
LAUNCH_SIZE = 56
