"""plait.Trainer: what the command line does, from Python; and models of one's own, which go on bit for bit."""

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import data

import plait
from plait import PlaitError, Trainer
from plait.data import Sampler
from plait.errors import PlaitWarning
from plait.kernels.launch import costs
from plait.training import signals
from plait.training.run import Run
from processes import check_same_bits, killed, names, start, weights

QUICK = {"epochs": 3, "hidden": 4, "progress": False}
mse = nn.functional.mse_loss


class Net(nn.Module):
    """With dropout, so that random states matter, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(3)
            self.rnn = plait.LSTM(2, 6, 2, dropout=0.3, batch_first=True)
            self.head, self.twin = nn.Linear(6, 1), nn.Linear(6, 1)
            self.twin.weight = self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.rnn(x)
        return self.head(y[:, -1]) + self.twin(y[:, 0])


def numbers(n: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 5, 2, generator=torch.Generator().manual_seed(9))
    return x, x.sum((1, 2))[:, None] / 5


class Noisy(data.Dataset):
    """Samples with noise from all three global generators."""

    def __init__(self) -> None:
        self.x, self.y = numbers()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.rand(()) + np.random.rand() + random.random()
        return self.x[k] + 0.01 * noise.float(), self.y[k]


def loader(**options: Any) -> data.DataLoader:
    return data.DataLoader(Noisy(), **{"batch_size": 6, "shuffle": True, **options})


DATA: dict[str, Callable[[], Any]] = {
    "tensors": numbers,
    "a TensorDataset": lambda: data.TensorDataset(*numbers()),
    "samples": lambda: list(zip(*numbers(), strict=True)),
    "a Dataset": Noisy,
    "a DataLoader": loader,
    "in order": lambda: loader(shuffle=False),
    "a generator": lambda: loader(generator=torch.Generator().manual_seed(5)),
    "workers": lambda: loader(num_workers=2, generator=torch.Generator().manual_seed(5)),
    "plait's sampler": lambda: data.DataLoader(Noisy(), batch_sampler=Sampler(20, 6, 1)),
    "weights": lambda: loader(shuffle=False, sampler=data.WeightedRandomSampler([1.0] * 20, 20)),
}


def own(kind: str = "tensors", **options: Any) -> Trainer:
    found = DATA[kind]()
    batch = {} if isinstance(found, data.DataLoader) else {"batch": 6}
    chosen = {"loss": mse, "validation": numbers(7), "epochs": 4, "lr": 0.01, "progress": False, **batch, **options}
    return Trainer(Net(), data=found, **chosen)


def again(path: str, kind: str = "tensors", **options: Any) -> Trainer:
    given = {"data": DATA[kind](), "loss": mse, "validation": numbers(7), "progress": False, **options}
    return Trainer.resume(path, Net(), **given)


def stop_in(epoch: int) -> Callable[[dict], None]:
    """Ctrl-C at the end of an epoch: it stops after the next step."""
    return lambda row: signal.raise_signal(signal.SIGINT) if row["epoch"] == epoch else None


def untimed(history: list[dict]) -> list[dict]:
    return [{**row, "seconds": 0, "rate": 0} for row in history]


# --- tasks -----------------------------------------------------------------------------------------------------------
def test_a_task_is_trained_as_the_command_line_trains_it(plait) -> None:
    assert plait("train", "forecast", "--epochs", "3", "--hidden", "4", "--dropout", "0.2", "--layers", "2")[0] == 0
    trainer = Trainer("forecast", **QUICK, dropout=0.2, layers=2, out="python")
    torch.rand(7)  # what the program does meanwhile does not matter
    history = trainer.fit()
    assert trainer.save() == trainer.path == Path("python")
    check_same_bits("runs/forecast-1", "python")
    one, other = Path("runs/forecast-1"), Path("python")
    assert names(one) == names(other)
    assert (one / "config.json").read_bytes() == (other / "config.json").read_bytes()
    assert (one / "forecast.png").read_bytes() == (other / "forecast.png").read_bytes()
    found = [json.loads((folder / "history.json").read_text()) for folder in (one, other)]
    assert untimed(found[0]["epochs"]) == untimed(found[1]["epochs"]) == untimed(history)
    assert found[0]["test"] == found[1]["test"] == trainer.evaluate()
    states = [Run(folder).read_tensors("state.safetensors")[0] for folder in (one, other)]
    assert all(torch.equal(t, states[1][name]) for name, t in states[0].items())  # random states, too


def test_a_run_of_the_command_line_goes_on_in_python_and_back(plait) -> None:
    common = ("train", "forecast", "--hidden", "4", "--patience", "0")
    assert plait(*common, "--epochs", "4", "--out", "whole")[0] == 0
    assert plait(*common, "--epochs", "1", "--out", "parts")[0] == 0
    trainer = Trainer.resume("parts", epochs=2, progress=False)
    assert [row["epoch"] for row in trainer.fit()] == [1, 2]
    assert plait("train", "forecast", "--resume", "parts", "--epochs", "3")[0] == 0
    Trainer.resume(Path("parts"), epochs=4, out="./parts", progress=False).fit()
    check_same_bits("whole", "parts")


def test_progress_is_what_the_command_line_prints(plait, capsys) -> None:
    _, printed, _ = plait("train", "forecast", "--epochs", "3", "--hidden", "4", "--out", "a")
    Trainer("forecast", epochs=3, hidden=4, out="b").fit()
    found = capsys.readouterr().out
    for shown in (found, printed):
        assert "lstm, 1 x 4 units, 117 parameters\nengine fused (auto), " in shown
        assert "epoch 3/3  loss " in shown
    assert found.splitlines()[:4] == [line.replace("run a", "run b") for line in printed.splitlines()[:4]]
    rows: list[dict] = []
    history = Trainer("forecast", **QUICK, on_epoch=rows.append).fit()
    assert capsys.readouterr() == ("", "")
    assert rows == history


def test_load_predict_and_evaluate(plait) -> None:
    trainer = Trainer("forecast", **QUICK)
    trainer.fit()
    ahead = trainer.predict(steps=3)
    assert not list(Path().iterdir())  # nothing is written before `save`
    assert trainer.save("mine") == Path("mine")
    loaded = Trainer.load("mine")
    assert loaded.predict(steps=3).tolist() == ahead.tolist()
    assert len(loaded.predict()) == 12
    assert loaded.evaluate() == trainer.evaluate()
    assert plait("forecast", "mine", "--steps", "3", "--json", "j.json")[0] == 0
    assert json.loads(Path("j.json").read_text())["values"] == ahead.tolist()
    with pytest.raises(PlaitError, match=r"mine was loaded to be used: plait.Trainer.resume goes on"):
        loaded.fit()
    with pytest.raises(PlaitError, match=r"out other: the run has a folder, mine"):
        trainer.save("other")
    Trainer.resume("mine", epochs=4, progress=False).fit()
    Trainer("forecast", **{**QUICK, "epochs": 4}, out="whole").fit()
    check_same_bits("whole", "mine")


def test_a_network_is_asked_once_it_is_trained(empty_folder: Path) -> None:
    untrained = r"there is no trained network: call fit\(\) first"
    for ask in (Trainer.evaluate, Trainer.predict):
        with pytest.raises(PlaitError, match=untrained):
            ask(Trainer("forecast", **QUICK))
    trainer = Trainer("forecast", **QUICK, out="run")
    history = trainer.fit()
    trainer.save()
    expected = trainer.predict(steps=3).tolist()
    for _ in range(2):  # then without the weights, which `fit` does not need
        resumed = Trainer.resume("run", progress=False)
        if Path("run/model.safetensors").exists():
            assert resumed.predict(steps=3).tolist() == expected
            assert resumed.evaluate() == trainer.evaluate()
            assert resumed.history == Trainer.load("run").history == history
            Path("run/model.safetensors").unlink()
        else:
            with pytest.raises(PlaitError, match=r"run/model.safetensors does not exist"):
                resumed.predict(steps=3)
            with pytest.warns(PlaitWarning, match="model.safetensors is missing"):
                resumed.fit()
            assert resumed.predict(steps=3).tolist() == expected


def test_a_run_without_a_finished_epoch_is_not_asked(empty_folder: Path) -> None:
    def fails(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a bug")

    trainer = own(loss=fails, out="run")
    with pytest.raises(RuntimeError, match="a bug"):
        trainer.fit()
    with pytest.raises(PlaitError, match="there is no trained network"):
        trainer.predict(numbers()[0])
    resumed = again("run")
    assert resumed.history == []
    with pytest.raises(PlaitError, match=r"run has no finished epoch yet: call fit\(\) first"):
        resumed.predict(numbers()[0])


def test_a_run_that_was_asked_goes_on_to_the_bit(empty_folder: Path) -> None:
    own("a generator", out="whole").fit()
    with pytest.raises(KeyboardInterrupt):
        own("a generator", out="parts", on_epoch=stop_in(2)).fit()
    trainer = again("parts", "a generator")
    x, _ = numbers()
    assert torch.equal(trainer.predict(x), Trainer.load("parts", Net()).predict(x))
    trainer.evaluate()
    trainer.fit()
    check_same_bits("whole", "parts")


def test_a_run_of_ranks_is_changed_by_fit_alone(empty_folder: Path, monkeypatch) -> None:
    Trainer("forecast", **QUICK, threads=1, out="run").fit()
    run = Run(Path("run"))
    run.write_config({**run.config(), "threads": 2, "parallel": {"mesh": "data=2", "cut": None}})
    before = Path("run/config.json").read_bytes()
    monkeypatch.setattr("plait.system.cpus", lambda: 3)
    trainer = Trainer.resume("run", progress=False)
    assert Path("run/config.json").read_bytes() == before
    trainer.fit()
    config = run.config()
    assert (config["parallel"], config["threads"]) == (None, 3)


def test_other_tasks_predict(empty_folder: Path) -> None:
    Path("book.txt").write_text("one two three four five six seven\n" * 60)
    language = Trainer("language", data=Path("book.txt"), epochs=1, hidden=4, layers=1, progress=False)
    language.fit()
    assert language.predict("one", length=3).startswith("one ")
    rows = [f"{k},{t},{(t * (1 + k % 2)) % 5},{'ab'[k % 2]}" for k in range(40) for t in range(5)]
    Path("walks.csv").write_text("id,time,speed,label\n" + "\n".join(rows) + "\n")
    classify = Trainer("classify", data="walks.csv", epochs=1, hidden=4, progress=False)
    classify.fit()
    found = classify.predict("walks.csv")
    assert len(found) == 40
    assert all(row["class"] in "ab" and sum(row["probabilities"]) == pytest.approx(1) for row in found)


def test_the_process_is_left_as_it_was(plait, monkeypatch) -> None:
    threads = torch.get_num_threads()
    Trainer("forecast", **QUICK, threads=2, out="run").fit()
    used = costs._used  # measured by now
    assert used is not None
    config = Run(Path("run")).config()
    assert config["threads"] == 2
    other = {**config["costs"], "team": 1e-5 / 3}
    Run(Path("run")).write_config({**config, "costs": other})
    torch.manual_seed(7)
    expected, _ = torch.rand(3), torch.manual_seed(7)
    seen: list[object] = []
    trainer = Trainer.resume(
        "run",
        epochs=4,
        progress=False,
        on_epoch=lambda _: seen.append((torch.get_num_threads(), costs.are_used(other))),
    )
    trainer.fit()
    trainer.evaluate()
    assert seen == [(2, True)]
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads
    assert costs._used == used


# --- models of one's own ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", DATA)
def test_a_model_of_ones_own_goes_on_to_the_bit(kind: str, empty_folder: Path) -> None:
    """Stopped in the middle of the third epoch, and resumed with everything made anew."""
    whole = own(kind, out="whole").fit()
    stopped = own(kind, out="parts", on_epoch=stop_in(2))
    with pytest.raises(
        KeyboardInterrupt, match=r"in epoch 3; everything is saved: go on with plait.Trainer.resume..parts"
    ):
        stopped.fit()
    assert stopped.interrupted
    assert signals.resume_command == ""  # no command goes on with it
    assert stopped.outcome.progress.position == 1
    torch.manual_seed(12345)
    trainer = again("parts", kind)
    assert untimed(trainer.fit()) == untimed(whole)
    check_same_bits("whole", "parts")
    expected, found = (Run(Path(name)).read_tensors("state.safetensors")[0] for name in ("whole", "parts"))
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def test_two_epochs_and_two_more_are_four(empty_folder: Path) -> None:
    for kind in ("tensors", "a generator"):
        own(kind, out=f"{kind} whole").fit()
        own(kind, epochs=2, out=f"{kind} parts").fit()
        again(f"{kind} parts", kind, epochs=4).fit()
        check_same_bits(f"{kind} whole", f"{kind} parts")


def test_without_a_folder_it_goes_on_in_the_same_process(empty_folder: Path) -> None:
    own(out="whole").fit()
    trainer = own(on_epoch=stop_in(2))
    with pytest.raises(KeyboardInterrupt, match="go on with fit"):
        trainer.fit()
    trainer.fit()
    assert names(empty_folder) == ["whole"]
    trainer.save("parts")
    check_same_bits("whole", "parts")
    assert own().fit()[-1]["loss"] == trainer.history[-1]["loss"]
    assert trainer.fit() == trainer.history  # nothing is left to do


def test_the_weights_are_those_of_the_best_epoch(empty_folder: Path) -> None:
    trainer = own(lr=0.3, epochs=6, out=True, patience=0)
    history = trainer.fit()
    values = [row["validation"] for row in history]
    assert min(values) != values[-1]
    assert trainer.evaluate()["validation"] == pytest.approx(min(values), rel=1e-6)
    assert trainer.path == Path("runs/model-1")
    model = Net()
    loaded = Trainer.load("runs/model-1", model)
    x, _ = numbers()
    assert loaded.model is model
    assert torch.equal(loaded.predict(x), trainer.predict(x))
    assert not torch.equal(Net().eval()(x), trainer.predict(x))
    for without in (loaded, own(validation=None, epochs=1)):
        if not without.is_loaded:
            without.fit()
        with pytest.raises(PlaitError, match="there is nothing to evaluate on: give validation="):
            without.evaluate()


OWN = """
import sys
from test_trainer import mse, numbers, own
own(epochs=30, patience=0, save_every=0.0, out=sys.argv[1]).fit()
"""


@pytest.mark.parametrize("own", [False, True])
def test_nothing_is_written_before_fit(empty_folder: Path, own: bool) -> None:
    """But what changes is kept when it goes on."""
    if own:
        Trainer(Net(), data=numbers(), loss=mse, epochs=1, out="run", progress=False).fit()
    else:
        Trainer("forecast", **QUICK | {"epochs": 1}, out="run").fit()

    def state() -> dict[str, tuple[int, bytes]]:
        return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in Path("run").iterdir()}

    def resumed(**changes: int) -> Trainer:
        again = (Net(),) if own else ()
        given = {"data": numbers(), "loss": mse} if own else {}
        return Trainer.resume("run", *again, **given, progress=False, **changes)

    before = state()
    trainer = resumed(epochs=3)
    assert trainer.settings.epochs == 3
    assert state() == before
    assert resumed().settings.epochs == 1
    trainer.fit()
    assert len(trainer.history) == 3
    assert json.loads(Path("run/config.json").read_text())["settings"]["epochs"] == 3
    assert resumed().settings.epochs == 3


def test_kill_9_and_resume(empty_folder: Path) -> None:
    own(epochs=30, patience=0, save_every=0.0, out="whole").fit()
    place = {"PYTHONPATH": f"{Path(__file__).parent}:{Path(plait.__file__).parent.parent}"}
    killed(start(OWN, "run", **place), "run", saves=5)
    trainer = again("run")
    assert trainer.fit()[-1]["epoch"] == 30
    check_same_bits("whole", "run")


def optimizers(model: nn.Module) -> dict[str, torch.optim.Optimizer]:
    groups = [{"params": model.head.parameters(), "lr": 0.02}, {"params": model.rnn.parameters()}]
    return {
        "RMSprop": torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5),
        "two groups": torch.optim.AdamW(groups, lr=0.01, amsgrad=True),
        "Adagrad": torch.optim.Adagrad(model.parameters(), lr=0.05),
    }


@pytest.mark.parametrize("name", ["RMSprop", "two groups", "Adagrad"])
def test_an_optimizer_of_ones_own(name: str, empty_folder: Path) -> None:
    def trainer(**options: Any) -> Trainer:
        model = Net()
        return Trainer(model, data=numbers(), loss=mse, batch=6, optimizer=optimizers(model)[name], **common, **options)

    common: dict[str, Any] = {"progress": False, "schedule": "cosine", "epochs": 4}
    trainer(out="whole").fit()
    with pytest.raises(KeyboardInterrupt):
        trainer(out="parts", on_epoch=stop_in(2)).fit()
    with pytest.raises(PlaitError, match=r"was written with optimizer \w+, not adam"):
        Trainer.resume("parts", Net(), data=numbers(), loss=mse, progress=False).fit()
    model = Net()
    given = {"data": numbers(), "loss": mse, "optimizer": optimizers(model)[name], "progress": False}
    Trainer.resume("parts", model, **given).fit()
    check_same_bits("whole", "parts")


def test_an_optimizer_that_keeps_more_than_tensors_is_refused_after_its_first_step(empty_folder: Path) -> None:
    class Counting(torch.optim.SGD):
        steps = 0

        def step(self, closure: Any = None) -> Any:
            self.steps += 1
            for p in self.param_groups[0]["params"]:
                self.state[p]["age"] = self.steps
            return super().step(closure)

    for out in (None, "run"):
        model = Net()
        optimizer = Counting(model.parameters(), lr=0.01)
        trainer = Trainer(model, data=numbers(), loss=mse, batch=6, optimizer=optimizer, out=out, progress=False)
        with pytest.raises(PlaitError, match="optimizer Counting keeps 'age', of type int, and a checkpoint holds"):
            trainer.fit()
        assert optimizer.steps == 1


def test_a_model_that_returns_its_loss(empty_folder: Path) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return mse(self.net(x), y)

    expected = own(validation=None).fit()
    found = Trainer(Whole(), data=numbers(), batch=6, epochs=4, lr=0.01, progress=False).fit()
    assert untimed(found) == untimed(expected)
    samples = [{"x": x, "y": y} for x, y in zip(*numbers(), strict=True)]
    found = Trainer(Whole(), data=samples, batch=6, epochs=4, lr=0.01, progress=False).fit()
    assert untimed(found) == untimed(expected)


def test_what_cannot_go_on_exactly_is_refused(empty_folder: Path) -> None:
    class Secret(Noisy):
        def __init__(self) -> None:
            super().__init__()
            self.noise = random.Random(0)

        def __getitem__(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
            return self.x[k] + self.noise.random(), self.y[k]

    class Order(data.Sampler):
        def __iter__(self):
            return iter(range(20))

        def __len__(self) -> int:
            return 20

    for found, sentence in (
        (Secret(), "data gives other numbers when the same samples are read again with the same seeds"),
        (data.DataLoader(Secret()), "data gives other numbers"),
        (loader(num_workers=1, persistent_workers=True), "persistent_workers=True, whose random states"),
        (loader(shuffle=False, sampler=Order()), r"data has a sampler \(Order\) without set_epoch"),
    ):
        with pytest.raises(PlaitError, match=sentence):
            Trainer(Net(), data=found, loss=mse, out="run")
    assert names(empty_folder) == []
    trainer = Trainer(Net(), data=Secret(), loss=mse, epochs=1, progress=False)
    trainer.fit()  # without a folder it may be so
    with pytest.raises(PlaitError, match="or train without a folder"):
        trainer.save("run")


def test_a_run_goes_on_with_what_it_began_with(empty_folder: Path, refused) -> None:
    own(epochs=1, out="run").fit()
    x, y = numbers()
    for options, sentence in (
        ({"data": (x + 1, y)}, "was written with other data"),
        ({"validation": None}, "was written with other data"),
        ({"data": loader()}, "was written with other data"),
    ):
        with pytest.raises(PlaitError, match=sentence):
            again("run", **options).fit()
    with pytest.raises(PlaitError, match=r"--lr 0.5: the run has 0.01, and --resume goes on with what run began with"):
        again("run", lr=0.5)
    with pytest.raises(PlaitError, match="run has a model of your own: give the model again, with its data and loss"):
        Trainer.resume("run")
    with pytest.raises(PlaitError, match="give the model again, as in load"):
        Trainer.load("run")
    with pytest.raises(PlaitError, match=r"does not fit the model"):
        Trainer.load("run", nn.Linear(2, 2))
    sentence = "run has a model that was trained from Python ('Net'): use plait.Trainer.load, with the model."
    assert sentence in refused("evaluate", "run")
    assert "is a run of task 'model', not 'forecast'" in refused("train", "forecast", "--resume", "run")


class Endless(data.IterableDataset):
    def __iter__(self):
        return iter([])

    def __len__(self) -> int:
        return 20


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **options)


def test_wrong_options_get_a_sentence(empty_folder: Path) -> None:
    model, (x, y) = nn.Linear(2, 1), numbers()
    given: dict[str, Any] = {"data": (x, y), "loss": mse}
    for what, options, sentence in (
        ("forcast", {}, r"task 'forcast' is not known: did you mean 'forecast'\?"),
        (
            3,
            {},
            "3 is neither a task nor a model: expected one of forecast, language, classify, rotate, or an nn.Module",
        ),
        ("forecast", {"hiden": 3}, r"option 'hiden' is not known: did you mean 'hidden'\? Expected one of batch, "),
        ("forecast", {"hidden": 0}, "hidden 0: must be at least 1"),
        ("forecast", {"hidden": "4"}, "hidden '4': expected int"),
        ("forecast", {"batch": 0}, "batch '0': must be a whole number of at least 1"),
        ("forecast", {"threads": 0}, "threads 0: must be at least 1"),
        ("forecast", {"parallel": "data=2"}, "parallel: from Python one process trains; several are started by plait"),
        ("forecast", {"loss": mse}, "loss goes with a model of your own, and task 'forecast' has its own"),
        ("forecast", {"data": "nowhere.csv"}, "nowhere.csv does not exist"),
        ("forecast", {"out": ""}, "--out is empty"),
        (model, {}, "data is missing: expected a tuple of tensors"),
        (model, {**given, "hidden": 3}, "option 'hidden' is not known: "),
        (model, {**given, "data": "sales.csv"}, "data is of type str: expected a tuple of tensors"),
        (model, {**given, "data": (x, y[:3])}, r"data has tensors of shape \(20, 5, 2\), \(3, 1\): expected one or"),
        (model, {**given, "data": []}, "data is empty"),
        (model, {**given, "data": iter([])}, "data is of type list_iterator"),
        (model, {**given, "data": loader(), "batch": 3}, "batch 3 with a DataLoader, which has its own"),
        (model, {**given, "data": data.DataLoader(Endless())}, "data has an IterableDataset, which cannot be read by"),
        (model, {**given, "loss": 3}, "loss is of type int: expected a function of output and target"),
        (model, {**given, "optimizer": "adamm"}, "optimizer 'adamm' is not known: did you mean 'adam'"),
        (model, {**given, "optimizer": sgd(model, lr=0.1), "lr": 0.1}, "lr 0.1 with an Optimizer, which has its own"),
        (model, {**given, "optimizer": sgd(nn.Linear(1, 1))}, "optimizer SGD has parameters that the model lacks"),
        (model, {**given, "optimizer": sgd(model, lr=torch.tensor(0.1))}, "a checkpoint cannot hold"),
        (model, {**given, "optimizer": torch.optim.LBFGS(model.parameters())}, "LBFGS computes the loss several times"),
        (nn.Tanh(), given, "Tanh has no parameter to train"),
    ):
        with pytest.raises(PlaitError, match=sentence):
            Trainer(what, **options)
    for options, sentence in (
        ({"data": (x, y)}, r"the loss gives a tensor of shape \(20, 5, 1\)"),
        ({"data": x}, "a batch is of type tuple: expected"),
        ({"data": (x, y), "loss": lambda a, b: torch.zeros(())}, "the loss depends on no parameter of the model"),
        ({"data": x, "loss": None}, r"the model gives a tensor of shape"),
    ):
        with pytest.raises(PlaitError, match=sentence):
            Trainer(model, **{"loss": lambda a, b: a, "progress": False, **options}).fit()
    with pytest.raises(PlaitError, match="there is nothing to save: call fit"):
        Trainer("forecast").save()
    with pytest.raises(PlaitError, match="nowhere does not exist: expected the folder of a run"):
        Trainer.load("nowhere")
    assert names(empty_folder) == []


def test_a_failed_start_leaves_nothing_and_can_be_tried_again(empty_folder: Path) -> None:
    calls: list[int] = []

    def fails_once(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("a bug")
        return mse(output, target)

    own(epochs=2, out="whole").fit()
    trainer = own(epochs=2, loss=fails_once, out="run")
    with pytest.raises(RuntimeError, match="a bug"):
        trainer.fit()
    trainer.fit()  # from the last checkpoint
    check_same_bits("whole", "run")
    assert weights(Path("run")).keys() >= {"head.weight", "twin.weight"}
