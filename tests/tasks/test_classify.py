"""The classify task: what a batch costs, training from files, runs that go on, new sequences, and what is refused."""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import plait as package
from plait.data.sequences import RawSequences, Source
from plait.tasks.classify import Classify
from plait.tasks.dataset import Dataset
from plait.tasks.scores import confusion, scores
from plait.tasks.settings import ClassifySettings
from plait.training.run import Run
from processes import check_same_bits, check_two_ranks, killed, started
from reference import data_file

SMALL = ("--data", "waves.npz", "--hidden", "8", "--epochs", "6", "--batch", "8", "--patience", "0", "--threads", "1")


def waves(n: int = 60, seed: int = 0, longest: int = 20) -> Source:
    """Slow and quick waves, of different lengths, in two columns of different sizes."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for k in range(n):
        T, quick = int(rng.integers(6, longest + 1)), k % 2
        phase = rng.uniform(0, 6) + np.arange(T) * (1.6 if quick else 0.4)
        rows.append(np.stack([5000 + 100 * np.sin(phase), 0.01 * np.cos(phase)], 1))
        labels.append("quick" if quick else "slow")
    return Source("waves", ["a", "b"], {"train": RawSequences(rows, labels, [f"sequence {k + 1}" for k in range(n)])})


def write_waves(path: str = "waves.npz", n: int = 60, seed: int = 0) -> None:
    found = waves(n, seed).parts["train"]
    x = np.zeros((n, 20, 2))
    for k, rows in enumerate(found.rows):
        x[k, : len(rows)] = rows
    np.savez(path, x=x, y=np.array(found.labels), lengths=[len(r) for r in found.rows])


def make(**options) -> Classify:
    settings = ClassifySettings(data="waves", **({"hidden": 7, "batch": "8", "validation": 0.2} | options))
    return Classify(settings, Dataset.of(waves(), validation=0.2, test=0.2, missing="error", seed=0))


# --- the loss --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn", "implicit_gru"])
@pytest.mark.parametrize("pool", ["last", "mean"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_batch_costs_what_each_sequence_alone_costs(cell: str, pool: str, bidirectional: bool) -> None:
    """The loss, and the gradient of every weight: nothing is padded, and nothing of one is seen by another."""
    task = make(cell=cell, pool=pool, bidirectional=bidirectional, layers=2, dropout=0.0, class_weights="balanced")
    task.model.double()
    train = task.data.parts["train"]
    task.data = Dataset(
        *(getattr(task.data, f) for f in ("name", "classes", "columns", "scale")), dict(task.data.parts)
    )
    object.__setattr__(train, "rows", train.rows.double())
    parameters = list(task.model.parameters())

    def both(indices: list[int]) -> list[torch.Tensor]:
        loss, count = task.loss(torch.tensor(indices))
        assert count == len(indices)
        return [loss.detach() * count, *(g * count for g in torch.autograd.grad(loss, parameters))]

    some = [4, 8, 1, 30]
    assert len({int(train.lengths[k]) for k in some}) > 1
    alone = [sum(parts) for parts in zip(*(both([k]) for k in some), strict=True)]
    for a, b in zip(both(some), alone, strict=True):
        assert (a - b).abs().max() / b.abs().max() < 1e-10


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_the_network_is_torchs(pool: str) -> None:
    """A GRU in both directions, the last states or the mean, a linear map."""
    task = make(pool=pool, bidirectional=True, layers=2).model.eval()
    task.double()
    rnn = package.restore(nn.Sequential(task.rnn))[0]
    x = torch.randn(9, 2, dtype=torch.float64)
    y, h = nn.GRU.forward(rnn, x.unsqueeze(1))
    expected = task.head(torch.cat([h[-2], h[-1]], 1) if pool == "last" else y.mean(0))
    from plait.layout import Layout

    torch.testing.assert_close(task(x, Layout(9, 1)), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(task(x, Layout.of_lengths([9])), expected, rtol=1e-12, atol=1e-12)


def test_class_weights_make_rare_classes_count() -> None:
    source = waves()
    train = source.parts["train"]
    chosen = [k for k in range(60) if k % 2 or k < 12]  # 6 slow ones
    few = Source("waves", source.columns, {"train": train.where(chosen)})
    data = Dataset.of(few, validation=0.0, test=0.0, missing="error", seed=0)
    task = Classify(ClassifySettings(data="waves", class_weights="balanced", hidden=4, dropout=0.0), data)
    counts = torch.from_numpy(data.counts("train"))
    assert counts.tolist() == [30, 6]
    assert (task.weights * counts).tolist() == [18, 18]
    plain = Classify(ClassifySettings(data="waves", hidden=4, dropout=0.0), data)
    assert plain.weights.tolist() == [1, 1]
    indices, labels = torch.arange(36), data.parts["train"].labels
    each = torch.stack([plain.loss(indices[k : k + 1])[0] for k in range(36)])
    by_class = [each[labels == k].mean().item() for k in (0, 1)]
    assert task.loss(indices)[0].item() == pytest.approx(sum(by_class) / 2, rel=1e-5)
    assert plain.loss(indices)[0].item() == pytest.approx((30 * by_class[0] + 6 * by_class[1]) / 36, rel=1e-5)


# --- scores ----------------------------------------------------------------------------------------------------------
def test_scores() -> None:
    """Against figures by hand: a of three, two right; b of one, right; c of none."""
    matrix = confusion(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]), 3)
    assert matrix.tolist() == [[2, 1, 0], [0, 1, 0], [0, 0, 0]]
    found = scores(matrix, ["a", "b", "c"])
    assert (found["accuracy"], found["balanced"]) == (0.75, pytest.approx((2 / 3 + 1) / 2))
    a, b, c = found["classes"]
    assert (a["precision"], a["recall"], a["f1"]) == (1.0, pytest.approx(2 / 3), pytest.approx(0.8))
    assert (b["precision"], b["recall"], b["f1"]) == (0.5, 1.0, pytest.approx(2 / 3))
    assert (c["precision"], c["recall"], c["f1"], c["count"]) == (None, None, None, 0)


# --- the command line ------------------------------------------------------------------------------------------------
def test_from_a_file_to_classes(plait) -> None:
    write_waves()
    code, out, err = plait(
        "train", "classify", *SMALL, "--epochs", "30", "--lr", "0.01", "--out", "run", "--json", "j.json"
    )
    assert (code, err) == (0, "")
    assert "waves.npz: 49 to train, 5 to validate, 6 to test; 6 to 20 steps of 2 numbers, 2 classes\n" in out
    assert "gru, 1 x 8 units, last state, " in out
    assert "6 sequences of the test, never seen in training: accuracy 100.0 %" in out
    assert all(len(line) <= 100 for line in out.splitlines())
    result = json.loads(Path("j.json").read_text())
    assert result["test"]["test"]["accuracy"] == 1.0
    assert {"loss", "validation", "accuracy"} <= result["epochs"][-1].keys()
    for name in ("confusion.png", "curves.png"):
        assert Path("run", name).read_bytes().startswith(b"\x89PNG")

    code, out, _ = plait("evaluate", "run")
    assert code == 0
    assert "accuracy 100.0 %" in out

    write_waves("new.npz", 10, seed=5)
    code, out, _ = plait("classify", "run", "new.npz", "--out", "p.csv", "--json", "c.json")
    assert code == 0
    assert "10 of them have a label that the run knows: accuracy 100.0 %" in out
    rows = list(csv.DictReader(Path("p.csv").read_text().splitlines()))
    assert [row["class"] for row in rows] == ["slow", "quick"] * 5
    assert all(float(r["slow"]) + float(r["quick"]) == pytest.approx(1, abs=1e-4) for r in rows)
    found = json.loads(Path("c.json").read_text())
    assert found["classes"] == ["quick", "slow"]
    assert found["sequences"][0]["name"] == "sequence 1"
    assert found["accuracy"] == 1.0


def test_a_class_does_not_depend_on_who_is_beside_it(plait) -> None:
    write_waves()
    assert plait("train", "classify", *SMALL, "--out", "run")[0] == 0
    with np.load("waves.npz") as file:
        arrays = dict(file)
    np.savez("one.npz", x=arrays["x"][7:8], lengths=arrays["lengths"][7:8])
    for name in ("waves", "one"):
        assert plait("classify", "run", f"{name}.npz", "--json", f"{name}.json")[0] == 0
    all_of_them, one = (json.loads(Path(f"{n}.json").read_text())["sequences"] for n in ("waves", "one"))
    assert one[0]["probabilities"] == pytest.approx(all_of_them[7]["probabilities"], abs=1e-6)


def test_columns_of_new_data_may_come_in_another_order(plait) -> None:
    rng = np.random.default_rng(0)
    lines = ["id,time,x,y,label"] + [
        f"{k},{t},{rng.normal() + 3 * (k % 2)},{rng.normal()},{'ab'[k % 2]}" for k in range(30) for t in range(4)
    ]
    Path("a.csv").write_text("\n".join(lines))
    assert plait("train", "classify", "--data", "a.csv", *SMALL[2:], "--out", "run")[0] == 0
    swapped = [",".join((c[0], c[1], c[3], c[2])) for c in (line.split(",") for line in lines)]
    Path("b.csv").write_text("\n".join(swapped))
    assert plait("classify", "run", "a.csv", "--json", "a.json")[0] == 0
    assert plait("classify", "run", "b.csv", "--json", "b.json")[0] == 0
    a, b = (json.loads(Path(f"{n}.json").read_text())["sequences"] for n in "ab")
    assert a == b
    Path("c.csv").write_text("id,time,x\n1,1,2\n")
    code, out, err = plait("classify", "run", "c.csv")
    assert (code, out) == (2, "")
    assert err == "plait: c.csv has 1 columns, and the training data has 2 (x, y).\n"


def test_a_test_file_of_its_own(plait, refused) -> None:
    write_waves()
    write_waves("other.npz", 14, seed=3)
    code, out, _ = plait("train", "classify", *SMALL, "--test-data", "other.npz", "--out", "run")
    assert code == 0
    assert "waves.npz: 54 to train, 6 to validate, 14 to test; " in out
    np.savez("wide.npz", x=np.zeros((4, 3, 3)), y=[0, 1, 0, 1])
    says = refused("train", "classify", *SMALL, "--test-data", "wide.npz")
    assert says == "plait: wide.npz has 3 columns, and waves.npz has 2 (1, 2).\n"
    says = refused("train", "classify", *SMALL, "--test-data", "waves.npz")
    assert says == "plait: --test-data waves.npz is what --data names: expected other sequences for the test.\n"
    with np.load("waves.npz") as file:
        arrays = dict(file)
    np.savez("parts.npz", **arrays, x_test=arrays["x"], y_test=arrays["y"])
    says = refused("train", "classify", *SMALL, "--test-data", "parts.npz")
    assert says == "plait: parts.npz has a training and a test part of its own: leave --test-data out.\n"


def test_a_ts_file_for_the_test_does_not_bring_its_neighbour(plait) -> None:
    """NAME_TRAIN.ts as test data must not bring NAME_TEST.ts, which is trained on."""
    header = "@classLabel true u v\n@data\n"
    rng = np.random.default_rng(0)
    for part, n in (("TRAIN", 8), ("TEST", 30)):
        lines = [",".join(f"{v:.3f}" for v in rng.normal(size=5)) + f":{'uv'[k % 2]}" for k in range(n)]
        Path(f"A_{part}.ts").write_text(header + "\n".join(lines) + "\n")
    code, out, _ = plait(
        "train", "classify", "--data", "A_TEST.ts", "--test-data", "A_TRAIN.ts", *SMALL[2:], "--out", "run"
    )
    assert code == 0
    assert "27 to train, 3 to validate, 8 to test" in out
    code, out, _ = plait("classify", "run", ".")  # a folder: both of them
    assert (code, out.count("line ")) == (0, 38)


# --- runs that go on -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), marks=pytest.mark.slow),  # the next one has all of it, and more
        (
            "--layers",
            "2",
            "--dropout",
            "0.3",
            "--bidirectional",
            "--cell",
            "lstm",
            "--solver",
            "shooting:chunks=3,warmup=2",
        ),
        pytest.param(("--solver", "multigrid:levels=2,coarsening=2", "--cell", "implicit_gru"), marks=pytest.mark.slow),
    ],
)
def test_killed_in_mid_epoch_it_goes_on_to_the_same_bits(options: tuple[str, ...], plait) -> None:
    write_waves()
    length = ("--epochs", "10", "--save-every", "0")
    assert plait("train", "classify", *SMALL, *options, *length, "--out", "whole")[0] == 0
    process = started("train", "classify", *SMALL, *options, *length, "--out", "run")
    killed(process, "run", saves=random.randint(3, 30))  # one after every step
    code, out, _ = plait("train", "classify", "--resume", "run")
    assert code == 0
    assert "goes on in epoch " in out
    check_same_bits("whole", "run")


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["shooting", "multigrid:levels=3,coarsening=4", "shooting:chunks=4,fallback=no"])
def test_a_solver_on_uci_har_goes_on_to_the_same_bits(solver: str, plait) -> None:
    data = str(data_file("uci-har-reduced.zip"))
    options = ("--data", data, "--cell", "implicit_gru", "--hidden", "32", "--epochs", "3", "--solver", solver)
    assert plait("train", "classify", *options, "--out", "whole")[0] == 0
    process = started("train", "classify", *options, "--save-every", "0", "--out", "run")
    killed(process, "run", saves=40)
    assert plait("train", "classify", "--resume", "run")[0] == 0
    check_same_bits("whole", "run")


@pytest.mark.slow
def test_two_ranks_train_what_one_does(plait) -> None:
    write_waves()
    length = ("--epochs", "8", "--dropout", "0", "--class-weights", "balanced", "--optimizer", "sgd", "--lr", "0.1")
    check_two_ranks(("train", "classify", *SMALL, *length), plait)


def test_a_run_whose_data_were_spoilt(plait) -> None:
    write_waves()
    assert plait("train", "classify", *SMALL, "--out", "run")[0] == 0
    file = Path("run/sequences.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    code, _, err = plait("evaluate", "run")
    assert (code, err) == (2, "plait: run/sequences.safetensors was changed: put back what the run began with.\n")


def test_the_data_of_a_run_come_back_as_they_were(tmp_path: Path) -> None:
    task = make()
    for name, content in task.files().items():
        (tmp_path / name).write_bytes(content)
    again = Dataset.reopen(Run(tmp_path))
    assert again.digest == task.data.digest
    assert (again.classes, again.columns, again.name) == (task.data.classes, task.data.columns, "waves")
    assert {p: list(s.names) for p, s in again.parts.items()} == {p: list(s.names) for p, s in task.data.parts.items()}
    assert again.scale.mean.tolist() == task.data.scale.mean.tolist()


# --- refused ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "classify needs sequences: give a file, a folder or a zip with --data."),
        (("--data", "nowhere.ts"), "nowhere.ts does not exist: expected a .ts, .npz or .csv file"),
        (("--data", "waves.npz", "--pool", "max"), "pool 'max' is not known"),
        (("--data", "waves.npz", "--missing", "zero"), "--missing 'zero' is not known"),
        (("--data", "waves.npz", "--validation", "1"), "validation 1.0: must be at least 0 and below 1."),
        (("--data", "waves.npz", "--test", "0"), "waves.npz has no test part: give --test a share, or --test-data a f"),
        (("--data", "waves.npz", "--classes", "slow"), "classes 'slow': expected two or more, divided by commas."),
        (("--data", "waves.npz", "--classes", "slow,fast"), "class 'fast' is not known"),
        (("--data", "waves.npz", "--class-weights", "some"), "class-weights 'some' is not known"),
        (("--data", "waves.npz", "--pool", "last", "--split", "0"), "split 0: must be at least 1."),
        (("--data", "one.npz"), "one.npz: all 4 sequences to train on are of class '1'; expected two classes."),
        (("--data", "few.npz", "--test", "0.1"), "few.npz has 2 sequences of 2 classes: too few for a test part of 0."),
        (("--data", "nan.npz"), "nan.npz, sequence 2, step 3, column '1': the number is missing (NaN); use --missing"),
        (("--data", "none.npz"), "none.npz, sequence 3: it has no steps; expected one or more: leave it out."),
        (("--data", "waves.npz", "--hidden", "0"), "hidden 0: must be at least 1."),
        (("--data", "waves.npz", "--frames", "9"), "frames 9 goes with videos: leave it out."),
        (("--data", "waves.npz", "--id-column", "who"), "id_column who goes with a CSV file: leave it out."),
        (
            ("--data", "empty.npz", "--missing", "interpolate"),
            "empty.npz, column '2' has no number in the training",
        ),
        (("--data", "thin.npz"), "thin.npz has no columns of numbers: expected one or more."),
        (
            ("--data", "escape.npz"),
            "escape.npz, sequence 1: label '\\x1b[31m' has signs that cannot be",
        ),
        (("--data", "waves.npz", "--test-data", "parts.npz"), "parts.npz has a training and a test part of its own: "),
        (("--data", "waves.npz", "--test-data", "other.npz"), "other.npz has class '1', which waves.npz has not: add "),
        (("--data", "parts.npz", "--test", "0.3"), "test 0.3 goes with data without a test part: leave it out."),
    ],
)
def test_what_is_refused(args: tuple[str, ...], says: str, empty_folder: Path, refused) -> None:
    write_waves()
    x = np.zeros((4, 5, 2))
    np.savez("one.npz", x=x, y=[1, 1, 1, 1])
    np.savez("few.npz", x=x[:2], y=[1, 2])
    np.savez("none.npz", x=x, y=[1, 2, 1, 2], lengths=[5, 5, 0, 5])
    np.savez("parts.npz", x=x, y=[1, 2, 1, 2], x_test=x, y_test=[1, 2, 1, 2])
    np.savez("other.npz", x=x, y=[1, 2, 1, 2])
    np.savez("thin.npz", x=np.zeros((4, 5, 0)), y=[1, 2, 1, 2])
    np.savez("escape.npz", x=x, y=["\x1b[31m", "b", "\x1b[31m", "b"])
    empty = np.zeros((20, 5, 2))
    empty[:, :, 1] = np.nan
    np.savez("empty.npz", x=empty, y=np.arange(20) % 2)
    x[1, 2, 0] = np.nan
    np.savez("nan.npz", x=x, y=[1, 2, 1, 2])
    found = refused("train", "classify", *args)
    assert found.removeprefix("plait: ").startswith(says), found


def test_missing_numbers_are_put_in(plait) -> None:
    write_waves()
    with np.load("waves.npz") as file:
        arrays = dict(file)
    arrays["x"][::3, 1, 0] = np.nan
    np.savez("waves.npz", **arrays)
    assert plait("train", "classify", *SMALL, "--missing", "interpolate", "--out", "run")[0] == 0
    assert plait("classify", "run", "waves.npz")[0] == 0


def test_new_data_may_have_gaps_that_the_training_had_not(plait) -> None:
    write_waves()
    assert plait("train", "classify", *SMALL, "--out", "run")[0] == 0
    with np.load("waves.npz") as file:
        arrays = dict(file)
    arrays["x"][0, 1, 0] = np.nan
    np.savez("gaps.npz", **arrays)
    code, out, err = plait("classify", "run", "gaps.npz")
    assert (code, out) == (2, "")
    assert err.endswith("the number is missing (NaN); use --missing interpolate, or put it in.\n")
    assert plait("classify", "run", "gaps.npz", "--missing", "interpolate")[0] == 0


def test_the_sequences_are_not_overwritten(plait) -> None:
    write_waves()
    assert plait("train", "classify", *SMALL, "--out", "run")[0] == 0
    before = Path("waves.npz").read_bytes()
    code, out, err = plait("classify", "run", "waves.npz", "--out", "waves.npz")
    assert (code, out) == (2, "")
    assert err == "plait: --out waves.npz is a file that the command reads, and would be replaced: give another name.\n"
    assert Path("waves.npz").read_bytes() == before


def test_names_with_a_dollar_are_no_formulas(plait) -> None:
    write_waves()
    with np.load("waves.npz") as file:
        arrays = dict(file)
    arrays["y"] = np.array(["a$^$", "b$_"])[np.arange(60) % 2]
    np.savez("a$^$.npz", **arrays)
    assert plait("train", "classify", "--data", "a$^$.npz", *SMALL[2:], "--out", "run")[0] == 0


# --- real data -------------------------------------------------------------------------------------------------------
def test_spoken_vowels(plait) -> None:
    """JapaneseVowels, with the defaults: 7 to 29 steps of 12 numbers, 9 speakers."""
    data = f"{data_file('uea-ts.zip')}/JapaneseVowels"
    assert plait("train", "classify", "--data", data, "--out", "run", "--json", "j.json")[0] == 0
    assert json.loads(Path("j.json").read_text())["test"]["test"]["accuracy"] >= 0.94
