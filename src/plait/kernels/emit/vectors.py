"""Numbers that emit LLVM instructions: the text of a cell, run on them, becomes machine code.

A `Vector` is several registers that take the same operations. Their instructions are emitted side by side, so that the
processor can go on with one register while it waits for another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core.cgutils import get_or_insert_function

from .target import I32, I64, VOID, Target, i64

FLAGS = ("contract",)  # a * b + c may become one instruction; nothing else may be rearranged


def intrinsic(build: ir.IRBuilder, name: str, result: ir.Type, *args: ir.Value) -> ir.Value:
    kind = ir.FunctionType(result, [a.type for a in args])
    return build.call(get_or_insert_function(build.module, kind, name), args)


def prefetch(build: ir.IRBuilder, address: ir.Value, *, to_write: bool, near: int) -> None:
    """near: 3 for the first cache, 2 for the second."""
    pointer = build.inttoptr(address, ir.IntType(8).as_pointer())
    intrinsic(build, "llvm.prefetch.p0", VOID, pointer, *(ir.Constant(I32, k) for k in (int(to_write), near, 1)))


def new_function(module: ir.Module, target: Target, name: str, arguments: int) -> tuple["Emitter", Sequence[ir.Value]]:
    """A function of that many integers: what emits its instructions, and its arguments."""
    function = ir.Function(module, ir.FunctionType(VOID, [I64] * arguments), name)
    return Emitter(ir.IRBuilder(function.append_basic_block()), target), function.args


@dataclass(frozen=True)
class Emitter:
    """Emits into one basic block for one target."""

    build: ir.IRBuilder
    target: Target

    def splat(self, value: float | ir.Value, lanes: int = 0) -> ir.Value:
        number, lanes = self.target.number, lanes or self.target.lanes
        if not isinstance(value, ir.Value):
            return ir.Constant(self.target.vector, [ir.Constant(number, float(value))] * lanes)
        undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        first = self.build.insert_element(undefined, value, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, 0)] * lanes)
        return self.build.shuffle_vector(first, undefined, zeros)

    def at(self, address: ir.Value, kind: ir.Type) -> ir.Value:
        return self.build.inttoptr(address, kind.as_pointer())

    def offset(self, address: ir.Value, numbers: int) -> ir.Value:
        return self.build.add(address, i64(numbers * self.target.size))

    def mask(self, count: ir.Value, lanes: int = 0) -> ir.Value:
        """The first `count` lanes. lanes: of the vector, if they are not as many as usual"""
        lanes = lanes or self.target.lanes
        iota = ir.Constant(ir.VectorType(I64, lanes), [i64(k) for k in range(lanes)])
        return self.build.icmp_signed("<", iota, self.splat(count, lanes))

    def load(self, address: ir.Value, mask: ir.Value | None = None) -> ir.Value:
        pointer, vector = self.at(address, self.target.vector), self.target.vector
        if mask is None:
            value = self.build.load(pointer)
            value.align = self.target.size
            return value
        align = ir.Constant(I32, self.target.size)
        name = f"llvm.masked.load.{self.target.suffix}.p0"
        return intrinsic(self.build, name, vector, pointer, align, mask, ir.Constant(vector, None))

    def store(self, address: ir.Value, value: ir.Value) -> None:
        """A vector of numbers, or of 16-bit ones."""
        self.build.store(value, self.at(address, value.type)).align = self.size_of(value)

    def size_of(self, value: ir.Value) -> int:
        """Bytes of a number of a vector."""
        element = value.type.element
        return element.width // 8 if isinstance(element, ir.IntType) else self.target.size

    def store_first(self, places: Sequence[tuple[ir.Value, ir.Value]], count: ir.Value) -> None:
        """Stores the first `count` lanes, not all, of each (address, vector). In halves: masked stores are slow."""
        build, lanes = self.build, self.target.lanes
        while lanes > 1:
            lanes //= 2
            there = build.icmp_signed("!=", build.and_(count, i64(lanes)), i64(0))
            with build.if_then(there):
                for address, value in places:
                    self.store(address, self.lanes(value, 0, lanes))
            places = [
                (
                    build.select(there, build.add(address, i64(lanes * self.size_of(value))), address),
                    build.select(there, self.lanes(value, lanes, 2 * lanes), self.lanes(value, 0, lanes)),
                )
                for address, value in places
            ]

    def lanes(self, value: ir.Value, first: int, last: int) -> ir.Value:
        order = ir.Constant(ir.VectorType(I32, last - first), [ir.Constant(I32, k) for k in range(first, last)])
        return self.build.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), order)

    def read(self, addresses: Sequence[ir.Value], mask: ir.Value | None = None) -> "Vector":
        return Vector(self, tuple(self.load(a, mask) for a in addresses))


NOTHING = float("0")  # to add this object emits no instruction


def arithmetic(name: str, *, swap: bool = False) -> Callable[["Vector", Any], "Vector"]:
    """The operator that is this instruction."""

    def run(self: "Vector", other: Any) -> "Vector":
        def emit(a: ir.Value, b: ir.Value) -> ir.Value:
            return getattr(self.emit.build, name)(*((b, a) if swap else (a, b)), flags=FLAGS)

        return self if name == "fadd" and other is NOTHING else self.map(emit, other)

    return run


def comparison(sign: str) -> Callable[["Vector", Any], "Vector"]:
    """A condition for `where`; NaN compares as false."""
    return lambda self, other: self.map(lambda a, b: self.emit.build.fcmp_ordered(sign, a, b), other)


@dataclass(frozen=True, eq=False)
class Vector:
    emit: Emitter
    registers: tuple[ir.Value, ...]

    def map(self, function: Callable[..., ir.Value], *others: "Vector | float") -> "Vector":
        count = len(self.registers)
        columns = [o.registers if isinstance(o, Vector) else [self.emit.splat(o)] * count for o in others]
        return Vector(self.emit, tuple(function(*values) for values in zip(self.registers, *columns, strict=True)))

    __add__ = __radd__ = arithmetic("fadd")
    __sub__, __rsub__ = arithmetic("fsub"), arithmetic("fsub", swap=True)
    __mul__ = __rmul__ = arithmetic("fmul")
    __truediv__, __rtruediv__ = arithmetic("fdiv"), arithmetic("fdiv", swap=True)
    __lt__, __le__ = comparison("<"), comparison("<=")
    __gt__, __ge__ = comparison(">"), comparison(">=")
    equals = comparison("==")

    def __neg__(self) -> "Vector":
        return self.map(self.emit.build.fneg)

    def instruction(self, name: str) -> "Vector":
        """One of LLVM's functions that are a single instruction: sqrt, fabs."""
        build, target = self.emit.build, self.emit.target
        return self.map(lambda a: intrinsic(build, f"llvm.{name}.{target.suffix}", target.vector, a))

    def clip(self, low: float, high: float) -> "Vector":
        """NaN stays NaN."""
        above = where(self < low, low, self)
        return where(above > high, high, above)


def where(condition: Vector, then: Vector | float, otherwise: Vector | float) -> Vector:
    """`then` where the comparison is true, else `otherwise`; NaN compares as false."""
    return condition.map(condition.emit.build.select, then, otherwise)


def transposed(emit: Emitter, rows: list[ir.Value]) -> list[ir.Value]:
    """The transpose of a square of vectors: exchanges single numbers, then pairs, then fours, and so on."""
    lanes, half = len(rows), 1
    while half < lanes:
        low = [k if not k & half else lanes + k - half for k in range(lanes)]
        high = [k + half if not k & half else lanes + k for k in range(lanes)]
        orders = [ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, k) for k in some]) for some in (low, high)]
        for i in range(lanes):
            if not i & half:
                a, b = rows[i], rows[i + half]
                rows[i], rows[i + half] = (emit.build.shuffle_vector(a, b, order) for order in orders)
        half *= 2
    return rows
