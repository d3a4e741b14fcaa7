"""The functions of a step for vectors, made of + - * / and operations on bits: no call, no table, no branch.

`plait bench functions` measures their errors (docs/kernels.md). NaN stays NaN, and the limits are torch's:
exp(-inf) = 0, log(0) = -inf, log(-1) = sqrt(-1) = NaN. Denormal numbers (below 1.2e-38 and 2.2e-308) count as 0.
"""

from collections.abc import Callable, Sequence
from math import factorial, inf, nan
from typing import Any

from llvmlite import ir

from .target import I32, I64
from .vectors import Vector, where

# tanh(x) = x P(x^2) / Q(x^2) on +-7.93, highest power first
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
LIMIT32 = 7.932197093963623  # the first number at which that is 1 (if a * b + c is one instruction): a gate can be shut

LOG2_E = 1.4426950408889634


def horner(x: Vector, coefficients: Sequence[float]) -> Any:
    result: Any = coefficients[0]
    for c in coefficients[1:]:
        result = result * x + c
    return result


class Bits:
    """The bits of vectors, as integers."""

    def __init__(self, like: Vector) -> None:
        self.build, self.target = like.emit.build, like.emit.target
        self.integer = I64 if self.target.double else I32
        self.kind = ir.VectorType(self.integer, self.target.lanes)

    def __call__(self, value: int) -> ir.Value:
        return ir.Constant(self.kind, [ir.Constant(self.integer, value)] * self.target.lanes)

    def map(self, function: Callable[..., ir.Value], x: Vector, *others: Vector) -> Vector:
        """Applies `function` to the bits of the numbers; the result is the bits of new numbers."""
        build = self.build

        def emit(*values: ir.Value) -> ir.Value:
            return build.bitcast(function(*(build.bitcast(v, self.kind) for v in values)), self.target.vector)

        return x.map(emit, *others)


class Single:
    """float32"""

    digits, bias, root_half = 23, 127, 0x3F3504F3  # bits of a mantissa, of exponent 0, of sqrt(1/2)
    tiny = 2.0**-126  # the smallest number with all its digits
    # exp(x) = 2^n exp(r): the first part of ln(2) has few bits, so that n times it is exact. Polynomial of Cephes.
    ln2_high, ln2_low = 0.693359375, -2.12194440e-4
    exp_low, exp_high = -87.33654475, 88.7228317  # beyond: 0, infinity
    exp_terms: Sequence[float] = (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
        1.0,
        1.0,
    )
    # log(1 + f) = f - f^2 / 2 + s (f^2 / 2 + R(s^2)), s = f / (2 + f): the form and the numbers of fdlibm
    log_terms: Sequence[float] = (0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693, 0.0)
    log_ln2 = 6.9313812256e-01, 9.0580006145e-06

    where = staticmethod(where)

    def full(self, x: Vector, number: float) -> float:
        return number

    def tanh(self, x: Vector) -> Vector:
        x = x.clip(-LIMIT32, LIMIT32)
        s = x * x
        result: Vector = x * (horner(s, P32) / horner(s, Q32))  # in this order the smallest x does not become 0
        return result

    def sigmoid(self, x: Vector) -> Vector:
        return 0.5 * self.tanh(0.5 * x) + 0.5

    def relu(self, x: Vector) -> Vector:
        return where(x <= 0.0, 0.0, x)

    def abs(self, x: Vector) -> Vector:
        return x.instruction("fabs")

    def sqrt(self, x: Vector) -> Vector:
        return x.instruction("sqrt")

    def maximum(self, a: Any, b: Any) -> Vector:
        a, b = (a, b) if isinstance(a, Vector) else (b, a)
        return where(a.equals(a), where(a > b, a, b), a)  # a NaN on either side stays

    def minimum(self, a: Any, b: Any) -> Vector:
        a, b = (a, b) if isinstance(a, Vector) else (b, a)
        return where(a.equals(a), where(a < b, a, b), a)

    def exp(self, x: Vector) -> Vector:
        inside = where(x <= self.exp_high, self.exp_within(x), x + inf)  # x + inf: NaN stays
        return where(x < self.exp_low, 0.0, inside)

    def exp_within(self, x: Vector) -> Vector:
        """2^n exp(r), |r| <= ln(2)/2, if the result is a number with all its digits."""
        rounding = 1.5 * 2.0**self.digits  # after adding it, the low bits are the nearest whole number
        shifted = x * LOG2_E + rounding
        n = shifted - rounding
        r = x - n * self.ln2_high - n * self.ln2_low
        e: Vector = horner(r, self.exp_terms)
        bits = Bits(x)
        scaled = bits.map(lambda a, b: bits.build.add(a, bits.build.shl(b, bits(self.digits))), e, shifted)
        return where(r.equals(r), scaled, r)  # a NaN would lose its bits there

    def log(self, x: Vector) -> Vector:
        """x = 2^k m, m from sqrt(1/2) to sqrt(2)"""
        digits, one, bits = self.digits, self.bias << self.digits, Bits(x)
        rounding = 1.5 * 2.0**digits  # adding n to its bits adds n to the number
        its_bits = (self.bias + digits << digits) + (1 << digits - 1)
        build = bits.build

        def exponent(x: ir.Value) -> ir.Value:
            k = build.lshr(build.add(x, bits(one - self.root_half)), bits(digits))
            return build.add(k, bits(its_bits - self.bias))

        def mantissa(x: ir.Value) -> ir.Value:
            m = build.and_(build.add(x, bits(one - self.root_half)), bits((1 << digits) - 1))
            return build.add(m, bits(self.root_half))

        result = self.log_within(bits.map(mantissa, x) - 1.0, bits.map(exponent, x) - rounding)
        result = where(x < inf, result, x)
        return where(x >= self.tiny, result, where(x < 0.0, nan, x - inf))  # x - inf: NaN stays

    def log_within(self, f: Vector, k: Vector) -> Vector:
        """log(2^k (1 + f))"""
        high, low = self.log_ln2
        s, half = f / (2.0 + f), 0.5 * f * f
        result: Vector = s * (half + horner(s * s, self.log_terms)) + k * low - half + f + k * high
        return result

    def softplus(self, x: Vector) -> Vector:
        """max(x, 0) + log(1 + u), u = exp(-|x|) from 0 to 1"""
        u = self.exp(-self.abs(x))
        large = u > 0.41421356  # then log(1 + u) = log(2) + log(1 + (u - 1) / 2)
        return where(x > 0.0, x, 0.0) + self.log_within(where(large, 0.5 * u - 0.5, u), where(large, 1.0, 0.0))


class Double(Single):
    """float64"""

    digits, bias, root_half = 52, 1023, 0x3FE6A09E00000000
    tiny = 2.0**-1022
    ln2_high, ln2_low = log_ln2 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
    exp_low, exp_high = -708.396418532264, 709.782712893384
    exp_terms = tuple(1.0 / factorial(k) for k in range(13, -1, -1))
    log_terms = (
        1.479819860511658591e-01,
        1.531383769920937332e-01,
        1.818357216161805012e-01,
        2.222219843214978396e-01,
        2.857142874366239149e-01,
        3.999999999940941908e-01,
        6.666666666666735130e-01,
        0.0,
    )

    def tanh(self, x: Vector) -> Vector:
        s = x * x
        near = x + x * s * (horner(s, NEAR_P) / horner(s, NEAR_Q))  # |x| < 0.625
        far = 1.0 - 2.0 / (self.exp_within(2.0 * x.clip(-20.0, 20.0)) + 1.0)
        return where(s < 0.625 * 0.625, near, far)

    def sigmoid(self, x: Vector) -> Vector:
        return 1.0 / (1.0 + self.exp_within(-x.clip(-700.0, 700.0)))


# tanh(x) = x + x^3 P(x^2) / Q(x^2): Cody and Waite's form
NEAR_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
NEAR_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)

single, double = Single(), Double()
