"""PyTorch: torch.nn's layer, nn.Linear, mse_loss, autograd, and SGD whose update is one call for all weights.

Variants: "" is eager; "compile" has torch.compile on the forward pass and the loss, and with them on the backward pass.
The recurrent layer in there stays torch's own kernel: by default torch.compile does not look into it.
"""

import os
from typing import Any

import torch
from torch import Tensor, nn

from .network import WEIGHTS, Array, Network, Stepper, Weights

LAYERS: dict[str, type[nn.LSTM | nn.GRU | nn.RNN]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def modules(cell: str, weights: Weights) -> tuple[Any, nn.Linear]:
    """Torch's layer and head, with these weights."""
    (_, I), (O, H) = weights["w_ih"].shape, weights["w_out"].shape
    layer, head = LAYERS[cell](I, H), nn.Linear(H, O)
    with torch.no_grad():
        for parameter, value in zip([*layer.parameters(), *head.parameters()], weights.values(), strict=True):
            parameter.copy_(torch.from_numpy(value))
    return layer, head


class Torch(Stepper):
    def __init__(self, net: Network) -> None:
        super().__init__(net)
        self.layer, self.head = modules(net.cell, net.weights)
        self.parameters = [*self.layer.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.SGD(self.parameters, net.rate, fused=True)
        self.loss = self.eager

    def batch(self, x: Array, y: Array) -> Any:
        return torch.from_numpy(x), torch.from_numpy(y)

    def eager(self, x: Tensor, y: Tensor) -> Tensor:
        return self.on_top(self.layer(x)[0], y)

    def on_top(self, out: Tensor, y: Tensor) -> Tensor:  # (T, B, H), (B, O)
        return nn.functional.mse_loss(self.head(out[-1]), y)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def weights(self) -> Weights:
        return {n: p.detach().cpu().numpy().copy() for n, p in zip(WEIGHTS, self.parameters, strict=True)}


def use_threads() -> None:
    """As many as the bench has set for all its contenders."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def prepare(net: Network, variant: str) -> Torch:
    use_threads()
    made = Torch(net)
    if variant == "compile":
        torch.compiler.reset()
        made.loss = torch.compile(made.eager)
    return made
