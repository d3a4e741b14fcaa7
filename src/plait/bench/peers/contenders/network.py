"""What every contender computes, and what it looks like to those who run it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Weights = Mapping[str, Array]
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
# w_ih (G*H, I), w_hh (G*H, H), b_ih (G*H,), b_hh (G*H,), w_out (O, H), b_out (O,), in torch's order of gates
WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh", "w_out", "b_out")


@dataclass(frozen=True)
class Network:
    """A layer, a linear head on its last state, the mean squared error, and plain gradient descent. All is float32."""

    cell: str
    rate: float
    x: Array  # (T, B, I)
    y: Array  # (B, O)
    weights: Weights

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:  # B, T, I, H, O
        (T, B, I), (O, H) = self.x.shape, self.weights["w_out"].shape
        return B, T, I, H, O

    @classmethod
    def drawn(cls, cell: str, B: int, T: int, I: int, H: int, O: int, rate: float, seed: int) -> "Network":
        """Weights as torch.nn draws them. The same in every process."""
        random, GH = np.random.default_rng(seed), GATES[cell] * H
        x, y = (random.standard_normal(shape).astype(np.float32) for shape in ((T, B, I), (B, O)))
        shapes = ((GH, I), (GH, H), (GH,), (GH,), (O, H), (O,))
        drawn = (random.uniform(-(H**-0.5), H**-0.5, shape).astype(np.float32) for shape in shapes)
        return cls(cell, rate, x, y, dict(zip(WEIGHTS, drawn, strict=True)))


def next_state(cell: str, wx: Any, rh: Any, state: tuple[Any, ...], ops: Any) -> tuple[Any, ...]:
    """A step in time, for libraries that derive. wx, rh: (B, G*H); the biases are in wx, a GRU's b_hh is in rh.

    ops: the library's sigmoid and tanh, and split(rows, gates)
    """
    if cell == "rnn":
        return (ops.tanh(wx + rh),)
    if cell == "lstm":
        i, f, g, o = ops.split(wx + rh, 4)
        c = ops.sigmoid(f) * state[1] + ops.sigmoid(i) * ops.tanh(g)
        return ops.sigmoid(o) * ops.tanh(c), c
    (wx_r, wx_z, wx_n), (rh_r, rh_z, rh_n) = ops.split(wx, 3), ops.split(rh, 3)
    z = ops.sigmoid(wx_z + rh_z)
    n = ops.tanh(wx_n + ops.sigmoid(wx_r + rh_r) * rh_n)
    return (n + z * (state[0] - n),)


class Stepper(ABC):
    """A network in one library. It takes its steps one by one, on any mini-batch of the network's size."""

    def __init__(self, net: Network) -> None:
        self.rate, self.data = net.rate, self.batch(net.x, net.y)

    def batch(self, x: Array, y: Array) -> Any:
        """A mini-batch as the library takes it."""
        return x, y

    @abstractmethod
    def step(self, x: Any, y: Any) -> Any:
        """-> the loss before the step"""

    @abstractmethod
    def weights(self) -> Weights:
        """As they are now, in copies."""

    def run(self, steps: int) -> float:
        """So many steps -> the loss before the last of them. Everything is done when it returns."""
        for _ in range(steps):
            loss = self.step(*self.data)
        return float(loss)
