"""What the CUDA engine is made of.

gpu          which device there is, or what is missing
form         what a kernel's text depends on
block_text   the text: one launch for all steps, a block of threads for a group of samples
blocks       the text compiled by Triton, and launched
"""
