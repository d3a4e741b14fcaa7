"""What the sections share: networks that remember, and their training steps.

They are trained to say again what they were told some steps ago, or at the last trigger.
"""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ... import solvers
from ...layers import Recurrent, layer
from ...solvers import Solver

I, BATCH, LENGTH = 16, 16, 256
SMOOTH = 6.0  # steps: the width of the window that makes a signal smooth
GOOD, LR = 0.05, 3e-3  # the loss at which the delay grows; the learning rate until it is at its full length


Data = Callable[[int, int, int, torch.Generator], tuple[Tensor, Tensor]]


# --- what they learn
def inputs(T: int, B: int, generator: torch.Generator) -> Tensor:  # (T, B, I)
    """Noise. The first is smooth, and has a variance of 1."""
    x = 0.1 * torch.randn(T, B, I, generator=generator)
    reach = int(4 * SMOOTH)
    window = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / SMOOTH) ** 2)
    noise = torch.randn(B, 1, T + 2 * reach, generator=generator)
    x[:, :, 0] = nn.functional.conv1d(noise, (window / window.norm()).view(1, 1, -1)).squeeze(1).t()
    return x


def recall(T: int, B: int, delay: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:  # (T, B, I), (T, B)
    """What the first input was, `delay` steps ago."""
    x = inputs(T, B, generator)
    return x, torch.cat([x.new_zeros(min(delay, T), B), x[: max(0, T - delay), :, 0]])


def latch(T: int, B: int, gap: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What the first input was at the last trigger, which is in the second, every `gap` steps or so."""
    x = inputs(T, B, generator)
    trigger = torch.rand(T, B, generator=generator) < 1 / gap
    x[:, :, 1] = trigger.float()
    last = torch.where(trigger, torch.arange(T).unsqueeze(1), -1).cummax(0).values  # (T, B)
    return x, torch.where(last >= 0, x[:, :, 0].gather(0, last.clamp(min=0)), 0.0)


# --- networks
class Net(nn.Module):
    """A recurrent layer, and a linear layer that reads the answer from its states."""

    loss = float("nan")  # on unseen sequences; always saying zero gives about 1

    def __init__(self, rnn: Recurrent, data: Data, delay: int) -> None:
        super().__init__()
        self.rnn, self.head, self.data, self.delay = rnn, nn.Linear(rnn.hidden_size, 1), data, delay
        self.name = f"{data.__name__} {delay}"

    def mean_loss(self, x: Tensor, y: Tensor, ids: Tensor | None = None) -> Tensor:
        h, _ = self.rnn(x, ids=ids)
        loss: Tensor = (self.head(h).squeeze(2) - y).square().mean()
        return loss

    def off(self, x: Tensor, y: Tensor, ids: Tensor | None = None) -> float:
        """How far its gradient is off, end to end."""
        return solvers.compare(self, lambda: self.mean_loss(x, y, ids)).gradient


@cache
def trained(data: Data, delay: int, H: int, steps: int, seed: int, cell: str = "implicit_gru") -> Net:
    """With delays that grow from 4, whenever the loss is low, and a last part at the full one."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    net = Net(layer(cell, I, H), data, delay)
    optimizer = torch.optim.Adam(net.parameters(), lr=LR, fused=True)
    now, done = min(4, delay), 0
    for step in range(steps):
        T = max(LENGTH, 3 * now)
        optimizer.param_groups[0]["lr"] = LR * (1 if now < delay else max(0.05, 0.5 ** ((step - done) / 150)))
        x, y = data(T, BATCH, now, generator)
        loss = net.mean_loss(x, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if now == delay and step - done > 600:
            break
        if loss.item() < GOOD and now < delay:
            now, done = min(delay, now + 2), step + 1
    with torch.no_grad():
        net.loss = float(net.mean_loss(*data(2048, 4, delay, generator)))
    return net


def with_solver(module: nn.Module, solver: Solver) -> Any:
    """A copy of a layer, or of a network, that is walked by this solver."""
    twin: Any = copy.deepcopy(module)
    getattr(twin, "rnn", twin).solver = solver
    return twin


def step_of(layer: nn.Module, x: Tensor, ids: Tensor | None = None) -> Callable[[], None]:
    """Both passes of a layer, with a loss at every step."""

    def step() -> None:
        layer.zero_grad()
        (layer(x) if ids is None else layer(x, ids=ids))[0].square().mean().backward()

    return step
