"""Training a real model to the end: with `fused` the learning curve is that of `torch`."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import plait
from plait.tasks.forecast import Forecast, load_data
from plait.tasks.settings import ForecastSettings
from plait.training.loop import train
from plait.training.run import Run
from reference import data_file

SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]


def motion(part: str) -> tuple[Tensor, Tensor]:
    """Windows of smartphone motion (N, 128, 9), and what the person was doing (N,)."""
    with zipfile.ZipFile(data_file("uci-har-reduced.zip")) as file:

        def table(name: str) -> np.ndarray:
            return np.loadtxt(io.BytesIO(file.read(f"UCI HAR Dataset/{part}/{name}_{part}.txt")), dtype=np.float32)

        x = np.stack([table(f"Inertial Signals/{signal}") for signal in SIGNALS], -1)
        return torch.from_numpy(x), torch.from_numpy(table("y")).long() - 1


class Classifier(nn.Module):
    def __init__(self, engine: str) -> None:
        super().__init__()
        self.gru = plait.GRU(9, 64, 2, batch_first=True, engine=engine)
        self.head = nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0].mean(1))


def learn(engine: str, x: Tensor, y: Tensor, epochs: int) -> tuple[list[float], Classifier]:
    """The mean loss of each epoch. The steps become shorter and end at zero: a trajectory that can be repeated.

    (With Adam at 1e-3 nobody repeats one: torch on one thread is 3e-2 away from torch on two after ten epochs, from
    differences in the last bit, and as far in float64.)
    """
    torch.manual_seed(0)
    model = Classifier(engine)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(x) // 100))
    losses = []
    for _ in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(x)).split(100):
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            total += loss.item() * len(rows)
        losses.append(total / len(x))
    return losses, model


def test_motion_classifier_learns_the_same_in_one_epoch() -> None:
    x, y = motion("test")
    losses = {engine: learn(engine, x, y, 1)[0] for engine in ("fused", "torch")}
    assert losses["fused"] == pytest.approx(losses["torch"], abs=1e-4)


@pytest.mark.slow
def test_motion_classifier_trained_to_the_end() -> None:
    (x, y), (x_test, y_test) = motion("train"), motion("test")
    losses, models = {}, {}
    for engine in ("fused", "torch"):
        losses[engine], models[engine] = learn(engine, x, y, 30)
    print(losses)
    assert losses["fused"] == pytest.approx(losses["torch"], abs=1e-3)
    with torch.no_grad():
        right = {engine: (model(x_test).argmax(1) == y_test).float().mean().item() for engine, model in models.items()}
    print(right)
    assert min(right.values()) > 0.8
    assert right["fused"] == pytest.approx(right["torch"], abs=0.01)


def test_airline_forecaster_trained_to_the_end(tmp_path: Path) -> None:
    history = {}
    for engine in ("fused", "torch"):
        settings = ForecastSettings(engine=engine, seed=0)
        (tmp_path / engine).mkdir()
        outcome = train(Forecast(settings, load_data(settings)), settings, Run(tmp_path / engine))
        history[engine] = outcome.progress.history
    assert len(history["fused"]) == len(history["torch"]) > 10
    for ours, theirs in zip(history["fused"], history["torch"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
