"""Forecast: a series of numbers in, its next values out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data import series
from ..data.sampler import Sampler
from ..data.series import SeasonalScale, Series, Values
from ..errors import PlaitError, between, counted
from ..layers import layer, packed
from ..solvers import Serial
from ..training.run import Run
from .base import SampleTask, Table
from .memory import at_once, build_model
from .pictures import forecast_picture
from .settings import ForecastSettings

MOST_STEPS = 100_000  # that are forecast at once


class Forecaster(nn.Module):
    """Scaled changes (B, window) in, the next ones out."""

    def __init__(self, settings: ForecastSettings) -> None:
        super().__init__()
        s = settings
        options: dict[str, Any] = {"batch_first": True, "dropout": s.dropout, **s.of_layers()}
        self.encoder = layer(s.cell, 1, s.hidden, s.layers, **options)
        options["solver"] = Serial()
        self.decoder = layer(s.cell, 1, s.hidden, s.layers, **options) if s.decoder == "seq2seq" else None
        self.head = nn.Linear(s.hidden, 1)
        nn.init.zeros_(self.head.weight)  # at first it forecasts the average change
        nn.init.zeros_(self.head.bias)
        self.horizon = s.horizon

    def next_of_each(self, x: Tensor) -> tuple[Tensor, Any]:
        """For every step the one after it, and the last state: (B, T) -> (B, T)"""
        h, state = self.encoder(x.unsqueeze(2))
        return self.head(h).squeeze(2), state

    def horizon_after(self, x: Tensor) -> Tensor:
        """By the decoder, from the last value: (B, window) -> (B, horizon)"""
        assert self.decoder is not None
        _, state = self.encoder(x.unsqueeze(2))
        last = x[:, -1:].expand(-1, self.horizon).unsqueeze(2)  # (B, horizon, 1)
        h, _ = self.decoder(last, state)
        return self.head(h).squeeze(2)  # type: ignore[no-any-return]

    def forecast(self, x: Tensor, steps: int) -> Tensor:
        if self.decoder is not None:
            window, ahead = x.shape[1], x
            while ahead.shape[1] < window + steps:
                ahead = torch.cat([ahead, self.horizon_after(ahead[:, -window:])], 1)
            return ahead[:, window : window + steps]
        h, state = self.encoder(x.unsqueeze(2))
        outputs = [self.head(h[:, -1:]).squeeze(2)]
        while len(outputs) < steps:
            h, state = self.encoder(outputs[-1].unsqueeze(2), state)
            outputs.append(self.head(h).squeeze(2))
        return torch.cat(outputs, 1)


class Forecast(SampleTask):
    name, kind = "forecast", ForecastSettings
    settings: ForecastSettings
    model: Forecaster

    def __init__(self, settings: ForecastSettings, data: Series, *, training: bool = True) -> None:
        s = self.settings = settings
        self.data, self.season = data, s.steps_per_season
        n = len(data.values)
        self.validation_from = n - s.test_size - s.validation_size
        self.test_from = n - s.test_size
        needed = self.season + s.window + s.horizon
        if self.validation_from < needed:
            raise PlaitError(
                f"{data.name} has {n} values, too few: season {self.season} + window {s.window} + horizon {s.horizon} "
                f"for training, {s.validation_size} for validation and {s.test_size} for the test need at least "
                f"{needed + s.validation_size + s.test_size}; choose smaller ones with --window, --horizon, --season, "
                "--validation or --test."
            )
        positive = bool((data.values > 0).all())
        if s.scale == "log" and not positive:
            raise PlaitError(f"{data.name} has values that are not positive: use --scale linear.")
        log = positive and s.scale != "linear"
        self.scale = SeasonalScale.fit(data.values[: self.validation_from], self.season, log)
        values = s.batch_size(n) * (s.window + s.horizon)
        self.model = build_model(s, lambda: Forecaster(s), values, s.window, training=training)
        changes = self.changes = torch.from_numpy(self.scale.apply(data.values)).float()  # (n - season,)
        span = s.window + (s.horizon if s.decoder == "seq2seq" else 1)
        self.windows = changes[: self.validation_from - self.season].unfold(0, span, 1)  # (count, span)
        self.sampler = Sampler(len(self.windows), s.batch_size(len(self.windows)), s.seed)
        first, end = self.validation_from - self.season, self.test_from - self.season
        self.validation_inputs = changes[first - s.window : end - 1].unfold(0, s.window, 1)  # (count, window), a view
        steps = min(s.horizon, end - first)
        beyond = changes.new_full((steps - 1,), float("nan"))
        self.validation_targets = torch.cat([changes[first:end], beyond]).unfold(0, steps, 1)  # (count, steps)

    @classmethod
    def read(cls, settings: ForecastSettings) -> "Forecast":
        return cls(settings, load_data(settings))

    @classmethod
    def reopen(cls, settings: ForecastSettings, run: Run, *, training: bool = False) -> "Forecast":
        data = series.reopen(run.read("series.csv"), str(run.path / "series.csv"), settings.data or "airline")
        return cls(settings, data, training=training)

    @property
    def digest(self) -> str:
        return self.data.digest

    def files(self) -> dict[str, bytes]:
        return {"series.csv": self.data.as_csv().encode()}

    def about(self) -> list[str]:
        s = self.settings
        return [
            f"{self.data.name}: {len(self.data.values)} values{self.data.notes}, {self.validation_from} to train, "
            f"{s.validation_size} to validate, {s.test_size} to test; column '{self.data.column}'",
            f"{s.cell}, {s.layers} x {s.hidden} units",
        ]

    def loss(self, indices: Tensor) -> tuple[Tensor, int]:
        indices = self.sampler.share(indices, self.rank, self.ranks)
        windows, w = self.windows[indices], self.settings.window
        if self.settings.decoder == "seq2seq":
            predicted, truth = self.model.horizon_after(windows[:, :w]), windows[:, w:]
        else:
            predicted, truth = self.model.next_of_each(windows[:, :-1])[0], windows[:, 1:]
        return nn.functional.mse_loss(predicted, truth), len(indices)

    def validate(self) -> float:
        """Squared error of forecasts from every point of the validation part."""
        predicted = self.forecasts(self.validation_inputs, self.validation_targets.shape[1])
        known = ~self.validation_targets.isnan()
        return (predicted - self.validation_targets)[known].square().mean().item()

    @torch.no_grad()
    def forecasts(self, windows: Tensor, steps: int) -> Tensor:
        """What follows each of many windows: (n, window) -> (n, steps)"""
        self.model.eval()
        n = max(1, at_once(1 + 2 * self.settings.hidden) // self.settings.window)  # a layer's inputs and outputs
        with packed(self.model):
            return torch.cat([self.model.forecast(some.contiguous(), steps) for some in windows.split(n)])

    def ahead(self, values: Values, steps: int) -> Values:
        needed = self.season + self.settings.window
        if len(values) < needed:
            raise PlaitError(f"{len(values)} values are too few to forecast from: season + window need {needed}.")
        changes = self.scale.apply(values[-needed:])
        x = torch.from_numpy(changes).float().unsqueeze(0)  # (1, window)
        return self.scale.extend(values, self.forecasts(x, steps)[0].double().numpy())

    def source(self, data: str | None) -> Series:
        """What is forecast from: the run's own data, or this file."""
        source = self.data if data is None else series.read(data, self.settings.column, self.settings.missing)
        if self.scale.log and not (source.values > 0).all():
            raise PlaitError(
                f"{source.name} has values that are not positive, and the run learned logarithms: train anew."
            )
        return source

    def predict(self, steps: int | None = None, data: str | None = None) -> Values:
        """The next values. steps: a horizon, if not given. data: a file to forecast from, in place of the run's own"""
        steps = self.settings.horizon if steps is None else steps
        between("steps", steps, 1, MOST_STEPS)
        return self.ahead(self.source(data).values, steps)

    def evaluate(self) -> dict[str, Any]:
        """The test part, a horizon at a time from true values."""
        values, h = self.data.values, self.settings.horizon
        blocks = [(o, min(h, len(values) - o)) for o in range(self.test_from, len(values), h)]
        truth = values[self.test_from :]
        ends = [o - self.season for o, _ in blocks]
        windows = torch.stack([self.changes[end - self.settings.window : end] for end in ends])
        following = self.forecasts(windows, blocks[0][1]).double().numpy()  # the first block is the longest
        model = np.concatenate(
            [self.scale.extend(values[:o], f[:steps]) for (o, steps), f in zip(blocks, following, strict=True)]
        )
        naive = np.concatenate([series.seasonal_naive(values[:o], self.season, steps) for o, steps in blocks])
        drift = np.concatenate([self.scale.extend(values[:o], np.zeros(steps)) for o, steps in blocks])
        return {
            "from": self.data.labels[self.test_from],
            "steps": len(truth),
            "model": series.errors(model, truth),
            "seasonal naive": series.errors(naive, truth),
            "seasonal naive + drift": series.errors(drift, truth),
            "predicted": model.tolist(),
            "naive": naive.tolist(),
            "drift": drift.tolist(),
        }

    def table(self, metrics: dict[str, Any]) -> Table:
        rows = []
        for key in ("model", "seasonal naive", "seasonal naive + drift"):
            m = metrics[key]
            mape = "-" if m["mape"] is None else f"{m['mape']:{'.2f' if m['mape'] < 1e6 else '.2e'}} %"
            rows.append([self.settings.cell if key == "model" else key, f"{m['rmse']:,.4g}", f"{m['mae']:,.4g}", mape])
        title = (
            f"last {metrics['steps']} values, never seen in training, {self.settings.horizon} ahead at a time from the "
            "true past:"
        )
        return Table(title, ["", "RMSE", "MAE", "MAPE"], rows)

    def pictures(self, metrics: dict[str, Any], history: Sequence[dict[str, Any]]) -> dict[str, bytes]:
        ours = f"{self.settings.cell}, {counted(self.settings.horizon, 'step')} at a time"
        lines = [
            ("truth", self.data.values[self.test_from :], "0.35 :"),
            ("seasonal naive", metrics["naive"], "tab:orange --"),
            ("seasonal naive + drift", metrics["drift"], "tab:green --"),
            (ours, metrics["predicted"], "tab:blue -"),
        ]
        return {"forecast.png": forecast_picture(self.data, lines, self.test_from, self.data.labels, self.season)}

    def afterwards(self, folder: Path) -> tuple[str, str]:
        return "forecast", f"plait forecast {folder} --steps {self.settings.horizon}"


def load_data(settings: ForecastSettings) -> Series:
    if settings.data is None:
        if settings.column is not None:
            raise PlaitError(f"column '{settings.column}' goes with --data: the airline series has one column.")
        return series.airline()
    return series.read(settings.data, settings.column, settings.missing)
