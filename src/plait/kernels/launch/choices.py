"""What is decided about a layer before its program is written: who computes which product, how many threads there are,
and how they share the batch.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from ...layout import Layout
from ..emit.target import Form
from ..records import MOST_GATES
from .costs import Costs
from .key import Key
from .schedule import Schedule
from .slabs import Slab

# Which products the launch computes, and not torch.mm: see `ours`
CALL = 3e-5  # seconds to leave the launch, call torch.mm and go on
LONG = 384  # terms: from here on a sum is long
OF_RATE = 0.85, 0.95  # what a whole product reaches of the tile's rate: others; long sums if the weights are in a cache
THIN = 24  # columns: below this torch.mm has the rate for thin matrices
FEW = 384  # rows: below this the launch computes everything if its panels are packed already
PANELS = 1 << 21  # numbers of the weights that fit into the last cache
# torch.mm is slower if the rows of its result are no multiple of EVEN numbers: 300 columns reach 0.75 of what 304 do
# (float32, MKL, Zen 4)
EVEN = 8
ODD_RATE = 0.75  # of its rate, for such a result
ODD_ROWS = 1000  # that has as many rows or more
WIDE = 1000  # columns of x and h together, and rows: sums over as many rows or more are torch.mm's, if they are EVEN
# How many rows of a product are computed together: see `chunk`
CHUNK_BYTES = 1 << 18  # bytes of them that stay in the second cache
FEW_BYTES = 3 << 18  # below this, rows are not cut into chunks: reading all panels again would cost more
FEW_TILES = 4  # tiles of rows that a thread takes at a time, at least: then it reads the panels less often
# When W x is part of the walk: see `folded`
FOLD_ROWS, FOLD_BYTES = 4, 1 << 20  # sequences, at least; bytes of weights, at most,
FOLD_INPUTS = 4  # or times as many inputs as units, at most
# When the batch is in slabs: see `separates`
SLAB_ROWS = 1  # numbers that threads would share, at least, for each number of a weight
MOST_PARTIAL = 2  # times as many numbers as the gates have, at most, for the gradients of the weights of all slabs
UNEVEN = 1.15  # the largest slab may be this many times the mean
WORTH_A_TEAM = 4  # one thread does what takes less than this many times a call of a team
LENIENT = 1.25  # the launch may take this many times as long as torch.mm for d_x, if it then computes everything
GAIN = 1.05  # sharing units must be this much faster to be chosen


class Choices(NamedTuple):
    """What is decided by the costs, the number of rows and that of steps."""

    threads: int
    shared: bool  # they share the units of every step
    is_ours: bool  # the launch computes W x, or in the backward pass d_x
    over_rows: bool  # and the gradients of the weights
    is_one_step: bool


@dataclass(frozen=True, eq=False)
class Sized:
    """One layer of a plan, and what is decided about it."""

    key: Key
    number: int  # of the layer
    form: Form
    schedule: Schedule
    costs: Costs
    bounds: Sequence[int] = ()  # of the slabs of the batch (slabs.py); none: it is one slab
    lenient: float = 1.0  # the launch computes d_x if it takes so many times as long as torch.mm, or less

    @cached_property
    def I(self) -> int:  # noqa: E743
        return self.key.inputs(self.number)

    @cached_property
    def GH(self) -> int:
        return self.form.G * self.key.H

    @cached_property
    def size(self) -> int:
        """Bytes of a number."""
        return self.form.target.size

    @cached_property
    def folded(self) -> bool:
        """Whether W x is part of the sums of a step: then it never goes through memory. But every step reads W again,
        for a handful of rows or from a slow cache that takes longer. It depends neither on the threads nor on the
        number of steps, so that these do not change a result.
        """
        key, I, target, panels = self.key, self.I, self.form.target, self.form.G + len(self.form.apart)
        is_small = panels * key.H * (I + key.P) * self.size <= FOLD_BYTES or I <= FOLD_INPUTS * key.P
        is_wanted = self.schedule.fold and not key.walk and (key.whole or key.B) >= FOLD_ROWS
        return is_wanted and is_small and panels <= MOST_GATES and not target.apart

    @cached_property
    def slab_count(self) -> int:
        return max(1, len(self.bounds) - 1)

    @property
    def x_in_slabs(self) -> bool:
        """The rows between layers are in slabs, as the tapes are; but masks are drawn for rows as they come."""
        return self.number > 0 and not self.key.dropout

    @property
    def rows_in_slabs(self) -> bool:
        return self.number < self.key.layers - 1 and not self.key.dropout

    @cached_property
    def slabs(self) -> list[Slab]:
        key = self.key
        return [
            Slab(s, d, reverse, key.T, key.T * (hi - lo), lo, hi, key.B)
            for s, (lo, hi) in enumerate(pairwise(self.bounds or (0, key.B)))
            for d, reverse in enumerate(key.reverse)
        ]

    def separates(self, slabs: int) -> bool:
        """Whether so many slabs pay. Then threads share no rows, but each has its own gradients of the weights, which
        are added up. The launch must compute all products, and W x within the walk.
        """
        T, B, count = self.key.T, self.key.B, self.key.threads
        forward, backward = (self.choices(T * B, T, back=back) for back in (False, True))
        weights, rows, N = self.GH, self.I + self.key.P, T * B
        return (
            slabs > 1
            and self.folded
            and not (self.unites or self.form.projected or forward.shared or backward.shared)
            and forward.threads == backward.threads == count == slabs * self.key.D
            and backward.is_ours
            and backward.over_rows
            and -(-B // slabs) * slabs <= UNEVEN * B
            and N * (rows + weights // slabs) >= SLAB_ROWS * weights * rows
            and slabs * rows <= MOST_PARTIAL * N
        )

    def choices(self, N: int, T: int, *, back: bool) -> Choices:
        """N, T: how many rows and steps the batch has."""
        key, I, known = self.key, self.I, self.key.ours[self.number] if self.key.ours else None
        if back:
            count = self.team(N, I)
            is_ours = known[1] if known else self.ours(N, I, self.GH, count, self.lenient)
            is_ours = is_ours or self.slab_count > 1
        else:
            is_ours = known[0] if known else self.ours(N, self.GH, I, key.threads)
            is_ours = is_ours and not (key.walk or self.folded)
            count = self.team(N, I if is_ours or self.folded else 0)
        can_share = not self.unites and self.slab_count == 1 and count > 1
        shared = can_share and by_units(self.costs, self.form, key.B, key.H, key.D, count)
        over_rows = back and (key.rounded or ours_over_rows(self.schedule, I, key.P, N))
        return Choices(count, shared, is_ours, over_rows, T == 1)

    def slices(self, layout: Layout, count: int) -> list[int]:
        """The bounds of the slices of the batch, for so many threads."""
        return layout.shares(1 if self.bounds else -(-count // self.key.D))  # of slabs each one is a slice

    def slices_at(self, layout: Layout, count: int) -> int:
        """The address of the bounds of the slices of a ragged batch, which stay with its layout."""
        name = "slices", -(-count // self.key.D)
        found = layout.cache.get(name)
        if found is None:  # another thread may store its own meanwhile: the first stays, so its address does
            found = layout.cache.setdefault(name, array("q", self.slices(layout, count)))
        address: int = found.buffer_info()[0]
        return address

    def chunk(self, N: int, threads: int, back: bool) -> int:
        """How many of N rows of x, or in the backward pass of the gates, are multiplied with a panel at a time. Each
        time all panels are read once. The rows stay in cache. Threads share the work evenly if there are some pieces
        for each.
        """
        tile, row, share = self.form.target.rows, (self.GH if back else self.I) * self.size, -(-N // threads)
        if threads > 1:
            share = max(-(-share // 4), min(share, FEW_TILES * tile))
        if share * row <= FEW_BYTES:
            return max(tile, share)
        return max(1, CHUNK_BYTES // (row * tile)) * tile

    def ours(self, M: int, N: int, K: int, count: int, lenient: float = 1.0) -> bool:
        """Whether the launch computes the product (M, K) (K, N) of a whole sequence itself, and not torch.mm.

        For the launch it is no call of its own. But it wastes the lanes that N does not fill, and it is slower if it
        reads many panels from memory. If they are packed already, it computes all with few rows.
        """
        if self.key.rounded or not self.schedule.torch_mm or (self.key.pinned and M < FEW):
            return True  # torch.mm would round its results, too
        target, costs, work = self.form.target, self.costs, M * N * K * self.size / 4 / count
        rest = N % target.width
        # the last block may be narrow
        last = 0 if rest == 0 else target.lanes if rest <= target.lanes else target.width
        share = OF_RATE[K >= LONG and N * K <= PANELS] * N / (N - rest + last)
        mm = costs.thin if N < THIN else costs.mm
        if N % EVEN and M >= ODD_ROWS:
            mm *= ODD_RATE
        return work / (costs.rate * share) < lenient * (CALL + work / mm)

    def team(self, N: int, more: int) -> int:
        """How many threads: one for little work. more: columns of W that the launch multiplies with, besides R"""
        is_worth_it = self.seconds(N, more) >= WORTH_A_TEAM * self.costs.team and self.schedule.parallel
        return self.key.threads if is_worth_it else 1

    def seconds(self, N: int, more: int) -> float:
        """What N rows take on one thread forward, at the full rate."""
        return N * self.key.D * self.GH * (self.key.P + more) * self.size / 4 / self.costs.rate

    @property
    def unites(self) -> bool:
        return self.schedule.fuse and self.key.D == 1


def ours_over_rows(schedule: Schedule, I: int, P: int, N: int) -> bool:
    """Whether the launch sums over N rows of x and h. torch.mm is faster where these are wide, long and EVEN."""
    is_theirs = I + P >= WIDE and N >= WIDE and I % EVEN == 0 and P % EVEN == 0
    return not (schedule.torch_mm and is_theirs)


def by_units(costs: Costs, form: Form, B: int, H: int, walks: int, threads: int) -> bool:
    """Whether the threads share the units. Then they meet after each step, which takes time. But no thread is idle if
    there are few sequences, and each reads only its own share of the weights.
    """
    blocks = -(-H // form.target.width)
    if threads == 1 or blocks < threads or form.projected:
        return False
    numbers = form.G * H * H
    row, size = numbers * form.target.size / 4 / costs.rate, numbers * form.target.size
    stream = size / costs.stream if size > costs.cache else 0.0
    slices = max(1, min(B, -(-threads // walks)))
    by_batch = -(-walks * slices // threads) * (-(-B // slices) * row + stream)
    share = -(-blocks // threads) / blocks
    return (walks * share * (B * row + stream) + costs.team) * GAIN < by_batch
