"""How the threads share a walk: each has a slice of the batch (Layout.shares), or some of the units of every step."""

from ..layout import Layout
from .target import Form

# Measured, on a core with vectors of 256 bits
RATE = 40e9  # multiplications with additions a second, of one thread
BANDWIDTH = 80e9  # bytes of weights a second that come from the last cache during the arithmetic
CACHE = 1 << 18  # bytes of weights that stay in the cache of a core
BARRIER = 3e-6  # seconds for one meeting; longer if another process has the core
GAIN = 1.05  # sharing units must be this much faster to be chosen


def by_units(form: Form, layout: Layout, H: int, walks: int, threads: int) -> bool:
    """Whether the threads share the units. Then they meet after each step, which costs BARRIER. But no thread is idle
    if there are few sequences, and each reads only its own part of the weights.
    """
    blocks, B = -(-H // form.target.width), layout.B
    if threads == 1 or blocks < threads or form.projected:
        return False
    numbers = form.G * H * H
    row, size = numbers / RATE, numbers * form.target.size
    stream = size / BANDWIDTH if size > CACHE else 0.0
    parts = max(1, min(B, -(-threads // walks)))
    by_batch = -(-walks * parts // threads) * (-(-B // parts) * row + stream)
    share = -(-blocks // threads) / blocks
    return (walks * share * (B * row + stream) + BARRIER) * GAIN < by_batch
