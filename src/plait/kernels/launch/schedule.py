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
    elementwise  "with the tile": gates right after the sums that they need; "apart": after all sums of a step
    states       "one buffer" for all steps; or "per step", an array and a call for each
    fold         W x as part of the sums of a step, where the weights are small; else as a product over all steps
    torch_mm     products over all steps by torch.mm where it is faster, else all of them by these kernels
    vector_bits  128, 256 or 512, if the CPU has such vectors; None: as PLAIT_VECTOR_BITS says, else the widest it has
    """

    tile: Literal["register"] | tuple[int, int] | None = "register"
    vectorise: bool = True
    parallel: bool = True
    fuse: bool = False
    elementwise: Literal["with the tile", "apart"] = "with the tile"
    states: Literal["one buffer", "per step"] = "one buffer"
    fold: bool = True
    torch_mm: bool = True
    vector_bits: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.tile, tuple) and (len(self.tile) != 2 or min(self.tile) < 1):
            raise PlaitError(f"tile {self.tile}: expected 'register', None, or rows and columns such as (64, 16).")
        if isinstance(self.tile, str) and self.tile != "register":
            raise PlaitError(f"tile {self.tile!r}: expected 'register', None, or rows and columns such as (64, 16).")
        for name, value, known in (
            ("elementwise", self.elementwise, ("with the tile", "apart")),
            ("states", self.states, ("one buffer", "per step")),
        ):
            if value not in known:
                raise PlaitError(f"{name} {value!r}: expected {known[0]!r} or {known[1]!r}.")

    def machine(self) -> Host:
        """The CPU that the kernels are made for."""
        return host() if self.vector_bits is None else host().narrowed(self.vector_bits, "vector_bits")

    def target(self, double: bool, machine: Host | None = None) -> Target:
        machine = machine or self.machine()
        lanes = machine.vector_bits // (64 if double else 32) if self.vectorise else 1
        apart = self.elementwise == "apart"
        if self.tile is None:
            return Target(double, lanes, 1, 1, apart=apart)
        if self.tile == "register":
            return Target(double, lanes, machine.rows, apart=apart)
        rows, columns = self.tile
        target = Target(double, lanes, 1, max(1, columns // lanes), chunk=rows, apart=apart)
        if target.width * target.size > MOST_TILE:
            most = MOST_TILE // target.size
            raise PlaitError(f"tile {self.tile}: {columns} columns, expected {most} at most: the results of a row.")
        return target


DEFAULT = Schedule()
OFF = Schedule(tile=None, vectorise=False, parallel=False, fold=False, torch_mm=False)
