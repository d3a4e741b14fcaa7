"""What every rung of `bench ladder` trains: the same network, from the same weights, on the same mini-batches.

An LSTM reads the airline passengers of a year; a linear head on its last state says the next month. Mean squared error,
plain gradient descent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.series import airline
from .expert import NAMES, Array

WINDOW, BATCH, RATE = 12, 32, 0.1
NOISE = 0.02  # in units of the series' spread: what makes the windows of a larger dataset differ

Weights = Mapping[str, Array]  # of the layer, as torch.nn has them, under expert.NAMES
Head = tuple[Array, Array]


@dataclass(frozen=True)
class Problem:
    x: Array  # (n, T): windows
    y: Array  # (n,): what follows
    weights: Weights
    head: Head
    epochs: int
    batch: int = BATCH
    rate: float = RATE
    seed: int = 0

    @property
    def T(self) -> int:
        return int(self.x.shape[1])

    @property
    def H(self) -> int:
        return int(self.head[0].shape[1])

    def batches(self) -> list[tuple[Tensor, Tensor]]:  # (T, B, 1), (B, 1)
        """Those of all epochs, each epoch in an order of its own. What is left beyond whole mini-batches waits."""
        order, found = np.random.default_rng(self.seed), []
        for _ in range(self.epochs):
            samples = order.permutation(len(self.x))
            for first in range(0, len(samples) - self.batch + 1, self.batch):
                some = samples[first : first + self.batch]
                x = np.ascontiguousarray(self.x[some].T)[..., None]
                found.append((torch.from_numpy(x), torch.from_numpy(self.y[some, None])))
        return found

    def net(self) -> tuple[nn.LSTM, nn.Linear]:
        """Torch's layer and head, with the first weights."""
        layer, head = nn.LSTM(1, self.H), nn.Linear(self.H, 1)
        with torch.no_grad():
            for name, parameter in zip(NAMES, layer.parameters(), strict=True):
                parameter.copy_(torch.from_numpy(self.weights[name]))
            for parameter, value in zip(head.parameters(), self.head, strict=True):
                parameter.copy_(torch.from_numpy(value))
        return layer, head

    def loss(self, weights: Weights, head: Head) -> float:
        """Of all samples, in float64, with the weights that a rung ended with."""
        layer, linear = replace(self, weights=weights, head=head).net()
        x, y = (torch.from_numpy(values).double() for values in (self.x.T[..., None], self.y[:, None]))
        with torch.no_grad():
            rows, _ = layer.double()(x)
            return float(nn.functional.mse_loss(linear.double()(rows[-1]), y))

    def grown(self, times: int, batch: int) -> "Problem":
        """So many times the data, a little different each time."""
        noise = np.random.default_rng(self.seed + 1)

        def more(values: Array) -> Array:
            copies = np.tile(values, (times, *[1] * (values.ndim - 1)))
            copies[len(values) :] += NOISE * noise.standard_normal(copies[len(values) :].shape)
            return copies

        return replace(self, x=more(self.x), y=more(self.y), batch=batch)


def problem(H: int, epochs: int, seed: int) -> Problem:
    """Windows of the logarithms, in units of their spread: as many as fill whole mini-batches, the latest ones."""
    values = np.log(airline().values)
    values = ((values - values.mean()) / values.std()).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW + 1)
    windows = windows[len(windows) % BATCH :]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer, head = nn.LSTM(1, H), nn.Linear(H, 1)
    weights = dict(zip(NAMES, map(as_array, layer.parameters()), strict=True))
    first = (as_array(head.weight), as_array(head.bias))
    return Problem(windows[:, :-1].copy(), windows[:, -1].copy(), weights, first, epochs, seed=seed)


def as_array(parameter: Any) -> Array:
    found: Array = parameter.detach().cpu().numpy().copy()
    return found
