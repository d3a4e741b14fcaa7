"""Where the matrices of a call are: in which of its bindings, and how far behind that address.

A call lists its bindings, addresses and sizes, in one order. A program (program.py) knows which of them go into which
of its words. The matrices of a tape, and those that exist only during a pass, are in one tensor each (MemoryMap).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

ALIGNED = 64  # numbers: matrices of a dense batch begin at multiples
JOINT_HEAD = 4  # numbers that have room for two counts, before the d_rh of a step in another stretch


class Where(NamedTuple):
    """A place in one of the matrices of a direction: `numbers` numbers after its beginning."""

    direction: int
    name: str
    numbers: int = 0
    k: int = 0  # of which state or parameter


class Spot(NamedTuple):
    """The same, found: behind which binding."""

    binding: int
    numbers: int = 0
    per_row: int = 0  # so many more numbers for each row of a ragged batch

    def after(self, numbers: int) -> "Spot":
        return Spot(self.binding, self.numbers + numbers, self.per_row)


NOWHERE = Spot(1)  # that binding is always 0: there is no such matrix


class MemoryMap:
    """Matrices one after the other in one tensor. Each has some numbers for each row of the batch, and some more.

    N: how many rows; None for ragged batches, which have a different number each time.
    """

    def __init__(self, N: int | None) -> None:
        self.N = N
        self.starts: dict[str, tuple[int, int]] = {}  # name -> numbers before it: fixed, and for each row
        self.end = 0, 0

    def add(self, name: str, per_row: int, fixed: int = 0) -> None:
        start, rows = self.end
        if self.N is None:
            self.end = start + fixed, rows + per_row
        else:
            start = aligned(start)
            self.end = start + fixed + self.N * per_row, 0
        self.starts[name] = start, rows

    def size(self, N: int) -> int:
        fixed, per_row = self.end
        return fixed + N * per_row

    def spot(self, binding: int, name: str, numbers: int = 0) -> Spot:
        fixed, per_row = self.starts[name]
        return Spot(binding, fixed + numbers, per_row)


class Bindings:
    """The order in which a call lists them. The first two are the workspace and 0, and N is the third."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names: Sequence[str] = ["workspace", "nothing", "N", *names]
        self.numbers = {name: k for k, name in enumerate(self.names)}


WORKSPACE, N = 0, 2


def aligned(numbers: int) -> int:
    return -(-numbers // ALIGNED) * ALIGNED
