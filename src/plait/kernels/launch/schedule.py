"""Which optimisations are on. Each can be turned off, to measure what it gains, as in schedules of Halide."""

from dataclasses import dataclass
from typing import Literal

from ...errors import PlaitError
from ..emit.target import Host, Target, host
from ..records import MOST_TILE


@dataclass(frozen=True)
class Schedule:
    """How the kernels compute. The default is the fastest that we know. With everything off they are scalar loops.

    tile         "register": the sums of several rows and columns stay in registers;
                 (rows, columns): blocks of that many rows and columns, whose weights stay in cache, row by row;
                 None: one sum after another
    vectorise    as many numbers at a time as a register holds
    parallel     on all of torch's threads
    fuse         projection and input gradient within the walk, step by step, instead of as products over all steps.
                 (Weight gradients are sums over all steps: those stay products over all steps.)
    apart        element-wise work after all sums of a step; else gates right after the sums that they need
    fold         W x as part of the sums of a step, where the weights are small; else as a product over all steps
    torch_mm     products over all steps by torch.mm where it is faster, else all of them by these kernels
    vector_bits  128, 256 or 512, if the CPU has such vectors; None: as PLAIT_VECTOR_BITS says, else the widest it has
    """

    tile: Literal["register"] | tuple[int, int] | None = "register"
    vectorise: bool = True
    parallel: bool = True
    fuse: bool = False
    apart: bool = False
    fold: bool = True
    torch_mm: bool = True
    vector_bits: int | None = None

    def __post_init__(self) -> None:
        is_pair = isinstance(self.tile, tuple) and len(self.tile) == 2 and min(self.tile) >= 1
        if not (is_pair or self.tile in ("register", None)):
            raise PlaitError(f"tile {self.tile!r}: expected 'register', None, or rows and columns such as (64, 16).")

    def machine(self) -> Host:
        """The CPU that the kernels are made for."""
        return host() if self.vector_bits is None else host().narrowed(self.vector_bits, "vector_bits")

    def target(self, double: bool, machine: Host | None = None, *, rounded: bool = False) -> Target:
        machine = machine or self.machine()
        lanes = machine.vector_bits // (64 if double else 32) if self.vectorise else 1
        if self.tile == "register":
            dot = rounded and machine.has_dot
            return Target(double, lanes, machine.rows, apart=self.apart, rounded=rounded, dot=dot)
        if rounded:
            raise PlaitError(f"tile {self.tile} with bfloat16: expected tile='register'.")
        chunk, columns = self.tile or (0, lanes)
        target = Target(double, lanes, 1, max(1, columns // lanes), chunk, self.apart)
        if target.width * target.size > MOST_TILE:
            most = MOST_TILE // target.size
            raise PlaitError(f"tile {self.tile}: {columns} columns, expected {most} at most: the results of a row.")
        return target


DEFAULT = Schedule()
OFF = Schedule(tile=None, vectorise=False, parallel=False, fold=False, torch_mm=False)
