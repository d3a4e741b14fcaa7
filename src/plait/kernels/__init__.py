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
products     rows times panels, and products over all steps
recurrence   the walk through time, forward and back
peak         the tile alone, to be measured

How it becomes machine code:
objects      loops and leaves as object files
compiler     loads an object file, and compiles it if it is not in the cache
cache        the folder in which object files are stored

How it is called:
addresses    where the matrices of a call are
program      a call, made ready once for all calls with the same shapes
layer        writes the program of a layer
costs        what work costs on this machine, measured once
split        whether the threads share the batch or the units
threads      torch's own threads, which run the kernels
pool         memory that survives a step
free_memory  how much memory the system has left
libc         calls of the C library, most of them about memory
"""
