"""The layout of a padded batch, from the lengths of its sequences: what layout.py computes, in one pass."""

from ..records import Padded
from .machine import compiled, get, put


@compiled(5)
def lay_out(lengths, T, B, batch_first, to):
    """Writes the record. If a length is not from 1 to T, the number of rows is -1, and the rest is not there."""
    order = to + 8 * Padded.SIZE
    inverse = order + 8 * B
    ordered = inverse + 16 * B
    sizes = ordered + 8 * B
    bounds = sizes + 8 * (T + 1)
    places = bounds + 8 * (T + 1)
    sources = places + 8 * T * B
    before = sources + 8 * T * B
    put(to, Padded.N, -1)
    for t in range(T + 1):
        put(sizes, t, 0)
    for b in range(B):
        n = get(lengths, b)
        if n < 1 or n > T:
            return
        put(sizes, n - 1, get(sizes, n - 1) + 1)
    for t in range(T - 2, -1, -1):  # of as many steps or more
        put(sizes, t, get(sizes, t) + get(sizes, t + 1))
    for t in range(T + 1):  # for now: the place of the next sequence of that length
        put(bounds, t, get(sizes, t))
    for b in range(B):
        n = get(lengths, b)
        place = get(bounds, n)
        put(bounds, n, place + 1)
        put(order, place, b)
        put(ordered, place, n)
        put(inverse, b, place)
        put(inverse, B + b, B + place)
    for p in range(T * B):
        put(sources, p, -1)
    row = previous = t = 0
    while get(sizes, t):
        put(bounds, t, row)
        for j in range(get(sizes, t)):
            p = get(order, j) * T + t if batch_first else t * B + get(order, j)
            put(places, row + j, p)
            put(sources, p, row + j)
            put(before, row + j, B + previous + j if t else j)
        previous = row
        row += get(sizes, t)
        t += 1
    put(bounds, t, row)
    put(to, Padded.STEPS, t)
    put(to, Padded.N, row)
