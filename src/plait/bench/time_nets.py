"""Networks that remember: trained to say again what they were told some steps ago, or at the last trigger."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..layers import Recurrent, layer

I, BATCH, LENGTH = 16, 16, 256
SMOOTH = 6.0  # steps: the width of the window that makes a signal smooth


def signal(T: int, B: int, generator: torch.Generator) -> Tensor:  # (T, B)
    """Noise, smoothed, with a variance of 1."""
    reach = int(4 * SMOOTH)
    window = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / SMOOTH) ** 2)
    noise = torch.randn(B, 1, T + 2 * reach, generator=generator)
    return nn.functional.conv1d(noise, (window / window.norm()).view(1, 1, -1)).squeeze(1).t()


def recall(T: int, B: int, delay: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:  # (T, B, I), (T, B)
    """What the first input was, `delay` steps ago. The other inputs are noise."""
    x = 0.1 * torch.randn(T, B, I, generator=generator)
    x[:, :, 0] = signal(T, B, generator)
    return x, torch.cat([x.new_zeros(min(delay, T), B), x[: max(0, T - delay), :, 0]])


def hold(T: int, B: int, gap: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What the first input was at the last trigger, which is in the second; a trigger comes every `gap` steps or so."""
    x = 0.1 * torch.randn(T, B, I, generator=generator)
    x[:, :, 0] = signal(T, B, generator)
    trigger = torch.rand(T, B, generator=generator) < 1 / gap
    x[:, :, 1] = trigger.float()
    last = torch.where(trigger, torch.arange(T).unsqueeze(1), -1).cummax(0).values  # (T, B)
    return x, torch.where(last >= 0, x[:, :, 0].gather(0, last.clamp(min=0)), 0.0)


Data = Callable[[int, int, int, torch.Generator], tuple[Tensor, Tensor]]


@dataclass
class Net:
    """A recurrent layer, and a line that reads the answer from its states."""

    name: str
    rnn: Recurrent
    head: nn.Linear
    data: Data
    delay: int
    loss: float  # on unseen sequences; always saying zero gives about 1

    def parameters(self) -> list[nn.Parameter]:
        return [*self.rnn.parameters(), *self.head.parameters()]

    def mean_loss(self, x: Tensor, y: Tensor, ids: Tensor | None = None) -> Tensor:
        h, _ = self.rnn(x, ids=ids)
        loss: Tensor = (self.head(h).squeeze(2) - y).square().mean()
        return loss


def train(
    name: str,
    cell: str,
    H: int,
    data: Data,
    delay: int,
    *,
    steps: int,
    seed: int = 0,
    good: float = 0.05,
    lr: float = 3e-3,
) -> Net:
    """With delays that grow from 4, whenever the loss is low, and a last part at the full one."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    rnn, head = layer(cell, I, H), nn.Linear(H, 1)
    net = Net(name, rnn, head, data, delay, math.nan)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, fused=True)
    now, done = min(4, delay), 0
    for step in range(steps):
        T = max(LENGTH, 3 * now)
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 if now < delay else max(0.05, 0.5 ** ((step - done) / 150)))
        x, y = data(T, BATCH, now, generator)
        loss = net.mean_loss(x, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if now == delay and step - done > 600:
            break
        if loss.item() < good and now < delay:
            now, done = min(delay, now + 2), step + 1
    with torch.no_grad():
        net.loss = float(net.mean_loss(*data(2048, 4, delay, generator)))
    return net
