"""What engine `fused` is made of.

The code that runs, from the inside to the outside:
target       the CPU at hand: its vectors and registers, as LLVM types
schedule     which optimisations are on: each can be turned off, to measure what it gains
vectors      numbers that emit LLVM instructions: the text of a cell runs on them
activations  the functions of a step (tanh, exp, ...), made of + - * / and operations on bits
tile         a register tile: a few rows times a panel of weights
pointwise    a cell's step and its derivative on vector registers
leaves       the functions of tile and pointwise as one LLVM module, for one cell and one kind of number
machine      what compiled loops do beside arithmetic: words in memory, tickets, barriers
records      the arguments of a kernel: records of words, each with a name
packing      weights into panels
sums         sums over all rows: the gradients of weights
products     rows times panels, and products over all steps
copying      rows of a padded batch, before the walk and after it
lengths      the layout of a batch from its lengths
recurrence   the walk through time, forward and back

How it becomes machine code:
objects      loops and leaves as object files
compiler     loads an object file, and compiles it if it is not in the cache
cache        the folder in which object files are stored

How it is called:
addresses    where the matrices of a call are
parts        slices of a batch that have memory of their own
areas        the workspace of a call
launched     words and addresses that can run any number of times
program      what a launch does, made ready once for all calls with the same shapes
choices      who computes which product, and how threads share the batch
layer        writes the program of a layer
costs        what work costs on this machine, measured once
split        whether the threads share the batch or the units
threads      torch's own threads, which run the kernels
pool         memory that survives a step
libc         calls of the C library, most of them about memory
"""
