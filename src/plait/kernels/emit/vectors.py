"""Numbers that emit LLVM instructions: the text of a cell, run on them, becomes machine code.

A `Vector` is several registers that take the same operations. Their instructions are emitted side by side, so that the
processor can go on with one register while it waits for another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core.cgutils import get_or_insert_function

from .target import I32, I64, Target

FLAGS = ("contract",)  # a * b + c may become one instruction; nothing else may be rearranged


@dataclass(frozen=True)
class Emitter:
    """Emits into one basic block for one target."""

    build: ir.IRBuilder
    target: Target

    def intrinsic(self, name: str, result: ir.Type, *args: ir.Value) -> ir.Value:
        kind = ir.FunctionType(result, [a.type for a in args])
        return self.build.call(get_or_insert_function(self.build.module, kind, name), args)

    def splat(self, value: float | ir.Value) -> ir.Value:
        number, lanes = self.target.number, self.target.lanes
        if not isinstance(value, ir.Value):
            return ir.Constant(self.target.vector, [ir.Constant(number, float(value))] * lanes)
        undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        first = self.build.insert_element(undefined, value, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, 0)] * lanes)
        return self.build.shuffle_vector(first, undefined, zeros)

    def at(self, address: ir.Value, kind: ir.Type) -> ir.Value:
        return self.build.inttoptr(address, kind.as_pointer())

    def offset(self, address: ir.Value, numbers: int) -> ir.Value:
        return self.build.add(address, ir.Constant(I64, numbers * self.target.size))

    def mask(self, count: ir.Value) -> ir.Value:
        """The first `count` lanes."""
        lanes = self.target.lanes
        iota = ir.Constant(ir.VectorType(I64, lanes), [ir.Constant(I64, k) for k in range(lanes)])
        return self.build.icmp_signed("<", iota, self.splat(count))

    def load(self, address: ir.Value, mask: ir.Value | None = None) -> ir.Value:
        pointer, vector = self.at(address, self.target.vector), self.target.vector
        if mask is None:
            value = self.build.load(pointer)
            value.align = self.target.size
            return value
        align = ir.Constant(I32, self.target.size)
        name = f"llvm.masked.load.{self.target.suffix}.p0"
        return self.intrinsic(name, vector, pointer, align, mask, ir.Constant(vector, None))

    def store(self, address: ir.Value, value: ir.Value) -> None:
        self.build.store(value, self.at(address, value.type)).align = self.target.size

    def store_first(self, places: Sequence[tuple[ir.Value, ir.Value]], count: ir.Value) -> None:
        """Stores the first `count` lanes, not all, of each (address, vector). In halves: masked stores are slow."""
        build, lanes = self.build, self.target.lanes
        while lanes > 1:
            lanes //= 2
            there = build.icmp_signed("!=", build.and_(count, ir.Constant(I64, lanes)), ir.Constant(I64, 0))
            with build.if_then(there):
                for address, value in places:
                    self.store(address, self.lanes(value, 0, lanes))
            places = [
                (
                    build.select(there, self.offset(address, lanes), address),
                    build.select(there, self.lanes(value, lanes, 2 * lanes), self.lanes(value, 0, lanes)),
                )
                for address, value in places
            ]

    def lanes(self, value: ir.Value, first: int, last: int) -> ir.Value:
        order = ir.Constant(ir.VectorType(I32, last - first), [ir.Constant(I32, k) for k in range(first, last)])
        return self.build.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), order)

    def prefetch(self, address: ir.Value, *, to_write: bool = True, near: int = 3) -> None:
        """near: 3 for the first cache, 2 for the second."""
        kind = ir.IntType(8).as_pointer()
        writes, level, data = (ir.Constant(I32, k) for k in (int(to_write), near, 1))
        pointer = self.build.inttoptr(address, kind)
        self.intrinsic("llvm.prefetch.p0", ir.VoidType(), pointer, writes, level, data)

    def read(self, addresses: Sequence[ir.Value], mask: ir.Value | None = None) -> "Vector":
        return Vector(self, tuple(self.load(a, mask) for a in addresses))


class Nothing(float):
    """A zero: to add it emits no instruction."""


NOTHING = Nothing()


@dataclass(frozen=True, eq=False)
class Vector:
    emit: Emitter
    parts: tuple[ir.Value, ...]

    def map(self, function: Callable[..., ir.Value], *others: "Vector | float") -> "Vector":
        columns = [o.parts if isinstance(o, Vector) else [self.emit.splat(o)] * len(self.parts) for o in others]
        return Vector(self.emit, tuple(function(*values) for values in zip(self.parts, *columns, strict=True)))

    def _op(self, name: str, other: Any, *, swap: bool = False) -> "Vector":
        def emit(a: ir.Value, b: ir.Value) -> ir.Value:
            return getattr(self.emit.build, name)(*((b, a) if swap else (a, b)), flags=FLAGS)

        return self.map(emit, other)

    def __add__(self, other: Any) -> "Vector":
        return self if other is NOTHING else self._op("fadd", other)

    def __sub__(self, other: Any) -> "Vector":
        return self._op("fsub", other)

    def __rsub__(self, other: Any) -> "Vector":
        return self._op("fsub", other, swap=True)

    def __mul__(self, other: Any) -> "Vector":
        return self._op("fmul", other)

    def __truediv__(self, other: Any) -> "Vector":
        return self._op("fdiv", other)

    def __rtruediv__(self, other: Any) -> "Vector":
        return self._op("fdiv", other, swap=True)

    def __neg__(self) -> "Vector":
        return self.map(self.emit.build.fneg)

    __radd__, __rmul__ = __add__, __mul__

    def compare(self, sign: str, other: Any) -> "Vector":
        """A condition for `where`; NaN compares as false."""
        return self.map(lambda a, b: self.emit.build.fcmp_ordered(sign, a, b), other)

    def __lt__(self, other: Any) -> "Vector":
        return self.compare("<", other)

    def __le__(self, other: Any) -> "Vector":
        return self.compare("<=", other)

    def __gt__(self, other: Any) -> "Vector":
        return self.compare(">", other)

    def __ge__(self, other: Any) -> "Vector":
        return self.compare(">=", other)

    def instruction(self, name: str) -> "Vector":
        """One of LLVM's functions that are a single instruction: sqrt, fabs."""
        target = self.emit.target
        return self.map(lambda a: self.emit.intrinsic(f"llvm.{name}.{target.suffix}", target.vector, a))

    def clip(self, low: float, high: float) -> "Vector":
        """NaN stays NaN."""
        above = where(self < low, low, self)
        return where(above > high, high, above)


def where(condition: Vector, then: Vector | float, otherwise: Vector | float) -> Vector:
    """`then` where the comparison is true, else `otherwise`; NaN compares as false."""
    return condition.map(condition.emit.build.select, then, otherwise)
