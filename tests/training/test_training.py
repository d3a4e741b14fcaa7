"""The loop: every kind of descent, and a run that goes on as if it had never been stopped."""

import functools
import io
import itertools
import json
import math
import operator
import os
import random
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from plait import PlaitError, layers
from plait.data.sampler import Sampler
from plait.training import loop
from plait.training.crew import clip
from plait.training.loop import train
from plait.training.reporter import Lines, Reporter
from plait.training.run import Run
from plait.training.settings import TrainSettings
from plait.training.task import Task


class Recall(Task):
    """A small task with dropout, so that the random state matters: which number came first?"""

    digest = "recall"

    def __init__(self, settings: TrainSettings, stop_after: int | None = None) -> None:
        torch.manual_seed(settings.seed)
        self.model = nn.ModuleDict(
            {"rnn": layers.LSTM(1, 5, 2, dropout=0.3, batch_first=True), "head": nn.Linear(5, 1)}
        )
        self.x = torch.randn(20, 6, 1, generator=torch.Generator().manual_seed(9))
        self.sampler = Sampler(20, settings.batch_size(20), settings.seed)
        self.steps, self.stop_after = 0, stop_after
        self.seen: list[list[int]] = []

    def count(self, indices):
        return len(indices)

    def loss(self, indices):
        self.seen.append(indices.tolist())
        self.steps += 1
        if self.steps == self.stop_after:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does, in the middle of a step
        y, _ = self.model["rnn"](self.x[indices])
        return (self.model["head"](y[:, -1]) - self.x[indices, 0]).square().mean(), len(indices)

    def validate(self):
        y, _ = self.model["rnn"](self.x)
        return (self.model["head"](y[:, -1]) - self.x[:, 0]).square().mean().item()


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    tensors = Run(folder).read_tensors("state.safetensors")[0]
    assert {key.split(".")[0] for key in tensors} >= {"model", "random"}  # there is something to compare
    return tensors


def test_the_learning_rate_warms_up_and_fits_the_batch(tmp_path: Path) -> None:
    """lr * sqrt(batch / lr_batch), from a part of it to all of it in the first steps, and then as the schedule says."""
    used: list[float] = []

    def record(self, *args: object) -> None:
        used.append(self.param_groups[0]["lr"])

    settings = TrainSettings(epochs=3, batch="5", lr=0.4, lr_batch=20, warmup=6, schedule="decay", decay_after=1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.optim.Adam, "step", record)
        outcome = train(Recall(settings), settings, Run(tmp_path))
    full = 0.4 * (5 / 20) ** 0.5
    assert len(used) == 12  # 20 sequences, 5 at a time, three times
    factors = [1.0] * 4 + [0.5] * 4 + [0.25] * 4  # decay after the first epoch
    expected = [full * factor * min(1.0, (k + 1) / 6) for k, factor in enumerate(factors)]
    assert used == pytest.approx(expected)
    assert outcome.progress.history[0]["lr"] == pytest.approx(full)  # the schedule's, without the warm-up


def test_a_batch_of_another_size_needs_a_number() -> None:
    with pytest.raises(PlaitError, match="lr_batch with batch 'full': give the batch as a number"):
        TrainSettings(batch="full", lr_batch=20)


def test_clipping_is_torchs() -> None:
    for most in (0.5, 1e3):
        layer = nn.Linear(4, 3)
        layer(torch.randn(5, 4)).square().sum().backward()
        expected = [p.grad.clone() for p in layer.parameters()]
        twin = [nn.Parameter(torch.zeros_like(g)) for g in expected]
        for p, g in zip(twin, expected, strict=True):
            p.grad = g
        assert clip(list(layer.parameters()), most) == nn.utils.clip_grad_norm_(twin, most).item()
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(layer.parameters(), twin, strict=True))


OPTIONS = [
    {},
    {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05, "schedule": "step"},
    {"optimizer": "sgd", "lr": 0.05, "clip": 0.0, "schedule": "plateau"},
    {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "cosine", "batch": "1"},
    {"batch": "full", "patience": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=[" ".join(map(str, o.values())) or "default" for o in OPTIONS])
@pytest.mark.parametrize("stop_after", [1, 4, 7])  # in the middle of an epoch, at its end, in the next
def test_resume_is_bitwise_a_run_that_never_stopped(options: dict, stop_after: int, tmp_path: Path) -> None:
    settings = TrainSettings(**{"epochs": 4, "batch": "6", "lr": 0.01, **options})
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = train(Recall(settings), settings, Run(tmp_path / "whole"))
    stopped = train(Recall(settings, stop_after), settings, Run(tmp_path / "parts"))
    if len(whole.progress.history) * len(Sampler(20, settings.batch_size(20), 0)) > stop_after:
        assert stopped.interrupted
    torch.manual_seed(12345)  # whatever the new process did before
    resumed = train(Recall(settings), settings, Run(tmp_path / "parts"), resume=True)
    assert not resumed.interrupted
    expected, found = state_of(tmp_path / "whole"), state_of(tmp_path / "parts")
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
    untimed = [[{**row, "seconds": 0, "rate": 0} for row in o.progress.history] for o in (whole, resumed)]
    assert untimed[0] == untimed[1]


def test_resume_every_single_step(tmp_path: Path) -> None:
    settings = TrainSettings(epochs=2, batch="6")
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    train(Recall(settings), settings, Run(tmp_path / "whole"))
    rounds, resume = 0, False
    while train(Recall(settings, stop_after=1), settings, Run(tmp_path / "parts"), resume=resume).interrupted:
        rounds, resume = rounds + 1, True
    assert rounds == 7  # 8 steps in all
    expected, found = state_of(tmp_path / "whole"), state_of(tmp_path / "parts")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_step_matters_to_the_weights(tmp_path: Path) -> None:
    """The test above can fail: a run of one step less ends elsewhere."""
    settings = TrainSettings(epochs=2, batch="6")
    ends = []
    for stop in (None, 7):
        task = Recall(settings, stop)
        train(task, settings)
        ends.append(task.model["head"].weight.detach().clone())
    assert not torch.equal(*ends)


def test_a_finished_run_can_be_given_more_epochs(tmp_path: Path) -> None:
    short, long = (TrainSettings(epochs=n, batch="6") for n in (2, 4))
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    train(Recall(long), long, Run(tmp_path / "whole"))
    train(Recall(short), short, Run(tmp_path / "parts"))
    train(Recall(long), long, Run(tmp_path / "parts"), resume=True)
    expected, found = state_of(tmp_path / "whole"), state_of(tmp_path / "parts")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_sampler_shows_everything_once_in_an_order_of_its_own() -> None:
    sampler = Sampler(10, 4, seed=3)
    epochs = [torch.cat(list(sampler.batches(e))).tolist() for e in range(3)]
    assert all(sorted(order) == list(range(10)) for order in epochs)
    assert len({tuple(order) for order in epochs}) == 3
    assert [b.tolist() for b in sampler.batches(1, 2)] == [b.tolist() for b in sampler.batches(1)][2:]
    assert [len(b) for b in sampler.batches(0)] == [4, 4, 2]
    assert len(sampler) == 3
    assert epochs != [torch.cat(list(Sampler(10, 4, seed=4).batches(e))).tolist() for e in range(3)]


@pytest.mark.parametrize(("batch", "steps"), [("1", 20), ("6", 4), ("full", 1), ("500", 1)])
def test_stochastic_mini_batch_and_full_descent(batch: str, steps: int) -> None:
    settings = TrainSettings(epochs=1, batch=batch)
    task = Recall(settings)
    train(task, settings)
    assert len(task.seen) == steps
    assert sorted(functools.reduce(operator.iadd, task.seen, [])) == list(range(20))


class Scripted(Recall):
    """Known losses, one a step; sgd moves the one weight of the head's bias by lr a step."""

    def __init__(self, settings: TrainSettings, losses: list[float], stop_after: int | None = None) -> None:
        super().__init__(settings, stop_after)
        self.losses = losses

    def loss(self, indices):
        _, count = super().loss(indices)
        bias = self.model["head"].bias.sum()
        return bias - bias.detach() + self.losses[self.steps - 1], count

    def validate(self):
        return None


class Kept(Reporter):
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.rates: list[float] = []

    def step(self, epoch: int, loss: float, rate: float) -> None:
        self.losses.append(loss)
        self.rates.append(rate)


def test_the_loss_of_an_epoch_counts_every_sample_alike() -> None:
    """20 samples in batches of 6, 6, 6 and 2."""
    settings = TrainSettings(epochs=2, batch="6", patience=0)
    task, told = Scripted(settings, [1, 2, 3, 10, 7, 7, 7, 2]), Kept()
    progress = train(task, settings, reporter=told).progress
    assert [row["loss"] for row in progress.history] == pytest.approx([2.8, 6.5])
    assert told.losses == pytest.approx([1, 1.5, 2, 2.8, 7, 7, 7, 6.5])


def test_a_perfect_validation_is_the_best() -> None:
    class Perfect(Scripted):
        def validate(self):
            return [2.0, 0.0, 1.0][self.steps - 1]

    settings = TrainSettings(epochs=3, batch="full", patience=0)
    progress = train(Perfect(settings, [5, 5, 5]), settings).progress
    assert (progress.best, progress.best_epoch) == (0.0, 2)


def test_without_validation_the_training_loss_decides(tmp_path: Path) -> None:
    settings = TrainSettings(epochs=9, batch="full", patience=3, optimizer="sgd", lr=0.5, clip=0.0)
    task = Scripted(settings, [3, 1, 2, 1, 1, 0, 0, 0, 0])
    begin = task.model["head"].bias.item()
    progress = train(task, settings, Run(tmp_path)).progress
    assert [row["validation"] for row in progress.history] == [None] * 5
    assert (progress.best, progress.best_epoch, progress.epoch) == (1, 2, 2 + 3)
    best, last = begin - 2 * 0.5, begin - 5 * 0.5  # each step has a gradient of its own, which is 1
    assert task.model["head"].bias.item() == pytest.approx(best)
    assert Run(tmp_path).read_tensors("model.safetensors")[0]["head.bias"].item() == pytest.approx(best)
    assert state_of(tmp_path)["model.head.bias"].item() == pytest.approx(last)


def test_without_validation_a_plateau_is_one_of_the_training_loss() -> None:
    settings = TrainSettings(epochs=14, batch="full", lr=0.01, schedule="plateau", patience=0)
    rates = [row["lr"] for row in train(Scripted(settings, [1.0] * 14), settings).progress.history]
    assert rates == pytest.approx([0.01] * 12 + [0.001] * 2)
    falling = [1.0 / (k + 1) for k in range(14)]
    rates = [row["lr"] for row in train(Scripted(settings, falling), settings).progress.history]
    assert rates == [0.01] * 14


def test_without_validation_none_is_printed() -> None:
    settings, text = TrainSettings(epochs=2, batch="full"), io.StringIO()
    lines = Lines(Console(file=text, width=100), "samples", "loss {:.4g}".format)
    train(Scripted(settings, [2, 1]), settings, reporter=lines)
    printed = [line.split("  ")[:2] for line in text.getvalue().splitlines()]
    assert printed == [["epoch 1/2", "loss 2"], ["epoch 2/2", "loss 1"]]
    assert "validation" not in text.getvalue()


def test_seconds_and_rates_go_on_over_a_resume(tmp_path: Path, monkeypatch) -> None:
    """On a clock that ticks once whenever it is read, which is once a step."""
    settings, losses = TrainSettings(epochs=2, batch="6", save_every=1e9), [1.0] * 8
    ticks = itertools.count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    stopped = train(Scripted(settings, losses, stop_after=3), settings, Run(tmp_path))
    assert stopped.interrupted
    assert stopped.progress.seconds == 3
    told = Kept()
    progress = train(Scripted(settings, losses), settings, Run(tmp_path), told, resume=True).progress
    assert [row["seconds"] for row in progress.history] == [4, 8]
    assert [row["rate"] for row in progress.history] == [20 / 4, 20 / 4]
    assert told.rates == [2, 6, 6, 6, 5]  # samples a second, of this session's part of the epoch
    assert json.loads((tmp_path / "history.json").read_text())["epochs"] == progress.history


def test_the_model_keeps_the_weights_of_its_best_epoch() -> None:
    settings = TrainSettings(epochs=12, batch="6", lr=0.3)  # too fast on purpose: validation goes up and down
    task = Recall(settings)
    progress = train(task, settings).progress
    values = [row["validation"] for row in progress.history]
    assert progress.best == min(values) != values[-1]
    assert values.index(progress.best) + 1 == progress.best_epoch
    task.model.eval()
    with torch.no_grad():
        assert task.validate() == pytest.approx(progress.best, rel=1e-6)


def test_early_stopping_counts_epochs_without_a_better_one() -> None:
    settings = TrainSettings(epochs=50, batch="6", lr=1e-12, optimizer="sgd", patience=3)

    class Flat(Recall):
        def validate(self):
            return 1.0

    outcome = train(Flat(settings), settings)
    assert outcome.progress.epoch == 1 + 3
    assert not outcome.interrupted


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("cosine", [1.0, (1 + math.cos(math.pi / 4)) / 2, 0.5, (1 + math.cos(3 * math.pi / 4)) / 2]),
        ("step", [1.0, 0.1, 0.01, 0.001]),
    ],
)
def test_schedules(schedule: str, expected: list[float]) -> None:
    settings = TrainSettings(epochs=4, lr=0.01, schedule=schedule)
    progress = train(Recall(settings), settings).progress
    assert [row["lr"] / 0.01 for row in progress.history] == pytest.approx(expected)


def test_plateau_lowers_the_rate_when_nothing_gets_better() -> None:
    settings = TrainSettings(epochs=14, lr=0.01, schedule="plateau", patience=0)

    class Flat(Recall):
        def validate(self):
            return 1.0

    rates = [row["lr"] for row in train(Flat(settings), settings).progress.history]
    assert rates[0] == 0.01
    assert rates[-1] == pytest.approx(0.001)


def test_clipping_bounds_what_the_optimizer_sees() -> None:
    """With sgd and a learning rate of 1, a step is as long as its gradient."""
    for most, longest in ((0.01, 0.01), (0.0, math.inf)):
        settings = TrainSettings(epochs=1, batch="full", optimizer="sgd", lr=1.0, clip=most)
        task = Recall(settings)
        before = nn.utils.parameters_to_vector(task.model.parameters()).detach().clone()
        train(task, settings)
        length = (nn.utils.parameters_to_vector(task.model.parameters()) - before).norm()
        assert length <= longest * 1.001
        assert length > 0.009


def test_a_loss_that_is_no_number_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    settings = TrainSettings(epochs=3, batch="6", save_every=0.0)

    class Broken(Recall):
        def loss(self, indices):
            loss, count = super().loss(indices)
            return loss * (float("nan") if self.steps > 5 else 1.0), count

    with pytest.raises(
        PlaitError,
        match=r"the loss became nan in epoch 2, after 1 steps of it: lower --lr.* last good checkpoint is in",
    ):
        train(Broken(settings), settings, Run(tmp_path))
    assert all(v.isfinite().all() for k, v in state_of(tmp_path).items() if k.startswith("model."))


def test_signal_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    settings = TrainSettings(epochs=2)
    train(Recall(settings, stop_after=1), settings)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_second_interrupt_stops_at_once() -> None:
    settings = TrainSettings(epochs=2)

    class Impatient(Recall):
        def loss(self, indices):
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
            return super().loss(indices)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            train(Impatient(settings), settings)
    finally:
        signal.signal(signal.SIGINT, before)


def test_every_setting_has_its_sentence() -> None:
    assert all(f.metadata["help"].endswith((".", ")")) for f in TrainSettings.options())


def test_an_early_stopped_run_is_over(tmp_path: Path) -> None:
    settings = TrainSettings(epochs=50, batch="6", patience=2, lr=0.1)
    stopped = train(Recall(settings), settings, Run(tmp_path)).progress
    assert stopped.epoch < 50
    before = (tmp_path / "state.safetensors").read_bytes()
    task = Recall(settings)
    again = train(task, settings, Run(tmp_path), resume=True)
    assert not again.interrupted
    assert task.seen == []
    assert (tmp_path / "state.safetensors").read_bytes() == before


class Heard(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_more_patience_takes_an_early_stopped_run_further(tmp_path: Path) -> None:
    """To the weights of a run that had it from the start; and it says where it goes on."""
    little, much = (TrainSettings(epochs=12, batch="6", lr=0.3, patience=p) for p in (1, 0))
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    train(Recall(much), much, Run(tmp_path / "whole"))
    done = train(Recall(little), little, Run(tmp_path / "parts")).progress.epoch
    assert done < 12
    heard = Heard()
    train(Recall(little), little, Run(tmp_path / "parts"), heard, resume=True)
    nothing = "nothing is left to do: no better validation for 1 epoch; give a larger --patience, or 0."
    assert heard.said == [f"run {tmp_path / 'parts'}", nothing]
    heard = Heard()
    train(Recall(much), much, Run(tmp_path / "parts"), heard, resume=True)
    assert heard.said[1] == f"goes on in epoch {done + 1} of 12"
    expected, found = state_of(tmp_path / "whole"), state_of(tmp_path / "parts")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize(
    ("schedule", "advice"), [("constant", "give more --epochs."), ("cosine", "start a new run for more.")]
)
def test_a_run_with_all_its_epochs_done_says_so(schedule: str, advice: str, tmp_path: Path) -> None:
    settings = TrainSettings(epochs=2, batch="6", schedule=schedule)
    train(Recall(settings), settings, Run(tmp_path))
    heard = Heard()
    train(Recall(settings), settings, Run(tmp_path), heard, resume=True)
    assert heard.said[1:] == [f"nothing is left to do: all its epochs (2) are done; {advice}"]


def test_a_run_that_goes_on_in_the_middle_says_where(tmp_path: Path) -> None:
    settings = TrainSettings(epochs=2, batch="6")
    heard = Heard()
    train(Recall(settings, stop_after=3), settings, Run(tmp_path), heard)
    assert heard.said == [f"run {tmp_path}"]
    train(Recall(settings), settings, Run(tmp_path), heard, resume=True)
    assert heard.said[2:] == ["goes on in epoch 1 of 2, after 3 of its 4 steps"]


def test_a_gradient_that_is_no_number_is_not_saved(tmp_path: Path) -> None:
    class Broken(Recall):
        def loss(self, indices):
            loss, count = super().loss(indices)
            if self.steps == 4:
                self.model["head"].bias.register_hook(lambda g: g * float("nan"))
            return loss, count

    for most, what in ((1.0, "the gradient"), (0.0, "a weight")):
        settings = TrainSettings(epochs=3, batch="6", save_every=0.0, clip=most)
        folder = tmp_path / what[-6:]
        folder.mkdir()
        with pytest.raises(PlaitError, match=f"{what} became nan in epoch 1"):
            train(Broken(settings), settings, Run(folder))
        assert all(v.isfinite().all() for k, v in state_of(folder).items() if k.startswith("model."))


def test_a_validation_that_is_no_number_is_an_error() -> None:
    class Broken(Recall):
        def validate(self):
            return float("inf")

    settings = TrainSettings(epochs=2)
    with pytest.raises(PlaitError, match="the validation became inf"):
        train(Broken(settings), settings)


def test_all_random_states_come_back(tmp_path: Path) -> None:
    """Tasks may draw from torch, NumPy and Python alike."""

    class Noisy(Recall):
        def loss(self, indices):
            loss, count = super().loss(indices)
            return loss * (1 + random.random() + np.random.rand() + torch.rand(())), count

    settings = TrainSettings(epochs=2, batch="6")
    ends = []
    for stop in (None, 3):
        random.seed(1)
        np.random.seed(1)
        folder = tmp_path / str(stop)
        folder.mkdir()
        train(Noisy(settings, stop), settings, Run(folder))
        random.seed(2)
        np.random.seed(2)
        train(Noisy(settings), settings, Run(folder), resume=True)
        ends.append(state_of(folder))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_one_process_trains_a_run(tmp_path: Path) -> None:
    settings = TrainSettings(epochs=1)
    with Run(tmp_path).locked(), pytest.raises(PlaitError, match="is being trained by another process"):
        train(Recall(settings), settings, Run(tmp_path))
    train(Recall(settings), settings, Run(tmp_path))


def test_what_a_killed_process_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    young = ".plait.3.partial"  # of a process that writes a picture at this moment, say
    for name in (".plait.1.partial", ".plait.2.partial", young, "notes.partial", ".hidden"):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (time.time() - (3500 if name == young else 3700),) * 2)
    settings = TrainSettings(epochs=1)
    train(Recall(settings), settings, Run(tmp_path))
    files = ["history.json", "model.safetensors", "state.safetensors"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".hidden", young, *files[:2], "notes.partial", files[2]]


def test_resume_needs_a_run() -> None:
    settings = TrainSettings(epochs=1)
    with pytest.raises(ValueError, match="resume needs the run"):
        train(Recall(settings), settings, resume=True)
