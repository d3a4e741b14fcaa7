"""What engine `fused` is made of.

target       the CPU at hand: its vectors and registers, as LLVM types
schedule     what of the following can be turned off, to see what it buys
vectors      numbers that emit LLVM instructions: the cells' own texts run on them
activations  tanh and sigmoid from + - * / alone
tile         a register tile: a few rows times a panel of weights
pointwise    a cell's step and its derivative on vector registers
leaves       those three as one module, for one cell and one kind of number
machine      what compiled loops do beside arithmetic: words in memory, tickets, barriers
products     rows times panels, and products over all steps
recurrence   the walk through time, forward and back
native       all of this as machine code
compiler     compiled when it is first needed
cache        where machine code is kept
job          what a kernel is told, word by word
program      a call, made ready once for all calls with the same shapes
layer        what a program says about a layer
split        how the threads share the work
threads      who runs it: torch's own threads
pages        large matrices on large pages
"""
