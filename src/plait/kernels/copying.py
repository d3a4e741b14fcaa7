"""Rows, copied to other places: a ragged batch from and to a padded one, and the states that its steps start from."""

from .machine import Int, compiled, copy, get, ticket, wait, zero
from .records import copy as COPY
from .records import launch as LAUNCH

ROWS = 32  # rows that a thread takes at a time


@compiled(1, Int)
def pieces(record):
    return (get(record, COPY.ROWS) + ROWS - 1) // ROWS


@compiled(2)
def copy_piece(record, piece):
    to, origin, row = get(record, COPY.TO), get(record, COPY.FROM), get(record, COPY.ROW)
    for k in range(piece * ROWS, min((piece + 1) * ROWS, get(record, COPY.ROWS))):
        number = get(get(record, COPY.INDEX), k)
        if number < 0:
            zero(to + k * row, row)
        else:
            copy(to + k * row, origin + number * row, row)


@compiled(1)
def copy_results(launch):
    """The copies that come after all else. A thread that is free takes the next piece."""
    first, last = get(launch, LAUNCH.COPIES), get(launch, LAUNCH.COPIES) + get(launch, LAUNCH.COPIES_AFTER)
    for k in range(first, last):
        record = get(launch, LAUNCH.FIRST_COPY) + k * COPY.COPY_SIZE * 8
        item = ticket(record, COPY.TAKEN)
        while item < pieces(record):
            copy_piece(record, item)
            ticket(record, COPY.DONE)
            item = ticket(record, COPY.TAKEN)
    for k in range(first, last):
        record = get(launch, LAUNCH.FIRST_COPY) + k * COPY.COPY_SIZE * 8
        wait(launch, record, COPY.DONE, pieces(record))
