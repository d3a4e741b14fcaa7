"""The CPU at hand: how wide its vectors are, how many registers it has, and what it is called."""

import platform
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import takewhile

import llvmlite.binding as llvm
from llvmlite import ir

from ..cells import Cell
from ..cells.trace import trace

I32, I64 = ir.IntType(32), ir.IntType(64)
IS_X86 = platform.machine() in ("x86_64", "AMD64")


@dataclass(frozen=True)
class Host:
    name: str
    features: tuple[str, ...]  # those that it has, sorted
    machine: str

    @property
    def vector_bytes(self) -> int:
        if "avx512f" in self.features:
            return 64
        return 32 if "avx" in self.features else 16

    @property
    def registers(self) -> int:
        return 32 if "avx512f" in self.features or self.machine in ("aarch64", "arm64") else 16


@cache
def host() -> Host:
    found = llvm.get_host_cpu_features()
    return Host(llvm.get_host_cpu_name(), tuple(sorted(k for k, v in found.items() if v)), platform.machine())


@dataclass(frozen=True)
class Target:
    """The shape of the generated code: `rows` x `vectors` of `lanes` numbers are the register tile."""

    double: bool
    lanes: int
    rows: int
    vectors: int = 2
    chunk: int = 0  # rows of the batch that are computed together, 0 for all
    apart: bool = False  # element-wise work after all products of a step, not after each

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return 8 if self.double else 4

    @property
    def width(self) -> int:
        """Columns of a panel: units that are computed together."""
        return self.vectors * self.lanes

    @cached_property
    def number(self) -> ir.Type:
        return ir.DoubleType() if self.double else ir.FloatType()

    @cached_property
    def vector(self) -> ir.VectorType:
        return ir.VectorType(self.number, self.lanes)

    @property
    def suffix(self) -> str:
        """How LLVM's intrinsics call this vector."""
        return f"v{self.lanes}f{8 * self.size}"

    def panels(self, rows: int) -> int:
        """How many panels a tile of so few rows takes at once, to keep the multipliers busy: a power of two."""
        return 1 << ((self.rows // rows).bit_length() - 1)


@dataclass(frozen=True, eq=False)
class Form:
    """A cell as a kernel sees it: one object for each cell and kind of number, compared by identity.

    The gates' buffer is used three times over: for wx, for what is saved, for d_wx.
    """

    cell: type[Cell]
    dt: float
    target: Target
    projected: bool = False

    @cached_property
    def G(self) -> int:
        return len(self.cell.gates)

    @cached_property
    def S(self) -> int:
        return len(self.cell.states)

    @cached_property
    def shared(self) -> int:
        """For so many gates, counted from the first, d_wx and d_rh are one."""
        return len(list(takewhile(bool, trace(self.cell, self.dt).shared)))

    @cached_property
    def E(self) -> int:
        """Columns of H beside the gates': for what else is saved, and for each d_rh that is not d_wx."""
        return max(len(trace(self.cell, self.dt).saved) - self.G, self.G - self.shared)
