"""The fourth paper's ten phases of a training step, on its network.

The paper: h = tanh(W x + R h), y = tanh(V h), summed squared error, plain gradient descent; "Workload breakdown".
"""

import copy

import torch
from torch import Tensor

from ... import cells
from ...engines import Layout, Weights
from ...engines.fused import FusedEngine
from ...ladder.compare import worst
from ...tasks.memory import FLOAT, check_fits, check_layer
from ...tasks.rotate import Rotator, squared_error
from ...tasks.settings import RotateSettings
from ..core.cases import Case
from ..core.turns import Laps, Seconds, take_turns

SHAPE, CELL = "1000,10,1000,1000,1", "rnn"  # the paper's
PAPER = {  # % of the time of its own step
    "1 begin forward": 0.05,
    "2 hidden states": 22.16,
    "3 outputs": 5.78,
    "4 save": 22.55,
    "5 loss": 0.79,
    "6 begin backward": 0.16,
    "7 d outputs": 0.54,
    "8 d hidden states": 23.33,
    "9 weight gradients": 24.60,
    "10 descent": 0.06,
}
COLUMNS = ("phase", "paper %", "share %", "ms", "low", "high", "GFLOP/s", "peak %")
QUESTION = "Where does a training step of the rotating network spend its time, beside that of the fourth paper?"
REMARKS = (
    "share: of the sum. step: the task's own, with autograd.",
    "4: the paper copies what the backward pass needs; here the forward pass has written it there.",
)
LR = 1e-6  # so small that many steps lead nowhere


class Phased:
    """A training step, phase by phase."""

    def __init__(self, case: Case, model: Rotator, x: Tensor, targets: Tensor) -> None:
        self.cell, self.layout, self.engine = cells.get(case.cell), Layout(case.T, case.B), FusedEngine()
        self.weights = [p.detach() for p in model.parameters()]  # W, R, V
        self.x, self.targets, self.B = x.flatten(0, 1), targets.flatten(0, 1), case.B  # rows
        self.gradients: list[Tensor] = []
        self.laps = Laps(PAPER)

    def __call__(self) -> None:
        engine, (W, R, V) = self.engine, self.weights
        with self.laps.step() as mark:
            p = engine.prepare(self.cell, Weights.of(self.cell, [W, R], bias=False), lasting=False)
            mark()
            _, tape = engine.recur(p, engine.project(p, self.x), None, self.layout)
            assert tape is not None
            mark()
            h = tape.states[0]  # (N, H)
            y = torch.mm(h, V.t()).tanh_()  # (N, I)
            mark()
            mark()  # nothing is left to save
            error = y - self.targets
            error.square().sum().item()
            mark()
            d_W, d_R, d_V = self.gradients = [torch.empty_like(w) for w in self.weights]
            mark()
            d_output = error.mul_(2 / self.B).addcmul_(error * y, y, value=-1)  # 2 (y - target) (1 - y y) / B
            mark()
            others = [None] * (len(self.cell.states) - 1)
            d, _ = engine.recur_vjp(p, tape, [torch.mm(d_output, V), *others], [None, *others])
            mark()
            torch.mm(d_output.t(), h, out=d_V)
            torch.mm(d.d_wx.t(), self.x, out=d_W)
            rows = d_R.split([part.shape[1] for part in d.d_rh])
            for part, to in zip(d.d_rh, rows, strict=True):
                torch.mm(part.t(), tape.before_all(0), out=to)
            mark()
            torch._foreach_add_(self.weights, self.gradients, alpha=-LR)
            mark()


def work(case: Case) -> dict[str, int]:
    """Multiplications and additions of the matrix products."""
    N = 2 * case.T * case.B
    W, R, V = N * case.I * case.gates, N * case.H * case.gates, N * case.H * case.I
    return {
        "2 hidden states": W + R,
        "3 outputs": V,
        "8 d hidden states": R + V,
        "9 weight gradients": W + R + V,
    }


def split(case: Case, repeats: int) -> tuple[Laps, Seconds, str]:
    """-> the phases, the steps beside them, and how far their gradients are apart"""
    check_layer(case.B, case.T, case.I, case.H, case.gates, of=2)
    check_fits(FLOAT * 8 * case.T * case.B * case.I, f"outputs of batch {case.B}, {case.T} steps", "lower one of them")
    model = Rotator(RotateSettings(cell=case.cell, hidden=case.H, engine="fused"), case.I)
    images = torch.rand(case.T + 1, case.B, case.I)
    x, targets = images[:-1], images[1:]
    phased, optimizer = (
        Phased(case, copy.deepcopy(model), x, targets),
        torch.optim.SGD(model.parameters(), LR, fused=True),
    )

    def step() -> None:
        """The same by the task's own network, autograd and optimizer."""
        model.zero_grad()
        loss = squared_error(model(x), targets)
        loss.backward()
        loss.item()
        optimizer.step()

    phased()
    step()
    apart = worst(phased.gradients, [p.grad for p in model.parameters() if p.grad is not None])
    seconds = take_turns({"phases": phased, "step": step}, repeats, warm=False)
    said = f"largest deviation of the phases' gradients from autograd's: {apart:.1e}"
    return phased.laps, seconds, said
