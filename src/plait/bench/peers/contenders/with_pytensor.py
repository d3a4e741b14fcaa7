"""PyTensor, Theano's successor: scan over time, grad, shared variables, and one function whose updates are the step.

It is compiled in PyTensor's default mode, which is numba's.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from .network import GATES, Network, Stepper, Weights, next_state


def last_state(cell: str, w: dict[str, Any], x: Any, sizes: tuple[int, ...]) -> Any:  # (B, H)
    B, T, I, H, _ = sizes
    zero = pt.zeros((B, H), dtype="float32")
    bias = w["b_ih"] if cell == "gru" else w["b_ih"] + w["b_hh"]
    wx = pt.dot(x.reshape((T * B, I)), w["w_ih"].T).reshape((T, B, GATES[cell] * H)) + bias

    def split(rows: Any, gates: int) -> list[Any]:
        return [rows[:, k * H : (k + 1) * H] for k in range(gates)]

    ops = SimpleNamespace(sigmoid=pt.sigmoid, tanh=pt.tanh, split=split)

    def step(wx: Any, *given: Any) -> Any:
        *state, r, b_hh = given
        rh = pt.dot(state[0], r.T)
        return list(next_state(cell, wx, rh + b_hh if cell == "gru" else rh, tuple(state), ops))

    states = pytensor.scan(
        step,
        sequences=[wx],
        outputs_info=[zero, zero] if cell == "lstm" else [zero],
        non_sequences=[w["w_hh"], w["b_hh"]],
        return_updates=False,
    )
    return (states[0] if cell == "lstm" else states)[-1]


class PyTensor(Stepper):
    """Its function has the network's own mini-batch, the only one that it takes."""

    def __init__(self, net: Network) -> None:
        super().__init__(net)
        self.w = {name: pytensor.shared(value, name=name) for name, value in net.weights.items()}
        x, y = (pytensor.shared(value, shape=value.shape) for value in self.data)
        out = pt.dot(last_state(net.cell, self.w, x, net.sizes), self.w["w_out"].T) + self.w["b_out"]
        loss = pt.mean((out - y) ** 2)
        rate, weights = np.float32(net.rate), list(self.w.values())
        updates = [(w, w - rate * d) for w, d in zip(weights, pt.grad(loss, weights), strict=True)]
        self.train = pytensor.function([], loss, updates=updates)
        self.train.trust_input = True

    def step(self, x: Any, y: Any) -> Any:
        return self.train()

    def weights(self) -> Weights:
        return {name: w.get_value() for name, w in self.w.items()}


def prepare(net: Network, variant: str) -> PyTensor:
    pytensor.config.floatX = "float32"
    return PyTensor(net)
