"""Time against length and sizes, errors against work: what cutting time costs and brings, by numbers alone."""

import copy
import warnings

import torch
from torch import nn

from .. import solvers
from ..cells import Cell
from ..errors import PlaitWarning
from ..layers import ImplicitGRU, Recurrent, layer
from ..solvers import Multigrid, Shooting, Solver
from . import time_nets
from .report import interleaved, ratio, timing
from .time_long import trained
from .time_order import Learner, Order, Row, step_of

I = 16


class EulerGRU(Cell):
    """The GRU as a step of Euler's method: h' = h + dt (1 - z)(n - h). On coarse grids it is not stable."""

    gates, states = ("r", "z", "n"), ("h",)

    def step(wx, rh, state, dt, ops):  # type: ignore[no-untyped-def]
        (h,) = state
        r, z = ops.sigmoid(wx[0] + rh[0]), ops.sigmoid(wx[1] + rh[1])  # type: ignore[index]
        n = ops.tanh(wx[2] + r * rh[2])  # type: ignore[index]
        return h + dt * (1 - z) * (n - h)


def with_solver(module: Recurrent, solver: Solver) -> Recurrent:
    twin = copy.deepcopy(module)
    twin.solver = solver
    return twin


# --- time against the number of steps
def length(order: Order) -> list[Row]:
    """A network that has learnt nothing: it forgets quickly."""
    rows = []
    for T in (128, 512, 2048) if order.quick else (128, 256, 512, 1024, 2048, 4096, 8192, 16384):
        torch.manual_seed(order.seed)
        x, plain = torch.randn(T, 1, I), ImplicitGRU(I, 64)
        contenders = {
            "serial": step_of(plain, x),
            "shooting": step_of(with_solver(plain, Shooting()), x, torch.tensor([0])),
            "multigrid": step_of(with_solver(plain, Multigrid(fallback=False)), x),
            "torch": step_of(nn.GRU(I, 64), x),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlaitWarning)  # that short ones are not cut
            seconds = interleaved(contenders, order.repeats, least=0.02)
        faster = ratio(seconds["serial"], seconds["shooting"])
        times = {f"{name} ms": 1e3 * timing(s).median for name, s in seconds.items()}
        rows.append({"T": T, **times, "faster": faster.median, "low": faster.low, "high": faster.high})
    order.remarks.append(
        "length: one sequence, 64 units, both passes; shooting from the last visit's states, multigrid as published (3 "
        "levels, coarsening 4, 2 + 1 iterations); faster: shooting than one walk."
    )
    return rows


# --- the error of the gradient
def error(order: Order) -> list[Row]:
    name, H, delay, steps, T = ("recall 20", 32, 20, 1200, 1024) if order.quick else ("recall 50", 64, 50, 6000, 4096)
    remembers = trained(order, name, H, time_nets.recall, delay, steps)
    fresh = copy.deepcopy(remembers)
    fresh.name, fresh.rnn = "fresh", ImplicitGRU(time_nets.I, H)
    tried: list[Solver] = [Shooting(8, 0.999, w, False) for w in (0, 32, 64, 128, 192, 256)]
    tried += [Multigrid(levels, 4, n, n, fallback=False) for levels in (2, 3) for n in (1, 2, 4, 8)]
    rows = []
    for net in (fresh, remembers):
        x, y = net.data(T, 1, delay, torch.Generator().manual_seed(order.seed + 7))
        for solver in tried:
            learner = Learner(net, solver)
            off = learner.off(x, y)
            there, back = measured(learner, x, y)
            kind = f"{solver.name}, {about(solver)}"
            rows.append(
                {"network": net.name, "solver": kind, "gradient off": off, "work there": there, "work back": back}
            )
    order.remarks.append(
        "error: gaps below a tenth (of gradients, three tenths) are not repaired; there is no way back to one walk; "
        "end to end, against back-propagation through one walk; work: steps taken for each step of the sequence."
    )
    return rows


def measured(learner: Learner, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    learner.net.mean_loss(x, y).backward()
    there, back = learner.net.rnn.last_solve
    assert back is not None
    return there.work, back.work


def about(solver: Solver) -> str:
    if isinstance(solver, Shooting):
        return f"warm-up {solver.warmup}"
    assert isinstance(solver, Multigrid)
    return f"{solver.levels} levels, {solver.forward_iterations} iterations"


# --- the residual, by iteration
def residual(order: Order) -> list[Row]:
    """What the implicit step is for: a coarse step of Euler's method is not stable."""
    H, steps, rows = 32, 1200, []
    implicit = trained(order, "recall 20", H, time_nets.recall, 20, steps)
    classic = time_nets.train("recall 20", "gru", H, time_nets.recall, 20, steps=steps, seed=order.seed)
    x = implicit.data(256 if order.quick else 1024, 1, 20, torch.Generator().manual_seed(order.seed))[0]
    for network in ("fresh", "recall 20"):
        for name, cell in (("GRU, Euler's step", EulerGRU), ("GRU", "gru"), ("implicit GRU", "implicit_gru")):
            torch.manual_seed(order.seed)
            rnn = layer(cell, time_nets.I, H)
            if network != "fresh":
                rnn.load_state_dict((implicit if cell == "implicit_gru" else classic).rnn.state_dict())
            for c in (4, 16):
                row: Row = {"network": network, "cell": name, "coarse step": c}
                for n in range(1, 6):
                    rnn.solver = Multigrid(2, c, n, 1, fallback=False)
                    row[str(n)] = gap(rnn, x)
                rows.append(row)
    order.remarks.append(
        "residual: the largest gap between two pieces after 1 to 5 iterations, relative to the states."
    )
    return rows


def gap(rnn: Recurrent, x: torch.Tensor) -> float | None:
    try:
        rnn(x)
    except solvers.NotFinite:
        return None
    return rnn.last_solve.forward.residual


# --- where one walk wins
def where(order: Order) -> list[Row]:
    sizes = [(B, H, T) for H in (32, 64, 128, 256) for B in (1, 2, 4, 8) for T in (1024, 4096)]
    rows = []
    for B, H, T in [(1, 32, 1024), (4, 32, 1024)] if order.quick else sizes:
        torch.manual_seed(order.seed)
        x, plain = torch.randn(T, B, I), ImplicitGRU(I, H)
        pieces = max(2, 4 * torch.get_num_threads() // B)
        cut = with_solver(plain, Shooting(pieces, fallback=False))
        contenders = {"serial": step_of(plain, x), "shooting": step_of(cut, x, torch.arange(B))}
        seconds = interleaved(contenders, order.repeats, least=0.02)
        faster = ratio(seconds["serial"], seconds["shooting"])
        best = "shooting" if faster.low > 1 else "one walk" if faster.high < 1 else "neither"
        found = {"shooting": faster.median, "low": faster.low, "high": faster.high, "faster is": best}
        rows.append({"B": B, "H": H, "T": T, "pieces": pieces, **found})
    order.remarks.append(
        f"where: one walk's time over shooting's, on {torch.get_num_threads()} threads, for a network that forgets "
        "quickly; a network that remembers needs longer warm-ups."
    )
    return rows
