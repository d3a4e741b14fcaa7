"""Halide: the RNN, as the fourth paper has it. Pipelines are called for each step of time, all arrays are made once.

Variants: "paper", compiled ahead of time, "paper-jit", "adams" and "tiled".
Weights are kept as (inputs, outputs), so that outputs are adjacent, and R once more, transposed, for the backward
pass. New weights go to a second set of arrays: where tiles overlap, a number is computed twice.
"""

from collections.abc import Iterator
from typing import Any

import halide as hl
import numpy as np

from .halide_products import Call, Functions
from .network import Array, Network, Stepper, Weights


class Halide(Stepper):
    """Its calls have the addresses of the network's own mini-batch, the only one that it takes."""

    def __init__(self, net: Network, variant: str) -> None:
        super().__init__(net)
        self.sets = [  # matrices as (inputs, outputs), biases as (1, outputs)
            {name: np.array(v.T if v.ndim == 2 else v[None], order="C") for name, v in net.weights.items()}
            for _ in range(2)
        ]
        B, T, _, H, O = net.sizes
        self.h, self.d, self.d_y, self.ones, self.turned, self.turned_out = (
            np.zeros(shape, np.float32) for shape in ((T + 1, B, H), (T, B, H), (B, O), (T * B, 1), (H, H), (O, H))
        )
        self.ones += 1
        self.sums = {n: (np.zeros_like(w), np.zeros_like(w)) for n, w in self.sets[0].items()}  # in turns
        self.zero = {n: np.zeros_like(w) for n, w in self.sets[0].items()}
        both = [list(self.listed(*sets)) for sets in (self.sets, self.sets[::-1])]
        schedule, _, jit = variant.partition("-")
        functions = Functions(both[0], schedule, bool(jit))
        self.calls = [[functions.bound(call) for call in calls] for calls in both]

    def listed(self, w: dict[str, Array], new: dict[str, Array]) -> Iterator[Call]:
        """The calls of a step, in order."""
        (x, y), h, d, d_y, ones = self.data, self.h, self.d, self.d_y, self.ones
        T, rate, scale = len(d), self.rate, 2 / d_y.size

        def slope(a: Any, n: Any, m: Any, h: Any) -> Any:
            return a * (1 - h[n, m] * h[n, m])

        def plus(a: Any, n: Any, m: Any, d: Any) -> Any:
            return a + d[n, m]

        def descent(a: Any, n: Any, m: Any, w: Any, d: Any) -> Any:
            return w[n, m] - hl.f32(rate) * d[n, m]

        for t in range(T):
            terms = [(x[t], w["w_ih"]), (h[t], w["w_hh"])]
            yield Call(
                "forward", h[t + 1], terms, lambda a, n, m, b, c: hl.tanh(a + b[n, 0] + c[n, 0]), [w["b_ih"], w["b_hh"]]
            )
        yield Call(
            "head",
            d_y,
            [(h[T], w["w_out"])],
            lambda a, n, m, b, y: (a + b[n, 0] - y[n, m]) * hl.f32(scale),
            [w["b_out"], y],
        )
        for name, weight, to in (("turn", "w_hh", self.turned), ("turn_out", "w_out", self.turned_out)):
            yield Call(name, to, [], lambda a, n, m, w: w[m, n], [w[weight]])
        yield Call("last", d[T - 1], [(d_y, self.turned_out)], slope, [h[T]])
        for t in range(T - 2, -1, -1):
            yield Call("back", d[t], [(d[t + 1], self.turned)], slope, [h[t + 1]])
        for weight, rows, d_rows in (("w_ih", x, d), ("w_hh", h, d), ("w_out", h[T:], d_y[None])):
            before = self.zero[weight]
            for t, d_row in enumerate(d_rows):
                after = self.sums[weight][t % 2]
                yield Call(f"d_{weight}", after, [(rows[t].T, d_row)], plus, [before])
                before = after
            yield Call(f"of_{weight}", new[weight], [], descent, [w[weight], before])
        for name, bias, d_rows in (("of_b", "b_ih", d), ("of_b", "b_hh", d), ("of_b_out", "b_out", d_y)):
            d_rows = d_rows.reshape(-1, d_rows.shape[-1])
            terms = [(ones[: len(d_rows)].T, d_rows)]
            yield Call(name, new[bias], terms, lambda a, n, m, w: w[n, m] - hl.f32(rate) * a, [w[bias]])

    def step(self, x: Array, y: Array) -> float:
        for function, arrays in self.calls[0]:
            function(*arrays)
        self.calls.reverse()
        self.sets.reverse()
        return float(np.vdot(self.d_y, self.d_y)) * self.d_y.size / 4  # d_y is the error, times 2 and over its size

    def weights(self) -> Weights:
        return {name: np.array(v.T if name.startswith("w") else v[0]) for name, v in self.sets[0].items()}


def prepare(net: Network, variant: str) -> Halide:
    return Halide(net, variant)
