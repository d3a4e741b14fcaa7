"""The rungs of `bench ladder`: who takes the training steps."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from ... import cells, engines, layers
from ...engines.python import BackThroughTime, Matrix, PythonEngine, zeros
from ...layout import Layout
from ..peers.contenders.network import Array, Network, Stepper, Weights
from ..peers.contenders.with_numpy import NumPy
from ..peers.contenders.with_torch import Torch

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Rung:
    """make: a network that begins with the problem's weights. The last three are columns of the first paper."""

    name: str
    make: Callable[[Network], Stepper]
    slow: bool = False  # timed once
    by_numpy: bool = False  # who multiplies
    device: str = "CPU"  # where mini-batches and samples are run; epochs are run on the CPU
    threads: str = "no"  # is it said which thread takes which sample?
    transfers: str = "-"  # are only those arrays copied that must be? Nothing is copied on a CPU


class Autograd(Torch):
    """A layer of torch's or plait's, a linear head, autograd, and one call that moves all weights.

    The head reads the last state: the last row of all outputs would need a gradient as long as the sequence.
    """

    def __init__(self, net: Network, engine: str | None = None) -> None:
        super().__init__(net)
        if engine:
            layers.accelerate(self.layer, engine)

    def gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        _, (h, _) = self.layer(x)  # (1, B, H)
        return torch.autograd.grad(mse_loss(self.head(h[0]), y), self.parameters)

    def step(self, x: Tensor, y: Tensor) -> Any:
        gradients = self.gradient(x, y)
        with torch.no_grad():
            torch._foreach_sub_(self.parameters, gradients, alpha=self.rate)


class ByHand(Autograd):
    """An engine with no autograd: the head's derivative is written down, as the NumPy expert's is."""

    def __init__(self, net: Network, engine: engines.Engine | None = None) -> None:
        super().__init__(net)
        self.engine, self.cell = engine or engines.get("fused"), cells.get("lstm")
        w, r, b_x, b_h, self.V, self.b = (p.detach() for p in self.parameters)
        self.layer_weights = engines.Weights(w, r, b_x, b_h, None)
        B, T, *_ = net.sizes
        self.layout = Layout(T, B)
        self.needs = engines.Needs(False, [False, False], [[True] * 4])

    @torch.no_grad()
    def gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows, p = x.view(-1, 1), [self.engine.prepare(self.cell, self.layer_weights, lasting=False)]
        _, (h, _), kept = self.engine.forward(p, rows, None, self.layout)
        d_y = torch.addmm(self.b, h[0], self.V.t()).sub_(y).mul_(2 / len(y))  # (B, 1)
        d_h = torch.mm(d_y, self.V)[None]
        back = self.engine.backward(p, rows, kept, None, [d_h, None], self.layout, needs=self.needs, spend=True)
        of_layer = (d for d in back.weights[0] if d is not None)
        return *of_layer, torch.mm(d_y.t(), h[0]), d_y.sum(0)


class QuadraticEngine(PythonEngine):
    name, about = "python, O(T^2)", "scalar loops, with textbook O(T^2) backpropagation through time"

    def carry_back(self, way: BackThroughTime, steps: Sequence[int], d_y: list[Matrix], d_end: list[Matrix]) -> None:
        """The loss of each step is carried back to the beginning by itself; then that of the last states."""
        layout, start = way.layout, [(len(d), len(d[0]) if d else 0) for d in d_end]
        for position, t in enumerate(steps):
            first, end = layout.starts[t], layout.starts[t] + layout.sizes[t]
            alone = [[row if first <= i < end else [0.0] * len(row) for i, row in enumerate(matrix)] for matrix in d_y]
            way.back(steps[position:], alone, [zeros(*shape) for shape in start])
        way.back(steps, [[[0.0] * len(row) for row in matrix] for matrix in d_y], d_end)


class Descent(Stepper):
    """Weights as NumPy arrays, by name, which a step moves down the gradient."""

    def __init__(self, net: Network) -> None:
        super().__init__(net)
        self.own = {name: w.copy() for name, w in net.weights.items()}

    @abstractmethod
    def gradients(self, x: Array, y: Array) -> tuple[Arrays, float]:
        """-> those of the weights, and the loss, if it is known"""

    def step(self, x: Array, y: Array) -> float:
        gradients, loss = self.gradients(x, y)
        for name, d in gradients.items():
            self.own[name] -= self.rate * d
        return loss

    def weights(self) -> Weights:
        return {name: w.copy() for name, w in self.own.items()}


class OneSample(Descent):
    """The first paper's NumPy version: sample after sample and gate by gate, as the equations stand.

    joined: all gates in one product, as most would write it today.
    """

    def __init__(self, net: Network, joined: bool = False) -> None:
        super().__init__(net)
        H, self.joined = net.sizes[3], joined
        self.blocks = [slice(None)] if joined else [slice(k * H, (k + 1) * H) for k in range(4)]

    def gradients(self, x: Array, y: Array) -> tuple[Arrays, float]:
        sums = {name: np.zeros_like(w) for name, w in self.own.items()}
        for sample, target in zip(x.transpose(1, 0, 2), y, strict=True):
            self.add_gradients(sample, target, sums)
        sums["b_hh"] = sums["b_ih"]
        return {name: d / len(y) for name, d in sums.items()}, math.nan

    def add_gradients(self, x: Array, y: Array, sums: Arrays) -> None:
        U, W, V = (self.own[name] for name in ("w_ih", "w_hh", "w_out"))
        bias = self.own["b_ih"] + self.own["b_hh"]
        h = c = np.zeros(V.shape[1], np.float32)
        kept = []
        for x_t in x:  # (1,)
            z = [U[k] @ x_t + W[k] @ h + bias[k] for k in self.blocks]
            z_i, z_f, z_g, z_o = np.split(z[0], 4) if self.joined else z
            i, f, g, o = sigmoid(z_i), sigmoid(z_f), np.tanh(z_g), sigmoid(z_o)
            kept.append((x_t, h, c, i, f, g, o))
            c = f * c + i * g
            h = o * np.tanh(c)
        d_y = 2 * (V @ h + self.own["b_out"] - y)  # (1,)
        sums["w_out"] += np.outer(d_y, h)
        sums["b_out"] += d_y
        d_h, d_c = V.T @ d_y, np.zeros_like(c)
        for x_t, h, before, i, f, g, o in reversed(kept):
            tanh_c = np.tanh(c)
            d_c = d_c + d_h * o * (1 - tanh_c**2)
            d_i, d_f = d_c * g * i * (1 - i), d_c * before * f * (1 - f)
            d_z = [d_i, d_f, d_c * i * (1 - g**2), d_h * tanh_c * o * (1 - o)]
            d_h = np.zeros_like(h)
            for k, d in zip(self.blocks, [np.concatenate(d_z)] if self.joined else d_z, strict=True):
                sums["w_ih"][k] += np.outer(d, x_t)
                sums["w_hh"][k] += np.outer(d, h)
                sums["b_ih"][k] += d
                d_h += W[k].T @ d
            d_c, c = d_c * f, before


def sigmoid(z: Array) -> Array:
    one = np.float32(1)
    return one / (one + np.exp(-z))


EXPERT = Rung("NumPy expert", NumPy, by_numpy=True)
FUSED = Rung("fused", partial(Autograd, engine="fused"), threads="yes")
BY_HAND = Rung("fused, by hand", ByHand, threads="yes")
TORCH = Rung("torch", Autograd, threads="library")
SEQUENTIAL = Rung("python", partial(Autograd, engine="python"), slow=True)  # the first paper compares with this,
NUMPY = Rung("NumPy, one sample", OneSample, by_numpy=True)  # and with this
RUNGS = (
    Rung("python, O(T^2)", partial(ByHand, engine=QuadraticEngine()), slow=True),
    SEQUENTIAL,
    NUMPY,
    Rung("NumPy, gates joined", partial(OneSample, joined=True), by_numpy=True),
    Rung("numpy engine", partial(Autograd, engine="numpy"), by_numpy=True),
    EXPERT,
    FUSED,
    BY_HAND,
    TORCH,
)
