"""PyTensor, Theano's successor: scan over time, grad, shared variables, and one function whose updates are the step.

It is compiled in PyTensor's default mode, which is numba's.
"""

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from .network import Contender, Network, Weights


def last_state(cell: str, w: dict[str, Any], x: Any, sizes: tuple[int, ...]) -> Any:  # (B, H)
    B, T, I, H, _ = sizes
    bias = w["b_ih"] if cell == "gru" else w["b_ih"] + w["b_hh"]
    GH = w["b_ih"].get_value(borrow=True).shape[0]
    wx = pt.dot(x.reshape((T * B, I)), w["w_ih"].T).reshape((T, B, GH)) + bias
    zero = pt.zeros((B, H), dtype="float32")

    def gate(rows: Any, k: int) -> Any:
        return rows[:, k * H : (k + 1) * H]

    def rnn(wx: Any, h: Any, r: Any, b: Any) -> Any:
        return pt.tanh(wx + pt.dot(h, r.T))

    def lstm(wx: Any, h: Any, c: Any, r: Any, b: Any) -> Any:
        a = wx + pt.dot(h, r.T)
        i, f, o = (pt.sigmoid(gate(a, k)) for k in (0, 1, 3))
        c = f * c + i * pt.tanh(gate(a, 2))
        return o * pt.tanh(c), c

    def gru(wx: Any, h: Any, r: Any, b: Any) -> Any:
        rh = pt.dot(h, r.T) + b
        reset, z = (pt.sigmoid(gate(wx, k) + gate(rh, k)) for k in (0, 1))
        n = pt.tanh(gate(wx, 2) + reset * gate(rh, 2))
        return n + z * (h - n)

    states = pytensor.scan(
        {"rnn": rnn, "lstm": lstm, "gru": gru}[cell],
        sequences=[wx],
        outputs_info=[zero, zero] if cell == "lstm" else [zero],
        non_sequences=[w["w_hh"], w["b_hh"]],
        return_updates=False,
    )
    return (states[0] if cell == "lstm" else states)[-1]


class PyTensor(Contender):
    def __init__(self, net: Network) -> None:
        self.w = {name: pytensor.shared(value, name=name) for name, value in net.weights.items()}
        x, y = (pytensor.shared(value, shape=value.shape) for value in (net.x, net.y))
        out = pt.dot(last_state(net.cell, self.w, x, net.sizes), self.w["w_out"].T) + self.w["b_out"]
        loss = pt.mean((out - y) ** 2)
        rate, weights = np.float32(net.rate), list(self.w.values())
        updates = [(w, w - rate * d) for w, d in zip(weights, pt.grad(loss, weights), strict=True)]
        self.train = pytensor.function([], loss, updates=updates)
        self.train.trust_input = True

    def run(self, steps: int) -> float:
        loss = float("nan")
        for _ in range(steps):
            loss = self.train()
        return float(loss)

    def weights(self) -> Weights:
        return {name: w.get_value() for name, w in self.w.items()}


def prepare(net: Network, variant: str) -> PyTensor:
    pytensor.config.floatX = "float32"
    return PyTensor(net)
