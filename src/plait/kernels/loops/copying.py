"""Rows, copied to other places: a ragged batch from and to a padded one, and the states that its steps start from."""

from ..records import Copy, Launch
from .machine import Int, compiled, copy, count_up, get, ticket, wait, zero

ROWS = 32  # rows that a thread takes at a time


@compiled(2, Int)
def pieces(record, after):
    """How many there are before the walks, or after all else."""
    return (get(record, Copy.ROWS) + ROWS - 1) // ROWS if get(record, Copy.AFTER) == after else 0


@compiled(2)
def copy_piece(record, piece):
    to, origin, row = get(record, Copy.TO), get(record, Copy.FROM), get(record, Copy.ROW)
    for k in range(piece * ROWS, min((piece + 1) * ROWS, get(record, Copy.ROWS))):
        number = get(get(record, Copy.INDEX), k)
        if number < 0:
            zero(to + k * row, row)
        else:
            copy(to + k * row, origin + number * row, row)


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
