"""What every rung of `bench ladder` trains: the same network, from the same weights, on the same mini-batches.

An LSTM reads the airline passengers of a year; a linear head on its last state says the next month. Mean squared error,
plain gradient descent.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...data.series import airline
from ..peers.contenders.network import WEIGHTS, Array, Network, Weights
from ..peers.contenders.with_torch import modules

WINDOW, BATCH, RATE = 12, 32, 0.1
EPOCHS = 5  # as in the paper
NOISE = 0.02  # in units of the series' spread: what makes the windows of a larger dataset differ
Batches = list[tuple[Array, Array]]


@dataclass(frozen=True)
class Problem:
    x: Array  # (n, T): windows
    y: Array  # (n,): what follows
    weights: Weights
    epochs: int
    batch: int = BATCH
    rate: float = RATE
    seed: int = 0

    def batches(self) -> Batches:  # (T, B, 1), (B, 1)
        """Those of all epochs, each epoch in an order of its own. Samples beyond whole mini-batches are left out."""
        order, found = np.random.default_rng(self.seed), []
        for _ in range(self.epochs):
            samples = order.permutation(len(self.x))
            for first in range(0, len(samples) - self.batch + 1, self.batch):
                found.append(self.some(samples[first : first + self.batch]))
        return found

    def some(self, samples: NDArray[np.int64]) -> tuple[Array, Array]:
        return np.ascontiguousarray(self.x[samples].T)[..., None], self.y[samples, None]

    def network(self) -> Network:
        """With the first weights and some mini-batch."""
        return Network("lstm", self.rate, *self.some(np.arange(self.batch)), self.weights)

    def loss(self, weights: Weights) -> float:
        """Of all samples, in float64, with the weights that a rung ended with."""
        layer, head = (module.double() for module in modules("lstm", weights))
        x, y = (torch.from_numpy(values).double() for values in self.some(np.arange(len(self.x))))
        with torch.no_grad():
            return float(nn.functional.mse_loss(head(layer(x)[0][-1]), y))

    def grown(self, times: int, batch: int) -> "Problem":
        """So many times the data, a little different each time."""
        noise = np.random.default_rng(self.seed + 1)

        def more(values: Array) -> Array:
            copies = np.tile(values, (times, *[1] * (values.ndim - 1)))
            copies[len(values) :] += NOISE * noise.standard_normal(copies[len(values) :].shape)
            return copies

        return replace(self, x=more(self.x), y=more(self.y), batch=batch)


def problem(H: int, epochs: int = EPOCHS, seed: int = 0) -> Problem:
    """Windows of the logarithms, in units of their spread: as many as fill whole mini-batches, the latest ones."""
    values = np.log(airline().values)
    values = ((values - values.mean()) / values.std()).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW + 1)
    windows = windows[len(windows) % BATCH :]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parameters = [*nn.LSTM(1, H).parameters(), *nn.Linear(H, 1).parameters()]
    weights = dict(zip(WEIGHTS, (p.detach().numpy().copy() for p in parameters), strict=True))
    return Problem(windows[:, :-1].copy(), windows[:, -1].copy(), weights, epochs, seed=seed)


@dataclass
class Order:
    """What the sections of `bench ladder` are asked, and what they have to say."""

    hidden: int
    quick: bool
    repeats: int
    seed: int
    remarks: list[str] = field(default_factory=list)

    def problem(self, epochs: int = EPOCHS) -> Problem:
        return problem(self.hidden, epochs, self.seed)
