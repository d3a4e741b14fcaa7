"""The CPU at hand: how wide its vectors are, how many registers it has, and what it is called."""

import os
import platform
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import groupby

import llvmlite.binding as llvm
from llvmlite import ir

from ...cells import Cell
from ...cells.trace import Trace, trace
from ...errors import PlaitError
from ..records import words

I32, I64, VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()
IS_X86 = platform.machine() in ("x86_64", "AMD64")
WIDTHS = (128, 256, 512)  # bits of a vector
FORCED = "PLAIT_VECTOR_BITS"
ONES = 0x3F803F80  # the bits of a pair of ones in bfloat16


@dataclass(frozen=True)
class Host:
    name: str
    features: tuple[str, ...]  # sorted
    machine: str
    forced: int | None = None  # bits of a vector; None: as many as it has

    @property
    def is_arm(self) -> bool:
        return self.machine in ("aarch64", "arm64")

    @property
    def widths(self) -> tuple[int, ...]:
        """Of all vectors that it has, in bits."""
        return WIDTHS[: 3 if "avx512f" in self.features else 2 if "avx" in self.features else 1]

    @property
    def vector_bits(self) -> int:
        return self.forced or self.widths[-1]

    @property
    def has_dot(self) -> bool:
        """Whether one instruction multiplies pairs of bfloat16 numbers and adds both products."""
        return "avx512bf16" in self.features and (self.vector_bits == 512 or "avx512vl" in self.features)

    @property
    def registers(self) -> int:
        """That the tile uses. With avx512vl, x86 has 32 for shorter vectors, too. But the instructions are longer that
        use the upper 16, and a Zen 4 then reaches 85 % of what it does with 16.
        """
        return 32 if self.is_arm or self.vector_bits == 512 else 16

    @property
    def rows(self) -> int:
        """Of a register tile that has two vectors of sums per row. The other registers hold two vectors of a panel, and
        numbers of A in all lanes: one or two on x86. On AArch64, which cannot multiply with memory, LLVM loads several
        of them ahead, and with more rows than these some sums would not stay in registers.
        """
        return (self.registers - (8 if self.is_arm else 4)) // 2

    def narrowed(self, bits: int, name: str) -> "Host":
        """The same with vectors of that many bits. name: what asks for it."""
        if bits not in self.widths:
            known = " or ".join(map(str, self.widths))
            raise PlaitError(f"{name} {bits}: this CPU ({self.name}) has no such vectors, expected {known}.")
        return replace(self, forced=bits)


def host() -> Host:
    """This CPU, with vectors as PLAIT_VECTOR_BITS says."""
    given, found = os.environ.get(FORCED, ""), _host()
    if not given:
        return found
    if given not in map(str, WIDTHS):
        raise PlaitError(f"{FORCED} '{given}': expected 128, 256 or 512, or nothing for the widest of this CPU.")
    return found.narrowed(int(given), FORCED)


def bf16_by() -> str:
    """What multiplies pairs of bfloat16 numbers here: the CPU's instruction, or float32 code."""
    return "avx512_bf16" if host().has_dot else "float32"


@cache
def _host() -> Host:
    found = llvm.get_host_cpu_features()
    return Host(llvm.get_host_cpu_name(), tuple(sorted(k for k, v in found.items() if v)), platform.machine())


def i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


@dataclass(frozen=True)
class Target:
    """The shape of the generated code: `rows` x `vectors` of `lanes` numbers are the register tile."""

    double: bool
    lanes: int
    rows: int
    vectors: int = 2
    chunk: int = 0  # rows of the batch that are computed together, 0 for all
    apart: bool = False  # element-wise work after all products of a step, not after each
    rounded: bool = False  # operands of products are bfloat16, two terms in a word (pairs.py)
    dot: bool = False  # and the CPU multiplies such pairs

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
        """The name of this vector in the names of LLVM's intrinsics."""
        return f"v{self.lanes}f{8 * self.size}"

    def most_joined(self, panels: int) -> int:
        """So many units of the last block, or fewer, are columns of one panel for all gates. They fill no vector."""
        return min(self.width // panels, self.lanes - 1) if panels > 1 else 0

    @property
    def kind(self) -> str:
        """What it is called, where users read it."""
        return "bfloat16" if self.rounded else f"float{8 * self.size}"

    @property
    def operand(self) -> int:
        """Bytes of an operand of a product."""
        return 2 if self.rounded else self.size

    def words(self, operands: int) -> int:
        return words(operands, self.rounded)

    def panels(self, rows: int) -> int:
        """How many panels a tile with this number of rows takes at once, a power of two: few rows take more."""
        return 1 << ((self.rows // rows).bit_length() - 1)


Run = tuple[str, int, int]  # "gates" or "extra", the first column of H numbers, how many columns


@dataclass(frozen=True, eq=False)
class Form:
    """A cell as a kernel sees it: one object for each cell and kind of number, compared by identity.

    The buffer of the gates may be used three times: for wx, then for what is saved, then for d_wx.
    """

    cell: type[Cell]
    dt: float
    target: Target
    projected: bool = False
    sourced: bool = False  # something is added to each new state, or to its d_, from outside

    @cached_property
    def trace(self) -> Trace:
        return trace(self.cell, self.dt)

    @cached_property
    def G(self) -> int:
        return len(self.cell.gates)

    @cached_property
    def S(self) -> int:
        return len(self.cell.states)

    @cached_property
    def K(self) -> int:
        return len(self.cell.params)

    @cached_property
    def apart(self) -> list[int]:
        """The gates whose d_rh is not their d_wx: it is in the extra columns, in this order."""
        return [g for g, shared in enumerate(self.trace.shared) if not shared]

    @cached_property
    def order(self) -> list[int]:
        """The gates, those that are apart first."""
        return [*self.apart, *(g for g in range(self.G) if g not in self.apart)]

    @cached_property
    def E(self) -> int:
        """Columns of H numbers besides those of the gates: for more saved values, and each d_rh that is not d_wx."""
        return self.trace.extra

    @cached_property
    def runs(self) -> list[Run]:
        """Where the columns of d_rh are, in the order of the gates. Those of neighbours that are apart are adjacent."""
        groups = [list(gates) for _, gates in groupby(range(self.G), lambda g: g in self.apart)]
        return [
            ("extra", self.apart.index(g), 1 + len(more)) if g in self.apart else ("gates", g, 1 + len(more))
            for g, *more in groups
        ]
