"""The register tile alone, again and again, on the same few numbers. numba compiles this when it is imported."""

from numba import cfunc, types

from ...kernels.loops.machine import Int, call9, get, memory, ticket
from ...kernels.records import MOST_TILE
from .peak import Burst

results = memory(MOST_TILE // 8)


@cfunc(types.void(Int))
def run(burst):
    """What each thread of the team does: it takes pieces of work until none is left."""
    tile, key, depth, scratch = get(burst, Burst.TILE), get(burst, Burst.KEY), get(burst, Burst.DEPTH), results()
    a, row, step = get(burst, Burst.A), get(burst, Burst.ROW), get(burst, Burst.STEP)
    while ticket(burst, Burst.TAKEN) < get(burst, Burst.PIECES):
        for _ in range(get(burst, Burst.EACH)):
            call9(tile, key, a, row, step, depth, get(burst, Burst.PANEL), 0, scratch, 0)
