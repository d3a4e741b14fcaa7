"""How the threads share a walk: the batch, cut into slices (Layout.shares), or the units of every step."""

from ..layout import Layout
from .target import Form

# Measured, on a core with vectors of 256 bits
RATE = 40e9  # multiplications with additions a second, of one thread
BANDWIDTH = 80e9  # bytes of weights a second from the last cache, beside the arithmetic
CACHE = 1 << 18  # bytes of weights that a nearer one holds
BARRIER = 3e-6  # seconds: less if the other thread is there, much more if somebody else has its core
GAIN = 1.05  # what the meetings must bring, to be worth that risk


def by_units(form: Form, layout: Layout, H: int, walks: int, threads: int) -> bool:
    """Whether the threads share the units. They meet after each step, which costs BARRIER; but none is idle for lack of
    sequences, and each reads its own part of the weights only.
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
