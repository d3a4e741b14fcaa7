"""What every rung of `bench ladder` trains, from the same weights and on the same mini-batches.

An LSTM reads the airline passengers of a year; a linear head on its last state says the next month.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from ...data.series import airline
from ..peers.contenders.network import WEIGHTS, Array, Network, Weights
from ..peers.contenders.with_torch import modules
from ..questions import LadderOptions

WINDOW, BATCH, RATE = 12, 32, 0.1
EPOCHS = 5  # as in the paper
NOISE = 0.02  # what makes the windows of a larger dataset differ
Batches = list[tuple[Array, Array]]


@dataclass(frozen=True)
class Problem:
    windows: Array  # (n, T + 1): each is followed by what is to be said
    weights: Weights
    epochs: int
    batch: int = BATCH
    seed: int = 0

    def batches(self) -> Batches:  # (T, B, 1), (B, 1)
        """Those of all epochs, each in an order of its own. Samples beyond whole mini-batches are left out."""
        order, found = np.random.default_rng(self.seed), []
        for _ in range(self.epochs):
            samples = self.windows[order.permutation(len(self.windows))]
            for first in range(0, len(samples) - self.batch + 1, self.batch):
                found.append(cut(samples[first : first + self.batch]))
        return found

    def network(self) -> Network:
        """With the first weights and some mini-batch."""
        return Network("lstm", RATE, *cut(self.windows[: self.batch]), self.weights)

    def loss(self, weights: Weights) -> float:
        """Of all samples, in float64, with the weights that a rung ended with."""
        layer, head = (module.double() for module in modules("lstm", weights))
        x, y = (torch.from_numpy(values).double() for values in cut(self.windows))
        with torch.no_grad():
            return float(nn.functional.mse_loss(head(layer(x)[0][-1]), y))

    def grown(self, times: int, batch: int) -> "Problem":
        """So many times the data, a little different each time."""
        more = np.tile(self.windows, (times, 1))
        copies = more[len(self.windows) :]
        copies += NOISE * np.random.default_rng(self.seed + 1).standard_normal(copies.shape)
        return replace(self, windows=more, batch=batch)


def cut(samples: Array) -> tuple[Array, Array]:  # (B, T + 1) -> (T, B, 1), (B, 1)
    return np.ascontiguousarray(samples[:, :-1].T)[..., None], samples[:, -1:].copy()


def problem(options: LadderOptions, epochs: int = EPOCHS) -> Problem:
    """The latest windows of the logarithms, in units of their spread, that fill whole mini-batches."""
    values = np.log(airline().values)
    values = ((values - values.mean()) / values.std()).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW + 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        parameters = [*nn.LSTM(1, options.hidden).parameters(), *nn.Linear(options.hidden, 1).parameters()]
    weights = dict(zip(WEIGHTS, (p.detach().numpy().copy() for p in parameters), strict=True))
    return Problem(windows[len(windows) % BATCH :].copy(), weights, epochs, seed=options.seed)
