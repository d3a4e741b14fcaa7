"""What is decided about a layer before its program is written: who computes which product, how many threads there are,
and how they share the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ..layout import Layout
from . import split
from .addresses import Table
from .costs import Costs
from .parts import Part
from .program import rows_at_once
from .records import MOST_GATES
from .schedule import Schedule
from .target import Form

# Which products the launch computes, and not torch.mm: see `ours`
CALL = 3e-5  # seconds to leave the launch, call torch.mm and go on
LONG = 384  # terms of a sum: as many or more are long
OF_RATE = 0.85, 0.95  # what a whole product reaches of the tile's rate: others; long sums if the weights are in a cache
THIN = 24  # columns: fewer are thin
FEW = 384  # rows: fewer are few
PANELS = 1 << 21  # numbers of the weights that fit into the last cache
# torch.mm is slower if the rows of its result are no multiple of EVEN numbers: 300 columns reach 0.75 of what 304 do
# (float32, MKL, Zen 4)
EVEN = 8
ODD_RATE = 0.75  # of its rate, for such a result
ODD_ROWS = 1000  # that has as many rows or more
WIDE = 1000  # columns of x and h together, and rows: sums over as many rows or more are torch.mm's, if they are EVEN
# When W x is part of the walk: see `folds`
FOLD_ROWS, FOLD_BYTES = 4, 1 << 20  # sequences, at least; bytes of weights, at most,
FOLD_INPUTS = 4  # or times as many inputs as units, at most
# When the batch is in parts: see `separates`
PART_ROWS = 1  # numbers that threads would share, at least, for each number of a weight
MOST_PARTIAL = 2  # times as many numbers as the gates have, at most, for the gradients of the weights of all parts
UNEVEN = 1.15  # times as large as the others may be the largest part
WORTH_A_TEAM = 4  # times as long as it takes to call a team: work that takes less is done by one thread alone


class Packs(NamedTuple):
    """Whether the panels of a direction have memory that outlives the call, and which of them are packed already."""

    lasting: bool = False
    r: bool = False  # R, and the projection with it
    w: bool = False


class Choices(NamedTuple):
    """What is decided by the costs, the number of rows and that of steps."""

    threads: int
    shared: bool  # they share the units of every step
    is_ours: bool  # the launch computes W x, or on the way back d_x
    over_rows: bool  # and the gradients of the weights
    is_one_step: bool


@dataclass
class Sized:
    """One layer and its batch, and what is decided about it."""

    schedule: Schedule
    costs: Costs
    layout: Layout
    table: Table
    form: Form
    count: int  # threads
    I: int
    H: int
    P: int
    bias: bool
    reverse: Sequence[bool]  # per direction
    packs: Packs
    folded: bool = False  # W x is part of the walk
    bounds: Sequence[int] = ()  # of the parts of the batch (parts.py); none: it is one part
    x_in_parts: bool = False  # the rows of x are
    rows_in_parts: bool = False  # those of the output
    marked: bool = False  # the tape says in how many parts it is
    lenient: float = 1.0  # the launch computes d_x if it takes so many times as long as torch.mm, or less

    def __post_init__(self) -> None:
        self.D, self.G, self.size = len(self.reverse), self.form.G, self.form.target.size
        bounds, T, B = self.bounds or (0, self.layout.B), self.layout.T, self.layout.B
        self.part_count = len(bounds) - 1
        self.parts = [
            Part(s, d, reverse, T, T * (hi - lo) if self.bounds else self.layout.N, lo, hi, B)
            for s, (lo, hi) in enumerate(pairwise(bounds))
            for d, reverse in enumerate(self.reverse)
        ]

    def separates(self, parts: int) -> bool:
        """Whether so many parts pay. Then threads share no rows, but each has its own gradients of the weights, which
        are added up. The launch must compute all products, and W x within the walk.
        """
        there, back, count = self.choices(False, True), self.choices(True, False), self.count
        weights, rows, N, B = self.G * self.H, self.I + self.P, self.layout.N, self.layout.B
        return (
            parts > 1
            and self.folded
            and not (self.unites or self.form.projected or there.shared or back.shared)
            and there.threads == back.threads == count == parts * self.D
            and back.is_ours
            and back.over_rows
            and -(-B // parts) * parts <= UNEVEN * B
            and N * (rows + weights // parts) >= PART_ROWS * weights * rows
            and parts * rows <= MOST_PARTIAL * N
        )

    def choices(self, back: bool, project: bool) -> Choices:
        """project: forward, W x is wanted."""
        N, GH, I = self.layout.N, self.G * self.H, self.I
        if back:
            count = self.team(I)
            is_ours = self.part_count > 1 or self.ours(N, I, GH, count, self.lenient)
        else:
            is_ours = project and not self.folded and self.ours(N, GH, I, self.count)
            count = self.team(I if project and (is_ours or self.folded) else 0)
        can_share = not self.unites and self.part_count == 1
        shared = can_share and split.by_units(self.costs, self.form, self.layout, self.H, self.D, count)
        over_rows = back and ours_over_rows(self.schedule, I, self.P, N)
        return Choices(count, shared, is_ours, over_rows, self.layout.T == 1)

    def slices(self, count: int) -> list[int]:
        """The bounds of the slices of the batch, for so many threads."""
        parts = 1 if self.bounds else -(-count // self.D)  # a slice is a part, which is a walk
        return self.layout.shares(max(1, min(self.layout.B, parts)))

    def chunk(self, choices: Choices, back: bool) -> int:
        """How many rows of x, or on the way back of the gates, are multiplied at a time."""
        columns = self.G * self.H if back else self.I
        return rows_at_once(self.form.target.rows, choices.threads, self.layout.N, columns * self.size)

    def ours(self, M: int, N: int, K: int, count: int, lenient: float = 1.0) -> bool:
        """Whether the launch computes the product (M, K) (K, N) of a whole sequence itself, and not torch.mm.

        For the launch it is no call of its own. But it wastes the lanes that N does not fill, and it is slower if it
        reads many panels from memory. If they are packed already, it computes all with few rows.
        """
        if not self.schedule.torch_mm or (self.packs.lasting and M < FEW):
            return True
        target, costs, work = self.form.target, self.costs, M * N * K * self.size / 4 / count
        rest = N % target.width
        # the last block may be narrow
        last = 0 if rest == 0 else target.lanes if rest <= target.lanes else target.width
        share = OF_RATE[K >= LONG and N * K <= PANELS] * N / (N - rest + last)
        mm = costs.thin if N < THIN else costs.mm
        if N % EVEN and M >= ODD_ROWS:
            mm *= ODD_RATE
        return work / (costs.rate * share) < lenient * (CALL + work / mm)

    def team(self, more: int) -> int:
        """How many threads: one for little work. more: columns of W that the launch multiplies with, besides R"""
        work = self.layout.N * self.D * self.G * self.H * (self.P + more)
        seconds = work * self.size / 4 / self.costs.rate
        is_worth_it = seconds >= WORTH_A_TEAM * self.costs.team and self.schedule.parallel
        return self.count if is_worth_it else 1

    @property
    def unites(self) -> bool:
        return self.schedule.fuse and self.D == 1

    def width(self, state: int) -> int:
        return self.P if state == 0 else self.H


def folds(schedule: Schedule, form: Form, B: int, I: int, H: int, P: int) -> bool:
    """Whether W x is part of the sums of a step: then it never goes through memory. But every step reads W again, for a
    handful of rows or from a slow cache that takes longer. It depends neither on the threads nor on the number of
    steps, so that these do not change a result.
    """
    panels, target = form.G + len(form.apart), form.target
    is_small = panels * H * (I + P) * target.size <= FOLD_BYTES or I <= FOLD_INPUTS * P
    return schedule.fold and B >= FOLD_ROWS and is_small and panels <= MOST_GATES and not target.apart


def ours_over_rows(schedule: Schedule, I: int, P: int, N: int) -> bool:
    """Whether the launch sums over N rows of x and h. torch.mm is faster where these are wide, long and EVEN."""
    is_theirs = I + P >= WIDE and N >= WIDE and I % EVEN == 0 and P % EVEN == 0
    return not (schedule.torch_mm and is_theirs)
