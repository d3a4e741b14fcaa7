"""Slabs of a batch: slices whose rows lie together, so that a thread has memory of its own.

Rows come step after step, with all sequences of a step together (layout.py). If two threads walk two slices of them,
the rows of one thread end at every step where those of the other begin. A core fetches some lines beyond the end of
what it reads or writes. The other core wants to write these, and they go back and forth. So the memory of a stack
has the rows of each slab together:

    as they come   a a b b | a a b b | a a b b      two sequences a, two sequences b, three steps
    in slabs       a a | a a | a a   b b | b b | b b

The rows of x and y come from outside, as they are. A slab finds its own there: it skips some rows after each step.
Each slab also has its own gradients of the weights, which are added up at the end.
"""

from typing import NamedTuple


class Slab(NamedTuple):
    """Some sequences of the batch, in one direction. If there is one slab, it is all of them, and all places are 0."""

    number: int
    direction: int
    reverse: bool
    T: int
    N: int  # rows
    lo: int  # its first sequence, and the end
    hi: int
    all: int  # sequences of the batch

    @property
    def B(self) -> int:
        return self.hi - self.lo

    def own(self, width: int) -> int:
        """Where its sequences are, in a matrix of all sequences."""
        return self.lo * width

    # --- in numbers after the place that a matrix of all rows has in the tape (engines/tape.py)
    def rows(self, width: int) -> int:
        """Where its rows are."""
        return self.T * self.lo * width

    def states(self, width: int) -> int:
        """The states after each step. Those before the first step are next to them: in reverse they come last."""
        before = 0 if self.reverse else self.B - self.all
        return ((self.T + 1) * self.lo + before) * width

    def initial(self, width: int) -> int:
        before = self.T * (self.B - self.all) if self.reverse else 0
        return ((self.T + 1) * self.lo + before) * width

    def history(self, width: int) -> int:
        """The states before each step."""
        before = self.B - self.all if self.reverse else 0
        return ((self.T + 1) * self.lo + before) * width

    # --- in x, y and their gradients
    def outside(self, width: int, in_slabs: bool) -> int:
        """Where its rows are. in_slabs: these rows are in slabs, too"""
        return self.rows(width) if in_slabs else self.own(width)

    def skipped(self, in_slabs: bool) -> int:
        """Rows of other slabs, after its own of a step."""
        return 0 if in_slabs else self.all - self.B
