"""What does the training loop cost a step, beyond forward, backward and optimizer?"""

import dataclasses
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from ..data.sampler import Sampler
from ..tasks.forecast import Forecast, load_data
from ..tasks.settings import ForecastSettings
from ..training.loop import train
from ..training.run import Run
from .report import Report, interleaved


class Tiny:
    """A task that costs next to nothing: what remains is the loop."""

    def __init__(self, steps: int) -> None:
        self.model, self.size, self.digest = nn.Linear(1, 1), steps, ""
        self.x = torch.ones(steps, 1)

    def loss(self, indices: Tensor) -> tuple[Tensor, int]:
        return self.model(self.x[indices]).square().mean(), len(indices)

    def validate(self) -> None:
        return None


def bare(task: Tiny | Forecast, settings: ForecastSettings) -> None:
    """The same steps, and the same validation, with nothing around them: what anyone would write by hand."""
    optimizer = settings.make_optimizer(task.model)
    size = settings.batch_size(task.size)
    for epoch in range(settings.epochs):
        for indices in Sampler(task.size, size, settings.seed).batches(epoch):
            loss, _ = task.loss(indices)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(task.model.parameters(), settings.clip)
            optimizer.step()
        with torch.no_grad():
            task.validate()


def measure(steps: int, repeats: int, seed: int) -> Report:
    rows = []
    airline = ForecastSettings(seed=seed, patience=0)
    forecast = Forecast(airline, load_data(airline))
    per_epoch = len(Sampler(forecast.size, airline.batch_size(forecast.size), seed))
    cases: dict[str, tuple[ForecastSettings, Tiny | Forecast]] = {
        "one weight": (ForecastSettings(seed=seed, batch="1", epochs=1), Tiny(steps)),
        "airline, lstm 32": (dataclasses.replace(airline, epochs=max(1, steps // per_epoch)), forecast),
    }
    for name, (settings, task) in cases.items():
        done = settings.epochs * len(Sampler(task.size, settings.batch_size(task.size), seed))

        def loop(task: Tiny | Forecast = task, settings: ForecastSettings = settings) -> None:
            with TemporaryDirectory() as folder:
                train(task, settings, Run(Path(folder)))

        def by_hand(task: Tiny | Forecast = task, settings: ForecastSettings = settings) -> None:
            bare(task, settings)

        times = interleaved({"bare": by_hand, "loop": loop}, repeats)
        bare_ms, loop_ms = (times[k].median / done * 1e3 for k in ("bare", "loop"))
        spread = (times["loop"].high - times["loop"].low) / done * 1e3
        rows.append(
            {"task": name, "bare ms": bare_ms, "loop ms": loop_ms, "spread ms": spread, "cost ms": loop_ms - bare_ms}
        )
    return Report(
        "What does the loop cost a step, in ms, beyond forward, backward, validation and optimizer?",
        ("task", "bare ms", "loop ms", "spread ms", "cost ms"),
        rows,
        ["The cost holds the sums, the clock, the history, the best weights and the last checkpoint."],
    )
