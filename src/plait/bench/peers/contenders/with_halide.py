"""Halide: the RNN, as the fourth paper has it. Pipelines are called for each step of time, all arrays are made once.

Variants: "paper" (its schedule, compiled ahead of time), "paper-jit", "adams" (the autoscheduler), "tiled" (registers).
Weights are kept as (inputs, outputs), so that outputs are adjacent, and R once more, transposed, for the backward
pass. New weights go to a second set of arrays: where tiles overlap, a number is computed twice.
"""

from collections.abc import Callable
from typing import Any

import halide as hl
import numpy as np

from .halide_products import Compiled, Product, matrix
from .network import Array, Contender, Network, Weights

Calls = list[tuple[Callable[..., Any], tuple[Any, ...]]]


def products(net: Network) -> list[Product]:
    """forward, head, turn and turn_out (transposes), last and back (backward pass); for each weight d_: its gradient
    and that of a step, and of_: the descent."""
    B, T, I, H, O = net.sizes
    rate, scale = net.rate, 2 / (B * O)
    made = []

    def add(name: str, rows: int, columns: int, terms: Any, finish: Any, *more: Any) -> None:
        made.append(Product(name, rows, columns, terms, finish, *more))

    b, c = matrix(1, H), matrix(1, H)
    terms = [(matrix(B, I), matrix(I, H), False), (matrix(B, H), matrix(H, H), False)]
    add("forward", B, H, terms, lambda a, n, m: hl.tanh(a + b[n, 0] + c[n, 0]), b, c)
    b_out, y = matrix(1, O), matrix(B, O)
    head = [(matrix(B, H), matrix(H, O), False)]
    add("head", B, O, head, lambda a, n, m: (a + b_out[n, 0] - y[n, m]) * hl.f32(scale), b_out, y)
    for name, K in (("turn", H), ("turn_out", O)):
        w = matrix(H, K)
        add(name, K, H, [], lambda a, n, m, w=w: w[m, n], w)
    for name, K in (("back", H), ("last", O)):
        h = matrix(B, H)
        terms = [(matrix(B, K), matrix(K, H), False)]
        add(name, B, H, terms, lambda a, n, m, h=h: a * (1 - h[n, m] * h[n, m]), h)
    for name, K, N in (("d_w", I, H), ("d_r", H, H), ("d_out", H, O)):
        d, w, total = matrix(K, N), matrix(K, N), matrix(K, N)
        add(name, K, N, [(matrix(B, K), matrix(B, N), True)], lambda a, n, m, d=d: a + d[n, m], d)
        add(f"of_{name}", K, N, [], lambda a, n, m, w=w, d=total: w[n, m] - hl.f32(rate) * d[n, m], w, total)
    for name, rows, N in (("of_b", T * B, H), ("of_b_out", B, O)):
        w, ones = matrix(1, N), matrix(rows, 1)
        terms = [(ones, matrix(rows, N), True)]
        add(name, 1, N, terms, lambda a, n, m, w=w: w[n, m] - hl.f32(rate) * a, w)
    return made


def stored(net: Network) -> dict[str, Array]:
    """Matrices as (inputs, outputs), biases as (1, outputs)."""
    return {name: np.array(v.T if v.ndim == 2 else v[None], order="C") for name, v in net.weights.items()}


class Halide(Contender):
    def __init__(self, net: Network, compiled: Compiled) -> None:
        B, T, _, H, O = net.sizes
        self.net, self.compiled, self.now = net, compiled, 0
        self.sets = [stored(net), stored(net)]
        self.h, self.d = np.zeros((T + 1, B, H), np.float32), np.zeros((T, B, H), np.float32)
        self.d_y, self.ones = np.zeros((B, O), np.float32), np.ones((T * B, 1), np.float32)
        self.turned, self.turned_out = np.zeros((H, H), np.float32), np.zeros((O, H), np.float32)
        self.gradients = {n: [np.zeros_like(w) for _ in range(3)] for n, w in self.sets[0].items()}  # 0, and two sums
        self.calls = [self.step(self.sets[k], self.sets[1 - k]) for k in (0, 1)]

    def step(self, w: dict[str, Array], new: dict[str, Array]) -> Calls:
        """Each function with its arguments, in order."""
        B, T, *_ = self.net.sizes
        x, y, h, d, ones = self.net.x, self.net.y, self.h, self.d, self.ones
        d_rows = d.reshape(T * B, -1)
        calls: list[tuple[Any, ...]] = []
        for t in range(T):
            calls.append(("forward", x[t], w["w_ih"], h[t], w["w_hh"], w["b_ih"], w["b_hh"], h[t + 1]))
        calls.append(("head", h[T], w["w_out"], w["b_out"], y, self.d_y))
        calls += [("turn", w["w_hh"], self.turned), ("turn_out", w["w_out"], self.turned_out)]
        calls.append(("last", self.d_y, self.turned_out, h[T], d[T - 1]))
        for t in range(T - 2, -1, -1):
            calls.append(("back", d[t + 1], self.turned, h[t + 1], d[t]))
        for name, weight, rows in (("d_w", "w_ih", x), ("d_r", "w_hh", h)):
            before, *sums = self.gradients[weight]
            for t in range(T):
                after = sums[t % 2]
                calls.append((name, rows[t], d[t], before, after))
                before = after
            calls.append((f"of_{name}", w[weight], before, new[weight]))
        zero, d_out, _ = self.gradients["w_out"]
        calls += [("d_out", h[T], self.d_y, zero, d_out), ("of_d_out", w["w_out"], d_out, new["w_out"])]
        calls += [("of_b", ones, d_rows, w[b], new[b]) for b in ("b_ih", "b_hh")]
        calls.append(("of_b_out", ones[:B], self.d_y, w["b_out"], new["b_out"]))
        functions, passed = self.compiled.functions, self.compiled.passed
        return [(functions[name], tuple(map(passed, arrays))) for name, *arrays in calls]

    def run(self, steps: int) -> float:
        for _ in range(steps):
            for function, arrays in self.calls[self.now]:
                function(*arrays)
            self.now = 1 - self.now
        size = self.d_y.size
        return float(np.vdot(self.d_y, self.d_y)) * size / 4  # d_y is the error, times 2 and over its size

    def weights(self) -> Weights:
        return {name: np.array(v.T if name.startswith("w") else v[0]) for name, v in self.sets[self.now].items()}


def prepare(net: Network, variant: str) -> Halide:
    schedule, _, jit = variant.partition("-")
    return Halide(net, Compiled(products(net), schedule, bool(jit)))
