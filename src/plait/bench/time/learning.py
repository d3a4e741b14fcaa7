"""Classifiers that are trained with time cut into pieces: their accuracy by epoch, and the time of a batch."""

import copy
import time
from dataclasses import replace

import torch
from torch import Tensor

from ... import solvers
from ...layers import ImplicitGRU, Recurrent, layer
from ...solvers import Multigrid, Shooting
from ...tasks.classify import Classify, read_all
from ...tasks.dataset import Dataset
from ...tasks.pooled import Pooled
from ...tasks.settings import ClassifySettings
from ...training.loop import train
from ..classify.measure import made_up
from ..core.turns import Row, spread, take_turns
from .nets import Order, step_of

PUBLISHED = "multigrid:fallback=no"  # 3 levels, coarsening 4, 2 + 1 iterations, FCF
WAYS = {  # name -> cell, solver
    "one walk, GRU": ("gru", "serial"),
    "one walk": ("implicit_gru", "serial"),
    "shooting, 4 pieces": ("implicit_gru", "shooting:chunks=4,fallback=no"),
    "multigrid, 2 levels": ("implicit_gru", "multigrid:levels=2,coarsening=32,backward_iterations=2,fallback=no"),
    "multigrid, published": ("implicit_gru", PUBLISHED),
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
            "accuracy": accuracy(self.model, self, exact=True),
            "by its own pass": accuracy(self.model, self, exact=False),
            "gradient off": spread(self.off).median if self.off else 0.0,
            "in parallel": solvers.share(self.model) or 0.0,
            "watching": self.watching,
        }
        self.off, self.watching = [], 0.0
        return found


def accuracy(model: Pooled, task: Classify, *, exact: bool) -> float:
    """On the test part: with one exact walk, or with the solver, as in training."""
    test, right, model = task.data.parts["test"], 0, copy.deepcopy(model)  # its solvers learn nothing here
    model.eval()
    for some in torch.arange(len(test)).split(100):
        with torch.set_grad_enabled(not exact):
            right += int((model(*test.batch(some)).argmax(1) == test.labels[some]).sum())
    return right / len(test)


def learning(order: Order) -> list[Row]:
    s = ClassifySettings(
        data=order.data or "made up", cell="implicit_gru", layers=2, pool="mean", batch="100", lr=1e-3, patience=0,
        epochs=1 if order.quick else 20, hidden=16 if order.quick else 100, seed=order.seed,
    )  # fmt: skip
    source = read_all(s) if order.data else made_up(order.seed)
    data = Dataset.of(source, validation=s.validation, test=s.test, missing=s.missing, seed=s.seed)
    rows = list[Row]()
    for name, (cell, solver) in WAYS.items():
        if order.quick and name == "multigrid, published":
            continue
        settings = replace(s, cell=cell, solver=solver)
        before = 0.0
        for row in train(Watched(settings, data), settings).progress.history:
            rows.append({"trained with": name, **row, "s/epoch": row["seconds"] - before - row["watching"]})
            before = row["seconds"]
    order.remarks.append(
        f"learning: {data.name}, 2 x {s.hidden} units, batch 100, Adam 0.001, one seed; accuracy on the test part by "
        "an exact walk, and by the solver that it was trained with; gradient off: the median of the epoch, end to end."
    )
    return rows


def features(order: Order) -> list[Row]:
    """The wider the input, the more of the work is a product over all steps, which needs no solver."""
    B, T, H, rows = (20, 64, 32, []) if order.quick else (100, 128, 100, [])
    for inputs, made_by in ((9, "sensors"), (512, "ResNet18, ResNet34"), (2048, "ResNet50")):
        if order.quick and inputs > 512:
            continue
        torch.manual_seed(order.seed)
        x = torch.randn(T, B, inputs)
        contenders: dict[str, Recurrent] = {
            "gru": layer("gru", inputs, H, 2),
            "implicit": ImplicitGRU(inputs, H, 2),
            "multigrid": ImplicitGRU(inputs, H, 2, solver=Multigrid(fallback=False)),
            "shooting": ImplicitGRU(inputs, H, 2, solver=Shooting(4, fallback=False)),
        }
        steps = {name: step_of(module, x, torch.arange(B)) for name, module in contenders.items()}
        rows.append({"inputs": f"{inputs}, {made_by}", **take_turns(steps, order.repeats, least=0).ms()})
    order.remarks.append(f"features: batch {B}, {T} steps, 2 x {H} units, both passes.")
    return rows
