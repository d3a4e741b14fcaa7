"""What the sections share: networks that remember, and their training steps.

They are trained to say again what they were told some steps ago, or at the last trigger.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ... import solvers
from ...layers import Recurrent, layer
from ...solvers import Solver
from . import Options

I, BATCH, LENGTH = 16, 16, 256
SMOOTH = 6.0  # steps: the width of the window that makes a signal smooth
GOOD, LR = 0.05, 3e-3  # the loss at which the delay grows; the learning rate until it is at its full length


# --- what they learn
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


# --- networks
@dataclass
class Net:
    """A recurrent layer, and a linear layer that reads the answer from its states."""

    name: str
    rnn: Recurrent
    head: nn.Linear
    data: Data
    delay: int
    loss: float = math.nan  # on unseen sequences; always saying zero gives about 1

    def parameters(self) -> list[nn.Parameter]:
        return [*self.rnn.parameters(), *self.head.parameters()]

    def mean_loss(self, x: Tensor, y: Tensor, ids: Tensor | None = None) -> Tensor:
        h, _ = self.rnn(x, ids=ids)
        loss: Tensor = (self.head(h).squeeze(2) - y).square().mean()
        return loss


def train(name: str, cell: str, H: int, data: Data, delay: int, *, steps: int, seed: int) -> Net:
    """With delays that grow from 4, whenever the loss is low, and a last part at the full one."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    net = Net(name, layer(cell, I, H), nn.Linear(H, 1), data, delay)
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


class Order(Options):
    """The options, and what the sections leave behind."""

    remarks: list[str] = field(default_factory=list)
    nets: dict[str, Net] = field(default_factory=dict)  # those that were trained

    def trained(self, name: str, H: int, data: Data, delay: int, steps: int, cell: str = "implicit_gru") -> Net:
        """Once for all sections."""
        key = f"{name}, {cell}, {H}"
        if key not in self.nets:
            self.nets[key] = train(name, cell, H, data, delay, steps=steps, seed=self.seed)
        return self.nets[key]


# --- training steps
class Learner:
    """A network and its optimizer: one call is a whole training step."""

    def __init__(self, net: Net, solver: Solver) -> None:
        self.net = copy.deepcopy(net)
        self.net.rnn.solver = solver
        self.model = nn.ModuleList([self.net.rnn, self.net.head])
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3, fused=True)

    def __call__(self, x: Tensor, y: Tensor, ids: Tensor | None = None) -> None:
        self.optimizer.zero_grad()
        self.net.mean_loss(x, y, ids).backward()
        self.optimizer.step()

    def off(self, x: Tensor, y: Tensor, ids: Tensor | None = None) -> float:
        """How far its gradient is off, end to end."""
        return solvers.compare(self.model, lambda: self.net.mean_loss(x, y, ids)).gradient


def step_of(layer: nn.Module, x: Tensor, ids: Tensor | None = None) -> Callable[[], None]:
    """Both passes of a layer, with a loss at every step."""

    def step() -> None:
        layer.zero_grad()
        (layer(x) if ids is None else layer(x, ids=ids))[0].square().mean().backward()

    return step
