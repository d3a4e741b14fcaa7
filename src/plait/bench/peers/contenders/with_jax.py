"""JAX: lax.scan over time, the inputs multiplied before it; one jitted function is the whole step, and it overwrites
the weights that it is given (donated buffers)."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .network import Array, Network, Stepper, next_state

Weights = dict[str, Any]
OPS = SimpleNamespace(sigmoid=jax.nn.sigmoid, tanh=jnp.tanh, split=partial(jnp.split, axis=-1))


def last_state(cell: str, w: Weights, x: Any) -> Any:  # (T, B, I) -> (B, H)
    r, b_ih, b_hh = w["w_hh"].T, w["b_ih"], w["b_hh"]
    zero = jnp.zeros((x.shape[1], len(r)), x.dtype)
    wx = x @ w["w_ih"].T + (b_ih if cell == "gru" else b_ih + b_hh)  # (T, B, G*H)

    def step(state: Any, wx: Any) -> Any:
        rh = state[0] @ r
        return next_state(cell, wx, rh + b_hh if cell == "gru" else rh, state, OPS), None

    states, _ = jax.lax.scan(step, (zero, zero) if cell == "lstm" else (zero,), wx)
    return states[0]


def error(w: Weights, cell: str, x: Any, y: Any) -> Any:
    return jnp.mean((last_state(cell, w, x) @ w["w_out"].T + w["b_out"] - y) ** 2)


@partial(jax.jit, static_argnums=(1, 2), donate_argnums=0)
def train(w: Weights, cell: str, rate: float, x: Any, y: Any) -> Any:
    loss, d_w = jax.value_and_grad(error)(w, cell, x, y)
    return jax.tree.map(lambda a, d: a - rate * d, w, d_w), loss


class Jax(Stepper):
    def __init__(self, net: Network) -> None:
        super().__init__(net)
        self.cell, self.w = net.cell, {name: jnp.array(value) for name, value in net.weights.items()}

    def batch(self, x: Array, y: Array) -> Any:
        return jnp.array(x), jnp.array(y)

    def step(self, x: Any, y: Any) -> Any:
        self.w, loss = train(self.w, self.cell, self.rate, x, y)
        return loss

    def run(self, steps: int) -> float:
        loss = super().run(steps)
        jax.block_until_ready(self.w)
        return loss

    def weights(self) -> dict[str, Array]:
        return {name: np.array(value) for name, value in self.w.items()}


def prepare(net: Network, variant: str) -> Jax:
    return Jax(net)
