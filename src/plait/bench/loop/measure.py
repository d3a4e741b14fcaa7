"""The loop's own share of a run: of a task of one weight, and of the airline forecaster.

The calls that any loop must make are timed where they are made; the rest of the wall clock is the loop's own. The
difference of two runs, one of them without the loop, would be lost in noise: 0.02 ms of 3.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from ...data.sampler import Sampler
from ...tasks.forecast import Forecast, load_data
from ...tasks.settings import ForecastSettings
from ...training import crew
from ...training.checkpoint import State
from ...training.loop import train
from ...training.run import Run
from ...training.task import Task
from ..core import Report, spread
from ..questions import LoopOptions


class Tiny(Task):
    """A task that costs next to nothing: what remains is the loop."""

    digest = ""

    def __init__(self, steps: int) -> None:
        self.model = nn.Linear(1, 1)
        self.x, self.sampler = torch.ones(steps, 1), Sampler(steps, 1)

    def loss(self, indices: Tensor) -> tuple[Tensor, int]:
        return self.model(self.x[indices]).square().mean(), len(indices)

    def count(self, indices: Tensor) -> int:
        return len(indices)

    def validate(self) -> None:
        return None


class Clock:
    """Adds up the seconds spent inside the calls that it watches, and what the watching itself takes."""

    def __init__(self) -> None:
        self.seconds, self.toll = 0.0, 0.0
        nothing, start = self.watched(lambda: None), time.perf_counter()
        for _ in range(1000):
            nothing()
        self.toll = (time.perf_counter() - start - self.seconds) / 1000  # a call
        self.seconds = 0.0

    def watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                self.seconds += time.perf_counter() - start + self.toll

        return timed


def one_run(task: Tiny | Forecast, settings: ForecastSettings) -> tuple[float, float, float]:
    """Seconds of a whole run, of its two checkpoints, and of the loop beside them."""
    calls, checkpoints = Clock(), Clock()
    watched: tuple[tuple[Any, str], ...] = (
        (task, "loss"),
        (task, "validate"),
        (Tensor, "backward"),
        (crew, "clip"),
        (nn.Module, "zero_grad"),
        (torch.optim.Adam, "step"),  # the settings' default
    )
    with TemporaryDirectory() as folder, ExitStack() as patches:
        for owner, name in watched:
            patches.enter_context(patch.object(owner, name, calls.watched(getattr(owner, name))))
        patches.enter_context(patch.object(State, "save", checkpoints.watched(State.save)))
        start = time.perf_counter()
        train(task, settings, Run(Path(folder)))
        whole = time.perf_counter() - start
    return whole, checkpoints.seconds, whole - calls.seconds - checkpoints.seconds


def measure(options: LoopOptions) -> Report:
    steps, seed = options.steps, options.seed
    settings = ForecastSettings(seed=seed, patience=0)
    airline = Forecast(settings, load_data(settings))
    epochs = max(1, steps // len(airline.sampler))
    cases: list[tuple[str, Tiny | Forecast, ForecastSettings]] = [
        ("one weight", Tiny(steps), ForecastSettings(seed=seed, batch="1", epochs=1)),
        ("airline, lstm 32", airline, dataclasses.replace(settings, epochs=epochs)),
    ]
    rows = []
    for name, task, settings in cases:
        done = settings.epochs * len(task.sampler)
        one_run(task, settings)  # warm
        runs = [one_run(task, settings) for _ in range(options.repeats)]
        step, checkpoint, own = (spread([run[k] * 1e3 / n for run in runs]) for k, n in enumerate((done, 2, done)))
        times = {"step ms": step.median, **own.row("loop ms"), "checkpoint ms": checkpoint.median}
        rows.append({"task": name, **times})
    return Report(
        "What does the loop cost a step, in ms, beyond forward, backward, validation and optimizer?",
        [("task", "step ms", "loop ms", "low", "high", "checkpoint ms")],
        rows,
        ["loop: sums, clock, sampler, history, best weights; a checkpoint is written every 10 s (--save-every)."],
    )
