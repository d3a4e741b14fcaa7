"""What engine `fused` is made of. CUDA has a folder of its own.

records      the arguments of a kernel: records of words, each declared once

emit         the code that is made for one cell and one kind of number, from the inside to the outside:
target       the CPU at hand: its vectors and registers, as LLVM types
vectors      numbers that emit LLVM instructions: the text of a cell runs on them
activations  the functions of a step (tanh, exp, ...), made of + - * / and operations on bits
tile         a register tile: a few rows times a panel of weights
pointwise    a cell's step and its derivative on vector registers
functions    tile and pointwise as one LLVM module

loops        the code that all cells share, compiled by numba:
machine      what compiled loops do beside arithmetic: words in memory, tickets, barriers
packing      weights into panels
sums         sums over all rows: the gradients of weights
products     rows times panels, and products over all steps
copying      rows of a padded batch, before the walk and after it
lengths      the layout of a batch from its lengths
walk         the walk through time, forward and backward

launch       how it becomes machine code, and how it is called:
objects      loops and functions as object files
compiler     loads an object file, and compiles it if it is not in the cache
cache        the folder in which object files are stored
schedule     which optimisations are on: each can be turned off, to measure what it gains
costs        what work costs on this machine, measured once
key          all that a call depends on but its tensors
bindings     where the matrices of a call are
choices      who computes which product, and how threads share the batch
parts        slices of a batch that have memory of their own
workspace    memory for the time of a launch
program      what a launch does, made once for all calls with the same key
layer        writes the program of a layer
threads      torch's own threads, which run the kernels

pool         memory that survives a step
libc         calls of the C library, most of them about memory
"""
