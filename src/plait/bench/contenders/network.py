"""What every contender computes, and the file in which it gets its weights and data."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh", "w_out", "b_out")  # in torch's order of gates


@dataclass(frozen=True)
class Network:
    """A layer, a linear head on its last state, the mean squared error, and plain gradient descent. All is float32."""

    cell: str
    rate: float
    x: Array  # (T, B, I)
    y: Array  # (B, O)
    w_ih: Array  # (G*H, I)
    w_hh: Array  # (G*H, H)
    b_ih: Array  # (G*H,)
    b_hh: Array  # (G*H,)
    w_out: Array  # (O, H)
    b_out: Array  # (O,)

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:  # B, T, I, H, O
        (T, B, I), (O, H) = self.x.shape, self.w_out.shape
        return B, T, I, H, O

    @property
    def weights(self) -> dict[str, Array]:
        return {name: getattr(self, name) for name in WEIGHTS}

    @classmethod
    def drawn(cls, cell: str, B: int, T: int, I: int, H: int, O: int, *, rate: float, seed: int) -> "Network":
        """Weights as torch.nn draws them."""
        random, G = np.random.default_rng(seed), GATES[cell]
        bound = 1 / np.sqrt(H)

        def uniform(*shape: int) -> Array:
            return random.uniform(-bound, bound, shape).astype(np.float32)

        def normal(*shape: int) -> Array:
            return random.standard_normal(shape).astype(np.float32)

        shapes = ((G * H, I), (G * H, H), (G * H,), (G * H,), (O, H), (O,))
        return cls(cell, rate, normal(T, B, I), normal(B, O), *(uniform(*shape) for shape in shapes))

    def save(self, path: Path) -> None:
        np.savez(path, **{f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def load(cls, path: Path) -> "Network":
        with np.load(path) as file:
            found: dict[str, Any] = {f.name: file[f.name] for f in fields(cls)}
        return cls(**{**found, "cell": str(found["cell"]), "rate": float(found["rate"])})


class Contender(ABC):
    """A network in one library, ready to train."""

    @abstractmethod
    def run(self, steps: int) -> float:
        """So many steps -> the loss before the last of them. Everything is done when it returns."""

    @abstractmethod
    def weights(self) -> dict[str, Array]:
        """As they are now."""

    def profile(self, steps: int) -> dict[str, float]:
        """Seconds of a step, by what is done. Only plait's has it."""
        raise NotImplementedError
