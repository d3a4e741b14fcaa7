"""What the compiled engines are made of.

target       the CPU at hand: its vectors and registers, as LLVM types
vectors      numbers that emit LLVM instructions: the cells' own texts run on them
activations  tanh and sigmoid from + - * / alone
tile         a register tile: a few rows times a panel of weights
pointwise    a cell's step and its derivative on vector registers
recurrence   the walk through time, forward and back
compiler     machine code, and where it is kept
threads      who runs it: torch's own threads
"""
