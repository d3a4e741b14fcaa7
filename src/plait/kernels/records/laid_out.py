"""The layout of a padded batch (lengths.py): two numbers, and these arrays one after the other

ORDER    (B,)      the numbers of the sequences, longest first
INVERSE  (2*B,)    the place of each in that order; in the second half B more
LENGTHS  (B,)      of the sequences, longest first
SIZES    (T + 1,)  how many are alive at each step, and 0
BOUNDS   (T + 1,)  the first row of each step, and the end
PLACES   (T*B,)    where each row is in the padded batch, whose first two axes are flattened; N of them
SOURCES  (T*B,)    for each place its row, or -1
BEFORE   (T*B,)    for each row, the row before it in the history of a tape (Layout.rows_before); N of them
"""

from itertools import accumulate

N, STEPS = 0, 1  # how many rows, or -1: a length is wrong; and how many steps the longest has
FIRST = 2  # where the arrays begin
ORDER, INVERSE, LENGTHS, SIZES, BOUNDS, PLACES, SOURCES, BEFORE = range(8)


def starts(T: int, B: int) -> list[int]:
    """Where each array begins, and the end."""
    return list(accumulate((B, 2 * B, B, T + 1, T + 1, T * B, T * B, T * B), initial=FIRST))
