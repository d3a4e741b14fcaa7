"""The rungs of `bench ladder`: who takes the training steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from ... import cells, engines, layers
from ...layout import Layout
from ..peers.contenders.network import WEIGHTS, Array, Network, Stepper, Weights
from ..peers.contenders.with_numpy import NumPy
from ..peers.contenders.with_torch import Torch
from .quadratic import QuadraticEngine


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

    `autograd.grad` hands the gradients over; `backward` would store them, and something would have to clear them again.
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


class ByHand(Torch):
    """An engine with no autograd: the head's derivative is written down, as the NumPy expert's is."""

    def __init__(self, net: Network, engine: engines.Engine | None = None) -> None:
        super().__init__(net)
        self.engine, self.cell = engine or engines.get("fused"), cells.get("lstm")
        self.tensors = [p.detach() for p in self.parameters]
        w, r, b_x, b_h, self.V, self.b = self.tensors
        self.layer_weights = engines.Weights(w, r, b_x, b_h, None)
        B, T, *_ = net.sizes
        self.layout = Layout(T, B)
        self.needs = engines.Needs(False, [False, False], [[True] * 4])

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor) -> Any:
        rows, p = x.view(-1, 1), [self.engine.prepare(self.cell, self.layer_weights, lasting=False)]
        _, (h, _), kept = self.engine.forward(p, rows, None, self.layout)
        d_y = torch.addmm(self.b, h[0], self.V.t()).sub_(y).mul_(2 / len(y))  # (B, 1)
        d_h = torch.mm(d_y, self.V)[None]
        back = self.engine.backward(p, rows, kept, None, [d_h, None], self.layout, needs=self.needs, spend=True)
        gradients = [d for d in back.weights[0] if d is not None]
        gradients += [torch.mm(d_y.t(), h[0]), d_y.sum(0)]
        torch._foreach_sub_(self.tensors, gradients, alpha=self.rate)


class OneSample(Stepper):
    """The first paper's NumPy version: sample after sample and gate by gate, as the equations stand.

    The gradients of a mini-batch are added up. U, W and B are the input's weights, the recurrent ones and the bias;
    V and b_out are the head's.
    """

    def __init__(self, net: Network) -> None:
        super().__init__(net)
        self.U, self.W, self.B_x, self.B_h, self.V, self.b_out = (w.copy() for w in net.weights.values())
        self.H = self.W.shape[1]
        self.gates = [slice(k * self.H, (k + 1) * self.H) for k in range(4)]

    def step(self, x: Array, y: Array) -> None:
        samples = x.transpose(1, 0, 2)
        total: list[Any] = [np.zeros_like(value) for value in (self.U, self.W, self.B_x, self.V, self.b_out)]
        for sample, target in zip(samples, y, strict=True):
            self.add_gradients(sample, target, *total)
        d_U, d_W, d_B, d_V, d_b = (np.float32(self.rate / len(samples)) * gradient for gradient in total)
        self.U -= d_U
        self.W -= d_W
        self.B_x -= d_B
        self.B_h -= d_B
        self.V -= d_V
        self.b_out -= d_b

    def add_gradients(self, x: Array, y: Array, d_U: Array, d_W: Array, d_B: Array, d_V: Array, d_b: Array) -> None:
        bias = self.B_x + self.B_h
        h = c = np.zeros(self.H, np.float32)
        kept = []
        for x_t in x:  # (1,)
            z_i, z_f, z_g, z_o = self.products(x_t, h, bias)
            i, f, g, o = sigmoid(z_i), sigmoid(z_f), np.tanh(z_g), sigmoid(z_o)
            kept.append((x_t, h, c, i, f, g, o))
            c = f * c + i * g
            h = o * np.tanh(c)
        d_y = 2 * (self.V @ h + self.b_out - y)  # (1,)
        d_V += np.outer(d_y, h)
        d_b += d_y
        d_h, d_c = self.V.T @ d_y, np.zeros_like(c)
        for x_t, h, before, i, f, g, o in reversed(kept):
            tanh_c = np.tanh(c)
            d_c = d_c + d_h * o * (1 - tanh_c**2)
            d_z = [d_c * g * i * (1 - i), d_c * before * f * (1 - f), d_c * i * (1 - g**2), d_h * tanh_c * o * (1 - o)]
            d_h = self.back(d_z, x_t, h, d_U, d_W, d_B)
            d_c, c = d_c * f, before

    def products(self, x: Array, h: Array, bias: Array) -> Sequence[Array]:  # a gate each, (H,)
        return [self.U[k] @ x + self.W[k] @ h + bias[k] for k in self.gates]

    def back(self, d_z: Sequence[Array], x: Array, h: Array, d_U: Array, d_W: Array, d_B: Array) -> Array:
        for k, d in zip(self.gates, d_z, strict=True):
            d_U[k] += np.outer(d, x)
            d_W[k] += np.outer(d, h)
            d_B[k] += d
        d_i, d_f, d_g, d_o = (self.W[k].T @ d for k, d in zip(self.gates, d_z, strict=True))
        d_h: Array = d_i + d_f + d_g + d_o
        return d_h

    def weights(self) -> Weights:
        return dict(zip(WEIGHTS, (self.U, self.W, self.B_x, self.B_h, self.V, self.b_out), strict=True))


class GatesAtOnce(OneSample):
    """The same with all gates in one product, as most would write it today."""

    def products(self, x: Array, h: Array, bias: Array) -> Sequence[Array]:
        return np.split(self.U @ x + self.W @ h + bias, 4)

    def back(self, d_z: Sequence[Array], x: Array, h: Array, d_U: Array, d_W: Array, d_B: Array) -> Array:
        d = np.concatenate(d_z)
        d_U += np.outer(d, x)
        d_W += np.outer(d, h)
        d_B += d
        d_h: Array = self.W.T @ d
        return d_h


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
    Rung("NumPy, gates joined", GatesAtOnce, by_numpy=True),
    Rung("numpy engine", partial(Autograd, engine="numpy"), by_numpy=True),
    EXPERT,
    FUSED,
    BY_HAND,
    TORCH,
)
