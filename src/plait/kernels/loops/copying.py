"""Rows, copied to other places: a ragged batch from and to a padded one, and the states that its steps start from."""

from ..records import Copy, Launch
from .machine import Int, call6, compiled, copy, count_up, get, ticket, wait, zero

ROWS = 32  # rows that a thread takes at a time


@compiled(2, Int)
def pieces(record, after):
    """How many there are before the walks, or after all else."""
    return (get(record, Copy.ROWS) + ROWS - 1) // ROWS if get(record, Copy.AFTER) == after else 0


@compiled(2)
def copy_piece(record, piece):
    index, origin, row = get(record, Copy.INDEX), get(record, Copy.FROM), get(record, Copy.ROW)
    size, rounding = get(record, Copy.TO_ROW), get(record, Copy.ROUNDING)
    for k in range(piece * ROWS, min((piece + 1) * ROWS, get(record, Copy.ROWS))):
        number, to = get(index, k) if index else k, get(record, Copy.TO) + k * size
        if number < 0:
            zero(to, size)
        elif rounding:
            call6(rounding, to, origin + number * row, get(record, Copy.NUMBERS), 0, 0, 0)
        else:
            copy(to, origin + number * row, row)


@compiled(1)
def copy_results(launch):
    """The copies that come after all else. A thread that is free takes the next piece."""
    for k in range(get(launch, Launch.COPIES)):
        record = get(launch, Launch.FIRST_COPY) + k * Copy.SIZE * 8
        item = ticket(record, Copy.TAKEN)
        while item < pieces(record, 1):
            copy_piece(record, item)
            count_up(launch, record, Copy.DONE)
            item = ticket(record, Copy.TAKEN)
    for k in range(get(launch, Launch.COPIES)):
        record = get(launch, Launch.FIRST_COPY) + k * Copy.SIZE * 8
        wait(launch, record, Copy.DONE, pieces(record, 1))
