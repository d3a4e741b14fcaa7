"""PyTorch: torch.nn's layer, nn.Linear, mse_loss, autograd, and SGD whose update is one call for all weights.

Variants: "" is eager; "compile" has torch.compile on the forward pass and the loss, and with them on the way back. The
recurrent layer in there stays torch's own kernel: by default torch.compile does not look into it.
"""

import os

import torch
from torch import Tensor, nn

from .network import WEIGHTS, Array, Contender, Network

LAYERS: dict[str, type[nn.LSTM | nn.GRU | nn.RNN]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class Torch(Contender):
    def __init__(self, net: Network, layer: nn.RNNBase) -> None:
        _, _, _, H, O = net.sizes
        self.layer, self.head = layer, nn.Linear(H, O)
        self.parameters = [*layer.parameters(), *self.head.parameters()]
        with torch.no_grad():
            for parameter, value in zip(self.parameters, net.weights.values(), strict=True):
                parameter.copy_(torch.from_numpy(value))
        self.x, self.y = torch.from_numpy(net.x), torch.from_numpy(net.y)
        self.optimizer = torch.optim.SGD(self.parameters, net.rate, fused=True)
        self.loss = self.eager

    def eager(self, x: Tensor, y: Tensor) -> Tensor:
        return self.on_top(self.layer(x)[0], y)

    def on_top(self, out: Tensor, y: Tensor) -> Tensor:  # (T, B, H), (B, O)
        return nn.functional.mse_loss(self.head(out[-1]), y)

    def step(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(self.x, self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, steps: int) -> float:
        loss = torch.tensor(float("nan"))
        for _ in range(steps):
            loss = self.step()
        return float(loss)

    def weights(self) -> dict[str, Array]:
        return {n: p.detach().numpy().copy() for n, p in zip(WEIGHTS, self.parameters, strict=True)}


def use_threads() -> None:
    """As many as the bench has set for all its contenders."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def prepare(net: Network, variant: str) -> Torch:
    use_threads()
    _, _, I, H, _ = net.sizes
    made = Torch(net, LAYERS[net.cell](I, H))
    if variant == "compile":
        torch.compiler.reset()
        made.loss = torch.compile(made.eager)
    return made
