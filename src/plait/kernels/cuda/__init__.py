"""What the CUDA engines are made of.

gpu        which device there is, or what is missing
numbers    the functions of a cell, and its text, in the precision of the layer
samples    versions 1 to 3: what is done for one sample, as text
launches   versions 1 to 3: compiled by numba-cuda, launched, and what is copied
blocks     version 4: Triton, one launch for all steps, a block for a group of samples
"""
