"""The sections of `bench time`. Their docstrings are printed below the tables."""

import copy
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor, nn

from ... import solvers
from ...cells import Cell
from ...layers import ImplicitGRU, Recurrent, layer
from ...solvers import Multigrid, Serial, Shooting, Solver
from ...tasks.classify import Classify
from ...tasks.dataset import Dataset
from ...tasks.settings import ClassifySettings
from ...training.loop import train
from ..classify.measure import MADE_UP, dataset
from ..core import Report, Row, Seconds, spread, take_turns
from ..core.pictures import measure_sections
from ..questions import TimeOptions
from .nets import Data, I, Net, latch, recall, step_of, trained, with_solver
from .pictures import PANELS
from .ranks import ranks

TABLES = [
    ("network", "H", "T", "loss", "push", "zeros", "serial ms", "shooting ms", "faster", "low", "high", "torch", "off"),
    ("T", "torch ms", "serial ms", "shooting ms", "faster", "low", "high", "multigrid ms"),
    ("network", "solver", "gradient off", "work forward", "work backward"),
    ("network", "cell", "coarse step", "1", "2", "3", "4", "5"),
    ("B", "H", "T", "pieces", "shooting", "low", "high", "faster is"),
    ("inputs", "gru ms", "implicit ms", "multigrid ms", "shooting ms"),
    ("trained with", "epoch", "accuracy", "by its own pass", "gradient off", "in parallel", "s/epoch"),
    ("mesh", "T", "ms", "speed-up", "how"),
]
QUESTION = "What does cutting time bring? Training steps of an implicit GRU, where nothing else is said"
SEQUENCES, STEPS = 5, 20  # unseen sequences, and optimizer steps over them
# what it learns, delay, units, steps of training, steps of a sequence
FULL: list[tuple[Data, int, int, int, list[int]]] = [
    (recall, 50, 64, 6000, [1024, 2048, 4096, 8192, 16384]),
    (recall, 50, 256, 4000, [4096]),
    (latch, 50, 64, 1500, [8192]),
    (recall, 200, 64, 12000, [8192]),
]
QUICK = [(recall, 20, 32, 1200, [8192])]


def long(options: TimeOptions) -> list[Row]:
    """push, zeros: steps until a perturbation, or a start from zeros, has decayed; torch: nn.GRU / shooting."""
    rows = []
    for data, delay, H, steps, lengths in QUICK if options.quick else FULL:
        net = trained(data, delay, H, steps, options.seed)
        rows += [raced(net, H, T, options) for T in lengths]
    return rows


def raced(net: Net, H: int, T: int, options: TimeOptions) -> Row:
    """Blocks of training steps, each from the same weights, with a solver that knows nothing yet."""
    generator = torch.Generator().manual_seed(options.seed + 1000)
    sequences = [net.data(T, 1, net.delay, generator) for _ in range(SEQUENCES)]
    memory = solvers.fading_memory(net.rnn, sequences[0][0])
    watched = with_solver(net, Shooting())
    off = block(watched, sequences, watch=True)
    ways = {
        "serial": lambda: block(with_solver(net, Serial()), sequences),
        "shooting": lambda: block(with_solver(net, Shooting()), sequences),
    }
    seconds = take_turns(ways, options.repeats, least=0)
    by_torch = take_turns({"torch": step_of(nn.GRU(I, H), torch.randn(T, 1, I))}, 2, warm=False, least=0)["torch"]
    row: Row = {"network": net.name, "H": H, "T": T, "loss": net.loss}
    row |= {"push": memory.perturbation, "zeros": memory.zero_start}
    row |= {f"{name} ms": 1e3 * seconds.median(name) / STEPS for name in ways}
    row |= seconds.faster("shooting", "serial").row("faster")
    row["torch"] = min(by_torch) / seconds.median("shooting") * STEPS
    return {**row, "off": max(off), "in parallel": solvers.share(watched.rnn)}


def block(net: Net, sequences: Sequence[tuple[Tensor, Tensor]], watch: bool = False) -> list[float]:
    """Some training steps -> the errors of their gradients, if they are watched"""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    off = []
    for k in range(STEPS):
        (x, y), ids = sequences[k % SEQUENCES], torch.tensor([k % SEQUENCES])
        if watch:
            off.append(net.off(x, y, ids))
        optimizer.zero_grad()
        net.mean_loss(x, y, ids).backward()
        optimizer.step()
    return off


def race(layer: nn.Module, by: Mapping[str, Solver], x: Tensor, repeats: int, **others: nn.Module) -> Seconds:
    """Training steps of a layer with each of the solvers, and of other layers."""
    ids = torch.arange(x.shape[1])
    steps = {name: step_of(other, x, ids if isinstance(other, Recurrent) else None) for name, other in others.items()}
    steps |= {name: step_of(with_solver(layer, solver), x, ids) for name, solver in by.items()}
    return take_turns(steps, repeats, least=0.02)


def length(options: TimeOptions) -> list[Row]:
    """64 units, nothing learnt; multigrid as published (3 levels, coarsening 4, 2 + 1 iterations)."""
    rows = []
    by = {"serial": Serial(), "shooting": Shooting(), "multigrid": Multigrid(fallback=False)}
    for T in (128, 512, 2048) if options.quick else (128, 256, 512, 1024, 2048, 4096, 8192, 16384):
        x = torch.randn(T, 1, I)
        seconds = race(ImplicitGRU(I, 64), by, x, options.repeats, torch=nn.GRU(I, 64))
        rows.append({"T": T, **seconds.ms(), **seconds.faster("shooting", "serial").row("faster")})
    return rows


def error(options: TimeOptions) -> list[Row]:
    """gaps below a tenth are not repaired, nothing falls back to one walk; work: steps taken for each step."""
    delay, H, steps, T = (20, 32, 1200, 1024) if options.quick else (50, 64, 6000, 4096)
    remembers = trained(recall, delay, H, steps, options.seed)
    fresh = copy.deepcopy(remembers)
    fresh.name, fresh.rnn = "fresh", ImplicitGRU(I, H)
    tried: dict[str, Solver] = {}
    for w in (0, 32, 64, 128, 192, 256):
        tried[f"shooting, warm-up {w}"] = Shooting(8, 0.999, w, False)
    for levels, n in product((2, 3), (1, 2, 4, 8)):
        tried[f"multigrid, {levels} levels, {n} iterations"] = Multigrid(levels, 4, n, n, fallback=False)
    rows = []
    for net in (fresh, remembers):
        x, y = net.data(T, 1, delay, torch.Generator().manual_seed(options.seed + 7))
        for kind, solver in tried.items():
            twin = with_solver(net, solver)
            off = twin.off(x, y)
            twin.mean_loss(x, y).backward()
            forward, backward = twin.rnn.last_solve
            assert backward is not None
            work = {"work forward": forward.work, "work backward": backward.work}
            names = {"network": net.name, "method": kind.split(",")[0], "solver": kind}
            rows.append({**names, "gradient off": off, **work})
    return rows


class EulerGRU(Cell):
    """The GRU as a step of Euler's method. On coarse grids it is not stable."""

    gates, states = ("r", "z", "n"), ("h",)

    def step(wx, rh, state, dt, ops):  # type: ignore[no-untyped-def]
        (h,) = state
        r, z = ops.sigmoid(wx[0] + rh[0]), ops.sigmoid(wx[1] + rh[1])  # type: ignore[index]
        n = ops.tanh(wx[2] + r * rh[2])  # type: ignore[index]
        return h + dt * (1 - z) * (n - h)


def residual(options: TimeOptions) -> list[Row]:
    """the largest gap between two pieces after 1 to 5 iterations, relative to the states."""
    H, rows = 32, []
    x = recall(256 if options.quick else 1024, 1, 20, torch.Generator().manual_seed(options.seed))[0]
    kinds: tuple[tuple[str, type[Cell] | str, str], ...] = (
        ("GRU, Euler's step", EulerGRU, "gru"),
        ("GRU", "gru", "gru"),
        ("implicit GRU", "implicit_gru", "implicit_gru"),
    )
    for network, (name, cell, same), c in product(("fresh", "recall 20"), kinds, (4, 16)):
        torch.manual_seed(options.seed)
        rnn = layer(cell, I, H)
        if network != "fresh":
            rnn.load_state_dict(trained(recall, 20, H, 1200, options.seed, same).rnn.state_dict())
        row: Row = {"network": network, "cell": name, "coarse step": c, **dict.fromkeys("12345")}
        for n in range(1, 6):
            rnn.solver = Multigrid(2, c, n, 1, fallback=False)
            with suppress(solvers.NotFinite):
                rnn(x)
                row[str(n)] = rnn.last_solve.forward.residual
        rows.append(row)
    return rows


def where(options: TimeOptions) -> list[Row]:
    """one walk's time over shooting's, for a network that forgets quickly."""
    sizes = [(B, H, T) for H in (32, 64, 128, 256) for B in (1, 2, 4, 8) for T in (1024, 4096)]
    rows = []
    for B, H, T in [(1, 32, 1024), (4, 32, 1024)] if options.quick else sizes:
        pieces = max(2, 4 * torch.get_num_threads() // B)
        by = {"serial": Serial(), "shooting": Shooting(pieces, fallback=False)}
        seconds = race(ImplicitGRU(I, H), by, torch.randn(T, B, I), options.repeats)
        faster = seconds.faster("shooting", "serial")
        best = "shooting" if faster.low > 1 else "one walk" if faster.high < 1 else "neither"
        rows.append({"B": B, "H": H, "T": T, "pieces": pieces, **faster.row("shooting"), "faster is": best})
    return rows


def features(options: TimeOptions) -> list[Row]:
    """batch 100, 128 steps, 2 x 100 units; with --quick 20, 64, 2 x 32."""
    B, T, H, rows = (20, 64, 32, []) if options.quick else (100, 128, 100, [])
    wide = [(9, "sensors"), (512, "ResNet18, ResNet34"), (2048, "ResNet50")]
    by = {
        "implicit": Serial(),
        "multigrid": Multigrid(fallback=False),
        "shooting": Shooting(4, fallback=False),
    }
    for inputs, made_by in wide[:2] if options.quick else wide:
        x, gru = torch.randn(T, B, inputs), layer("gru", inputs, H, 2)
        seconds = race(ImplicitGRU(inputs, H, 2), by, x, options.repeats, gru=gru)
        rows.append({"inputs": f"{inputs}, {made_by}", **seconds.ms()})
    return rows


WAYS = {  # name -> cell, solver
    "one walk, GRU": ("gru", "serial"),
    "one walk": ("implicit_gru", "serial"),
    "shooting, 4 pieces": ("implicit_gru", "shooting:chunks=4,fallback=no"),
    "multigrid, 2 levels": ("implicit_gru", "multigrid:levels=2,coarsening=32,backward_iterations=2,fallback=no"),
    "multigrid, published": ("implicit_gru", "multigrid:fallback=no"),
}
EVERY = 10  # steps, after which the error of a gradient is measured


class Watched(Classify):
    """Looks at the error of a gradient now and then, and at the test part after every epoch."""

    def __init__(self, settings: ClassifySettings, data: Dataset) -> None:
        super().__init__(settings, data)
        self.off, self.steps, self.watching = list[float](), 0, 0.0  # watching: seconds of this epoch

    def loss(self, indices: Tensor) -> tuple[Tensor, int]:
        self.steps += 1
        if self.settings.solver != "serial" and self.steps % EVERY == 0:
            start = time.perf_counter()
            self.off.append(solvers.compare(self.model, lambda: super(Watched, self).loss(indices)[0]).gradient)
            self.watching += time.perf_counter() - start
        return super().loss(indices)

    def figures(self) -> dict[str, float]:
        found = {
            "accuracy": self.right(exact=True),
            "by its own pass": self.right(exact=False),
            "gradient off": spread(self.off).median if self.off else 0.0,
            "in parallel": solvers.share(self.model) or 0.0,
            "watching": self.watching,
        }
        self.off, self.watching = [], 0.0
        return found

    def right(self, *, exact: bool) -> float:
        """The share of the test part, by an exact walk or by the solver."""
        test, model = self.data.parts["test"], copy.deepcopy(self.model).eval()
        with torch.set_grad_enabled(not exact):
            found = [model(*test.batch(some)).argmax(1) for some in torch.arange(len(test)).split(100)]
        return float((torch.cat(found) == test.labels).double().mean())


def learning(options: TimeOptions) -> list[Row]:
    """accuracy on the test part, by an exact walk or by the solver that it was trained with; one seed."""
    s = ClassifySettings(
        data=options.data or MADE_UP, cell="implicit_gru", layers=2, pool="mean", batch="100", lr=1e-3, patience=0,
        epochs=1 if options.quick else 20, hidden=16 if options.quick else 100, seed=options.seed,
    )  # fmt: skip
    data, rows = dataset(s), list[Row]()
    for name in list(WAYS)[: 4 if options.quick else 5]:
        settings = replace(s, cell=WAYS[name][0], solver=WAYS[name][1])
        before = 0.0
        for row in train(Watched(settings, data), settings).progress.history:
            rows.append({"trained with": name, **row, "s/epoch": row["seconds"] - before - row["watching"]})
            before = row["seconds"]
    return rows


def measure(options: TimeOptions) -> Report:
    sections = (long, length, error, residual, where, features, learning, ranks)
    return measure_sections(QUESTION, sections, TABLES, PANELS, options)
