"""What engine `fused` is made of. CUDA has a folder of its own. Each module says in its first line what it is for.

records   the arguments of a kernel: records of words, each declared once
emit      the code that is made for one cell and one kind of number, from the inside to the outside:
          target, vectors, activations, tile, pointwise, functions
loops     the code that all cells share, compiled by numba: machine, packing, sums, products, copying, lengths, walk
launch    how it becomes machine code (objects, compiler, cache), what a launch does (schedule, costs, key, bindings,
          choices, slabs, workspace, program, layer), and who runs it (threads)
pool      memory that survives a step; libc has the calls of the C library that it needs
"""
