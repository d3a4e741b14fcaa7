"""How the threads share a walk: the batch, cut into slices, or the units of every step."""

from bisect import bisect_left
from itertools import accumulate, pairwise
from typing import Protocol

from .target import Form

# Measured, on a core with vectors of 256 bits
RATE = 40e9  # multiplications with additions a second, of one thread
BANDWIDTH = 80e9  # bytes of weights a second from the last cache, beside the arithmetic
CACHE = 1 << 18  # bytes of weights that a nearer one holds
BARRIER = 3e-6  # seconds: less if the other thread is there, much more if somebody else has its core
GAIN = 1.05  # what the meetings must bring, to be worth that risk


class Batch(Protocol):
    """engines.layout.Layout, as far as the kernels know it."""

    T: int
    B: int

    @property
    def N(self) -> int: ...
    @property
    def is_dense(self) -> bool: ...
    @property
    def sizes(self) -> list[int]: ...


def slices(batch: Batch, walks: int, threads: int) -> list[int]:
    """Where the batch is cut, all slices the same work, so that every thread has one (of some direction)."""
    parts = max(1, min(batch.B, -(-threads // walks)))
    if batch.is_dense:
        return [batch.B * k // parts for k in range(parts + 1)]
    lengths: list[int] = []  # longest last
    for t, (alive, following) in enumerate(pairwise([*batch.sizes, 0]), 1):
        if alive > following:
            lengths += [t] * (alive - following)
    work = list(accumulate(reversed(lengths)))  # steps of the sequences up to each
    cuts = [bisect_left(work, work[-1] * k / parts) for k in range(1, parts)]
    return [0, *cuts, batch.B]


def by_units(form: Form, batch: Batch, H: int, walks: int, threads: int) -> bool:
    """Whether the threads share the units. They meet after each step, which costs BARRIER; but none is idle for lack of
    sequences, and each reads its own part of the weights only.
    """
    blocks, B = -(-H // form.target.width), batch.B
    if threads == 1 or blocks < threads or form.projected:
        return False
    numbers = form.G * H * H
    row, size = numbers / RATE, numbers * form.target.size
    stream = size / BANDWIDTH if size > CACHE else 0.0
    parts = max(1, min(B, -(-threads // walks)))
    by_batch = -(-walks * parts // threads) * (-(-B // parts) * row + stream)
    share = -(-blocks // threads) / blocks
    return (walks * share * (B * row + stream) + BARRIER) * GAIN < by_batch
