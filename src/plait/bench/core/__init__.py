"""What the questions of `plait bench` share.

options     the options of a question, as fields of a dataclass
turns       how contenders take turns, and the spread of what was timed
progress    a line every few seconds, and which part is measured
report      what is printed and written: question, environment, tables, remarks
sections    a question that has several parts, as --parts names them
pictures    sections as panels of one picture
cases       layers and batches, as --shapes and --cells name them
steps       a training step of torch.nn's layer beside the same step of plait's
memory      memory and pages of a step
malloc      measuring with malloc as it comes, or with one that keeps what was freed
blas        threads of NumPy's products
job         several processes that measure together
peak        what the register tile reaches from the first cache
"""
