"""tanh, sigmoid, relu and masked for vectors, from + - * / alone: no call, no table, no branch.

float32: a rational function, exact to the error bounds in docs/kernels.md. float64: exp from its series on +-ln(2)/2.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from .target import I64
from .vectors import Vector

# tanh(x) = x P(x^2) / Q(x^2) on +-7.9, highest power first
P32 = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
Q32 = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
LIMIT32 = 7.9

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # the first with 21 zero bits at its end
ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to a whole number, in the low bits


def horner(x: Vector, coefficients: Sequence[float]) -> Any:
    result: Any = coefficients[0]
    for c in coefficients[1:]:
        result = result * x + c
    return result


class Single:
    @staticmethod
    def tanh(x: Vector) -> Vector:
        x = x.clip(-LIMIT32, LIMIT32)
        s = x * x
        result: Vector = x * (horner(s, P32) / horner(s, Q32))  # in this order the smallest x does not vanish
        return result

    @staticmethod
    def sigmoid(x: Vector) -> Vector:
        return 0.5 * Single.tanh(0.5 * x) + 0.5

    @staticmethod
    def relu(x: Vector) -> Vector:
        return x.where("<=", 0.0, 0.0, x)

    @staticmethod
    def masked(d: Vector, x: Vector) -> Vector:
        return x.where("<=", 0.0, 0.0, d)


def exp(x: Vector) -> Vector:
    """For |x| <= 708: 2^n exp(r), |r| <= ln(2)/2, to the 13th term."""
    shifted = x * LOG2_E + ROUND
    n = shifted - ROUND
    r = x - n * LN2_HIGH - n * LN2_LOW
    coefficients, factorial = [1.0], 1.0
    for k in range(1, 14):
        factorial *= k
        coefficients.insert(0, 1.0 / factorial)
    result: Vector = horner(r, coefficients).map(lambda e, s: _times_power_of_two(x, e, s), shifted)
    return result


def _times_power_of_two(x: Vector, value: ir.Value, shifted: ir.Value) -> ir.Value:
    """The whole number in the low bits of `shifted` is added to the exponent."""
    build, target = x.emit.build, x.emit.target
    integers = ir.VectorType(I64, target.lanes)
    bits = ir.Constant(integers, [ir.Constant(I64, 52)] * target.lanes)
    exponent = build.shl(build.bitcast(shifted, integers), bits)
    return build.bitcast(build.add(build.bitcast(value, integers), exponent), target.vector)


class Double(Single):
    @staticmethod
    def tanh(x: Vector) -> Vector:
        s = x * x
        near = x + x * s * (horner(s, NEAR_P) / horner(s, NEAR_Q))  # |x| < 0.625
        far = 1.0 - 2.0 / (exp(2.0 * x.clip(-20.0, 20.0)) + 1.0)
        return s.where("<", 0.625 * 0.625, near, far)

    @staticmethod
    def sigmoid(x: Vector) -> Vector:
        return 1.0 / (1.0 + exp(-x.clip(-700.0, 700.0)))


# tanh(x) = x + x^3 P(x^2) / Q(x^2): Cody and Waite's form
NEAR_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
NEAR_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)

single, double = Single(), Double()
