"""The fourth paper's ten phases of a training step, on its network.

h = tanh(W x + R h), y = tanh(V h), summed squared error, plain gradient descent.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ... import cells
from ...engines import Layout, Weights
from ...engines.fused import FusedEngine
from ...ladder.compare import worst
from ...tasks.memory import FLOAT, check_fits, check_layer
from ...tasks.rotate import Rotator, squared_error
from ...tasks.settings import RotateSettings
from ..core.steps import Case

Run = Callable[[], Iterator[None]]  # a step that yields where a phase ends
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
PRODUCTS = ("2 hidden states", "3 outputs", "8 d hidden states", "9 weight gradients")
COLUMNS = ("phase", "paper %", "share %", "ms", "low", "high", "GFLOP/s", "peak %")
QUESTION = "Where does a training step of the rotating network spend its time, beside that of the fourth paper?"
REMARKS = (
    "share: of the sum. step: the task's own, with autograd.",
    "4: the paper copies what the backward pass needs; here the forward pass has written it there.",
)
LR = 1e-6  # so small that many steps lead nowhere


def phased(case: Case, weights: list[Tensor], x: Tensor, targets: Tensor, gradients: list[Tensor]) -> Run:
    """A step, phase by phase. weights: W, R, V. gradients: where they are put; x, targets: rows"""
    cell, layout, engine, (W, R, V) = cells.get(case.cell), Layout(case.T, case.B), FusedEngine(), weights
    others = [None] * (len(cell.states) - 1)

    def run() -> Iterator[None]:
        p = engine.prepare(cell, Weights.of(cell, [W, R], bias=False), lasting=False)
        yield
        _, tape = engine.recur(p, engine.project(p, x), None, layout)
        assert tape is not None
        yield
        h = tape.states[0]  # (N, H)
        y = torch.mm(h, V.t()).tanh_()  # (N, I)
        yield
        yield  # nothing is left to save
        error = y - targets
        error.square().sum().item()
        yield
        d_W, d_R, d_V = gradients[:] = [torch.empty_like(w) for w in weights]
        yield
        d_output = error.mul_(2 / case.B).addcmul_(error * y, y, value=-1)  # 2 (y - target) (1 - y y) / B
        yield
        d, _ = engine.recur_vjp(p, tape, [torch.mm(d_output, V), *others], [None, *others])
        yield
        torch.mm(d_output.t(), h, out=d_V)
        torch.mm(d.d_wx.t(), x, out=d_W)
        rows = d_R.split([part.shape[1] for part in d.d_rh])
        for part, to in zip(d.d_rh, rows, strict=True):
            torch.mm(part.t(), tape.before_all(0), out=to)
        yield
        torch._foreach_add_(weights, gradients, alpha=-LR)
        yield

    return run


def work(case: Case) -> dict[str, int]:
    """Multiplications and additions of the matrix products."""
    N = 2 * case.T * case.B
    W, R, V = N * case.I * case.gates, N * case.H * case.gates, N * case.H * case.I
    return dict(zip(PRODUCTS, (W + R, V, R + V, W + R + V), strict=True))


def contenders(case: Case) -> tuple[Run, Callable[[], None], str]:
    """-> a step by phases, the task's own, and how far their gradients are apart"""
    check_layer(case.B, case.T, case.I, case.H, case.gates, of=2)
    check_fits(FLOAT * 8 * case.T * case.B * case.I, f"outputs of batch {case.B}, {case.T} steps", "lower one of them")
    model = Rotator(RotateSettings(cell=case.cell, hidden=case.H, engine="fused"), case.I)
    weights, gradients = [p.detach().clone() for p in model.parameters()], list[Tensor]()
    images = torch.rand(case.T + 1, case.B, case.I)
    x, targets = images[:-1], images[1:]
    run = phased(case, weights, x.flatten(0, 1), targets.flatten(0, 1), gradients)
    optimizer = torch.optim.SGD(model.parameters(), LR, fused=True)

    def step() -> None:
        model.zero_grad()
        loss = squared_error(model(x), targets)
        loss.backward()
        loss.item()
        optimizer.step()

    list(run())
    step()
    apart = worst(gradients, [p.grad for p in model.parameters() if p.grad is not None])
    return run, step, f"largest deviation of the phases' gradients from autograd's: {apart:.1e}"
