"""The register tile alone, again and again, on the same few numbers: what it reaches from the first cache.

numba compiles this loop when `plait bench` first asks for it. No layer needs it.
"""

from . import records
from .machine import call9, compiled, get, memory, ticket
from .records import peak as PEAK

results = memory(records.MOST_TILE // 8)


@compiled(1)
def run(peak):
    """What each thread of the team does: it takes pieces of work until none is left."""
    leaf, key, depth, scratch = get(peak, PEAK.TILE), get(peak, PEAK.KEY), get(peak, PEAK.DEPTH), results()
    a, row, step = get(peak, PEAK.A), get(peak, PEAK.ROW), get(peak, PEAK.STEP)
    while ticket(peak, PEAK.TAKEN) < get(peak, PEAK.PIECES):
        for _ in range(get(peak, PEAK.EACH)):
            call9(leaf, key, a, row, step, depth, get(peak, PEAK.PANEL), 0, scratch, 0)
