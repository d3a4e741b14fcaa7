"""The rungs of `bench ladder`: who takes the training steps. Each begins with the problem's weights."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from .. import cells, engines, layers
from ..layout import Layout
from .expert import Array, Expert
from .ladder_problem import Head, Problem, Weights, as_array


@dataclass(frozen=True)
class Place:
    """The first paper's columns."""

    epoch: str = "CPU"
    batch: str = "CPU"
    sample: str = "CPU"
    threads: str = "no"  # is it said which thread takes which sample?
    transfer: str = "-"  # are only those arrays copied that must be? Nothing is copied on a CPU


class Rung(ABC):
    name: str
    place = Place()
    slow = False  # timed once
    by_numpy = False  # who multiplies

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> None:  # (T, B, 1), (B, 1)
        """One mini-batch: forward, backward, and the weights move."""

    @abstractmethod
    def result(self) -> tuple[Weights, Head]:
        """The weights as they are now."""


def parts(problem: Problem, parameters: Sequence[Tensor]) -> tuple[Weights, Head]:
    """Copies of the layer's weights and of the head's."""
    *weights, v, b = map(as_array, parameters)
    return dict(zip(problem.weights, weights, strict=True)), (v, b)


class Autograd(Rung):
    """A layer of torch's or plait's, a linear head, autograd, and one call that moves all weights.

    `autograd.grad` hands the gradients over; `backward` would store them, and something would have to clear them again.
    The head reads the last state: the last row of all outputs would need a gradient as long as the sequence.
    """

    def __init__(self, problem: Problem, name: str, engine: str | None, place: Place, slow: bool = False) -> None:
        super().__init__(problem)
        self.name, self.place, self.slow, self.by_numpy = name, place, slow, engine == "numpy"
        self.layer, self.head = problem.net()
        if engine:
            layers.accelerate(self.layer, engine)
        self.parameters: list[Tensor] = [*self.layer.parameters(), *self.head.parameters()]

    def gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        _, (h, _) = self.layer(x)  # (1, B, H)
        return torch.autograd.grad(mse_loss(self.head(h[0]), y), self.parameters)

    def step(self, x: Tensor, y: Tensor) -> None:
        gradients = self.gradient(x, y)
        with torch.no_grad():
            torch._foreach_sub_(self.parameters, gradients, alpha=self.problem.rate)

    def result(self) -> tuple[Weights, Head]:
        return parts(self.problem, self.parameters)


class ByHand(Rung):
    """The fused engine with no autograd: the head's derivative is written down, as the NumPy expert's is."""

    name, place = "fused, by hand", Place(threads="yes")

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.engine, self.cell = engines.get("fused"), cells.get("lstm")
        layer, head = problem.net()
        self.parameters = [p.detach() for p in (*layer.parameters(), *head.parameters())]
        w, r, b_x, b_h, self.V, self.b = self.parameters
        self.weights = engines.Weights(w, r, b_x, b_h, None)
        self.layout = Layout(problem.T, problem.batch)
        self.needs = engines.Needs(False, [False, False], [[True] * 4])

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor) -> None:
        rows, p = x.view(-1, 1), [self.engine.prepare(self.cell, self.weights, lasting=False)]
        _, (h, _), kept = self.engine.forward(p, rows, None, self.layout)
        d_y = torch.addmm(self.b, h[0], self.V.t()).sub_(y).mul_(2 / len(y))  # (B, 1)
        d_h = torch.mm(d_y, self.V)[None]
        back = self.engine.backward(p, rows, kept, None, [d_h, None], self.layout, needs=self.needs, spend=True)
        gradients = [d for d in back.weights[0] if d is not None]
        gradients += [torch.mm(d_y.t(), h[0]), d_y.sum(0)]
        torch._foreach_sub_(self.parameters, gradients, alpha=self.problem.rate)

    def result(self) -> tuple[Weights, Head]:
        return parts(self.problem, self.parameters)


class NumpyExpert(Rung):
    name, by_numpy = "NumPy expert", True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.expert = Expert("lstm", problem.weights, problem.head, problem.batch, problem.T)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.expert.step(x.numpy(), y.numpy(), self.problem.rate)

    def result(self) -> tuple[Weights, Head]:
        return self.expert.weights, self.expert.head


class OneSample(Rung):
    """The first paper's NumPy version: sample after sample and gate by gate, as the equations stand.

    The gradients of a mini-batch are added up. U, W and B are the input's weights, the recurrent ones and the bias;
    V and b_out are the head's.
    """

    name, by_numpy = "NumPy, one sample", True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.U, self.W, self.B_x, self.B_h = (problem.weights[n].copy() for n in ("w_ih", "w_hh", "b_ih", "b_hh"))
        self.V, self.b_out = (value.copy() for value in problem.head)
        self.gates = [slice(k * problem.H, (k + 1) * problem.H) for k in range(4)]

    def step(self, x: Tensor, y: Tensor) -> None:
        samples, targets = x.numpy().transpose(1, 0, 2), y.numpy()
        total: list[Any] = [np.zeros_like(value) for value in (self.U, self.W, self.B_x, self.V, self.b_out)]
        for sample, target in zip(samples, targets, strict=True):
            self.add_gradients(sample, target, *total)
        d_U, d_W, d_B, d_V, d_b = (np.float32(self.problem.rate / len(samples)) * gradient for gradient in total)
        self.U -= d_U
        self.W -= d_W
        self.B_x -= d_B
        self.B_h -= d_B
        self.V -= d_V
        self.b_out -= d_b

    def add_gradients(self, x: Array, y: Array, d_U: Array, d_W: Array, d_B: Array, d_V: Array, d_b: Array) -> None:
        bias = self.B_x + self.B_h
        h = c = np.zeros(self.problem.H, np.float32)
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

    def result(self) -> tuple[Weights, Head]:
        return {"w_ih": self.U, "w_hh": self.W, "b_ih": self.B_x, "b_hh": self.B_h}, (self.V, self.b_out)


class GatesAtOnce(OneSample):
    """The same with all gates in one product, as most would write it today."""

    name = "NumPy, gates joined"

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


def quadratic(problem: Problem) -> Rung:
    return Autograd(problem, "python, O(T^2)", "python:quadratic", Place(), slow=True)


def python(problem: Problem) -> Rung:
    return Autograd(problem, "python", "python", Place(), slow=True)


def numpy(problem: Problem) -> Rung:
    return Autograd(problem, "numpy engine", "numpy", Place())


def fused(problem: Problem) -> Rung:
    return Autograd(problem, "fused", "fused", Place(threads="yes"))


def torch_nn(problem: Problem) -> Rung:
    return Autograd(problem, "torch", None, Place(threads="library"))


RUNGS = (quadratic, python, OneSample, GatesAtOnce, numpy, NumpyExpert, fused, ByHand, torch_nn)
SEQUENTIAL, NUMPY = "python", OneSample.name  # what the paper compares with
