"""JAX: lax.scan over time, the inputs multiplied before it; one jitted function is the whole step, and it overwrites
the weights that it is given (donated buffers)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .network import Array, Contender, Network

Weights = dict[str, Any]


def last_state(cell: str, w: Weights, x: Any) -> Any:  # (T, B, I) -> (B, H)
    H = w["w_hh"].shape[1]
    zero = jnp.zeros((x.shape[1], H), x.dtype)
    r = w["w_hh"].T
    wx = x @ w["w_ih"].T + (w["b_ih"] if cell == "gru" else w["b_ih"] + w["b_hh"])  # (T, B, G*H)

    def rnn(state: Any, wx: Any) -> Any:
        return (jnp.tanh(wx + state[0] @ r),), None

    def lstm(state: Any, wx: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(wx + h @ r, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    def gru(state: Any, wx: Any) -> Any:
        (h,), (wr, wz, wn) = state, jnp.split(wx, 3, axis=-1)
        rr, rz, rn = jnp.split(state[0] @ r + w["b_hh"], 3, axis=-1)
        z = jax.nn.sigmoid(wz + rz)
        n = jnp.tanh(wn + jax.nn.sigmoid(wr + rr) * rn)
        return (n + z * (h - n),), None

    step = {"rnn": rnn, "lstm": lstm, "gru": gru}[cell]
    states, _ = jax.lax.scan(step, (zero, zero) if cell == "lstm" else (zero,), wx)
    return states[0]


def error(w: Weights, cell: str, x: Any, y: Any) -> Any:
    return jnp.mean((last_state(cell, w, x) @ w["w_out"].T + w["b_out"] - y) ** 2)


@partial(jax.jit, static_argnums=1, donate_argnums=0)
def train(w: Weights, cell: str, rate: float, x: Any, y: Any) -> Any:
    loss, d_w = jax.value_and_grad(error)(w, cell, x, y)
    return jax.tree.map(lambda a, d: a - rate * d, w, d_w), loss


class Jax(Contender):
    def __init__(self, net: Network) -> None:
        self.cell, self.rate = net.cell, jnp.float32(net.rate)
        self.w = {name: jnp.array(value) for name, value in net.weights.items()}
        self.x, self.y = jnp.array(net.x), jnp.array(net.y)

    def run(self, steps: int) -> float:
        loss = float("nan")
        for _ in range(steps):
            self.w, loss = train(self.w, self.cell, self.rate, self.x, self.y)
        jax.block_until_ready(self.w)
        return float(loss)

    def weights(self) -> dict[str, Array]:
        return {name: np.array(value) for name, value in self.w.items()}


def prepare(net: Network, variant: str) -> Jax:
    return Jax(net)
