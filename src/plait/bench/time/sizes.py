"""Time against length and sizes, errors against work: what cutting time costs and brings."""

import copy
import warnings
from itertools import product

import torch
from torch import nn

from ... import solvers
from ...cells import Cell
from ...errors import PlaitWarning
from ...layers import ImplicitGRU, Recurrent, layer
from ...solvers import Multigrid, Shooting, Solver
from ..core.turns import Row, take_turns
from .nets import I, Learner, Order, recall, step_of


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
            seconds = take_turns(contenders, order.repeats, least=0.02)
        rows.append({"T": T, **seconds.ms(), **seconds.faster("shooting", "serial").row("faster")})
    order.remarks.append(
        "length: one sequence, 64 units, both passes; shooting starts from the states of the last visit; multigrid as "
        "published (3 levels, coarsening 4, 2 + 1 iterations); faster: shooting than one walk."
    )
    return rows


# --- the error of the gradient
def error(order: Order) -> list[Row]:
    name, H, delay, steps, T = ("recall 20", 32, 20, 1200, 1024) if order.quick else ("recall 50", 64, 50, 6000, 4096)
    remembers = order.trained(name, H, recall, delay, steps)
    fresh = copy.deepcopy(remembers)
    fresh.name, fresh.rnn = "fresh", ImplicitGRU(I, H)
    tried: dict[str, Solver] = {}
    for w in (0, 32, 64, 128, 192, 256):
        tried[f"shooting, warm-up {w}"] = Shooting(8, 0.999, w, False)
    for levels, n in product((2, 3), (1, 2, 4, 8)):
        tried[f"multigrid, {levels} levels, {n} iterations"] = Multigrid(levels, 4, n, n, fallback=False)
    rows = []
    for net in (fresh, remembers):
        x, y = net.data(T, 1, delay, torch.Generator().manual_seed(order.seed + 7))
        for kind, solver in tried.items():
            learner = Learner(net, solver)
            off = learner.off(x, y)
            learner.net.mean_loss(x, y).backward()
            forward, backward = learner.net.rnn.last_solve
            assert backward is not None
            work = {"work forward": forward.work, "work backward": backward.work}
            rows.append({"network": net.name, "solver": kind, "gradient off": off, **work})
    order.remarks.append(
        "error: gaps below a tenth (of gradients, three tenths) are not repaired, and nothing falls back to one walk; "
        "end to end, against back-propagation through one walk; work: steps taken for each step of the sequence."
    )
    return rows


# --- the residual, by iteration
def residual(order: Order) -> list[Row]:
    """What the implicit step is for: a coarse step of Euler's method is not stable."""
    H, rows = 32, []
    trained = {cell: order.trained("recall 20", H, recall, 20, 1200, cell).rnn for cell in ("implicit_gru", "gru")}
    x = recall(256 if order.quick else 1024, 1, 20, torch.Generator().manual_seed(order.seed))[0]
    for network in ("fresh", "recall 20"):
        for name, cell in (("GRU, Euler's step", EulerGRU), ("GRU", "gru"), ("implicit GRU", "implicit_gru")):
            torch.manual_seed(order.seed)
            rnn = layer(cell, I, H)
            if network != "fresh":
                rnn.load_state_dict(trained["implicit_gru" if cell == "implicit_gru" else "gru"].state_dict())
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
        faster = take_turns(contenders, order.repeats, least=0.02).faster("shooting", "serial")
        best = "shooting" if faster.low > 1 else "one walk" if faster.high < 1 else "neither"
        rows.append({"B": B, "H": H, "T": T, "pieces": pieces, **faster.row("shooting"), "faster is": best})
    order.remarks.append(
        f"where: one walk's time over shooting's, on {torch.get_num_threads()} threads, for a network that forgets "
        "quickly; a network that remembers needs longer warm-ups."
    )
    return rows
