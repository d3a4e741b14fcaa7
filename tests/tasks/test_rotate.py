"""The rotate task: turning, the loss, training from images, runs that go on, and what it is compared with."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from plait.data import images
from plait.data.images import Images
from plait.data.shapes import shapes
from plait.errors import PlaitError
from plait.tasks import pictures
from plait.tasks.rotate import Rotate
from plait.tasks.rotation import Rotation, ridge
from plait.tasks.settings import RotateSettings
from plait.training.run import Run
from plait.training.tensors import dumps
from processes import check_same_bits, check_two_ranks, killed, started
from reference import data_file

ADAM = ("--optimizer", "adam", "--lr", "0.003", "--batch", "16", "--hidden", "12", "--threads", "1")


def small(count: int = 60, side: int = 8) -> Images:
    return shapes(count, side).cut(0.2, 0.1, seed=0)


def make(count: int = 60, side: int = 8, **options) -> Rotate:
    return Rotate(RotateSettings(**({"hidden": 9, "batch": "7"} | options)), small(count, side))


def write_images(folder: str = "pictures", count: int = 40, side: int = 8) -> None:
    Path(folder).mkdir()
    for k, row in enumerate(shapes(count, side).parts["train"].numpy()):
        Image.fromarray(row.reshape(side, side)).save(Path(folder, f"{k:03d}.png"))


# --- turning ---------------------------------------------------------------------------------------------------------
def turned(image: np.ndarray, degrees: float) -> np.ndarray:
    """One pixel after another, as the definition has it: y is up, and the angle counter-clockwise."""
    height, width = image.shape
    result, angle = np.zeros((height, width)), math.radians(degrees)
    for row in range(height):
        for column in range(width):
            x, y = column - (width - 1) / 2, (height - 1) / 2 - row
            from_x, from_y = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
            at_row, at_column = (height - 1) / 2 - from_y, from_x + (width - 1) / 2
            for r in (math.floor(at_row), math.floor(at_row) + 1):
                for c in (math.floor(at_column), math.floor(at_column) + 1):
                    if 0 <= r < height and 0 <= c < width:
                        result[row, column] += image[r, c] * (1 - abs(at_row - r)) * (1 - abs(at_column - c))
    return result


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 9), (1, 4), (1, 1)])
def test_turning_is_what_the_definition_says(height: int, width: int) -> None:
    degrees = [0.0, 10.0, 37.0, 90.0, 123.4, -45.0, 360.0]
    some = torch.rand(3, height * width, dtype=torch.float64)
    found = Rotation(height, width, degrees)(some)
    assert found.shape == (len(degrees), 3, height * width)
    for angle, of_angle in zip(degrees, found, strict=True):
        for image, result in zip(some.numpy(), of_angle.numpy(), strict=True):
            expected = turned(image.reshape(height, width), angle)
            assert np.abs(result.reshape(height, width) - expected).max() < 1e-12
    assert (Rotation(height, width, degrees)(some.float()) - found).abs().max() < 1e-5


def test_a_quarter_turn_goes_counter_clockwise() -> None:
    image = np.arange(36.0).reshape(6, 6)
    found = Rotation(6, 6, [0.0, 90.0, 180.0])(torch.from_numpy(image).reshape(1, 36))
    for k in range(3):
        assert np.abs(found[k].reshape(6, 6).numpy() - np.rot90(image, k)).max() < 1e-10  # counter-clockwise, too


def test_every_step_turns_the_original() -> None:
    task = make(side=9, steps=4, degrees=15.0, features=50)
    whole, inputs, targets = task.some("train", torch.tensor([3, 1]))
    assert (tuple(whole.shape), tuple(inputs.shape), tuple(targets.shape)) == ((5, 2, 81), (4, 2, 50), (4, 2, 50))
    image = task.data.parts["train"][1].numpy().reshape(9, 9) / 255
    for t in range(5):
        expected = turned(image, 15 * t).flatten()
        assert np.abs(whole[t, 1].numpy() - expected).max() < 1e-5
        if t < 4:
            assert torch.equal(inputs[t, 1], whole[t, 1, :50])
        if t > 0:
            assert torch.equal(targets[t - 1, 1], whole[t, 1, :50])


# --- what it is compared with ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("features", [49, 40])
def test_the_ridge_regression_is_the_plain_one(features: int) -> None:
    some, turn = torch.rand(30, 49), Rotation(7, 7, [0.0, 10.0, 20.0, 30.0])
    x = turn(some.double())[:, :, :features]
    before, after = x[:-1].flatten(0, 1), x[1:].flatten(0, 1)
    squares = before.t() @ before
    squares += torch.eye(features) * 1e-5 * squares.diagonal().mean()
    expected = torch.linalg.inv(squares) @ before.t() @ after
    assert (ridge(some, turn, features) - expected).abs().max() < 1e-3 * expected.abs().max()


def test_scores_are_means_over_images_steps_and_pixels() -> None:
    task = make(steps=3, features=60)
    _, x, y = task.some("test", slice(None))
    predicted = task.model(x).detach()
    found = task.evaluate()
    assert found["images"] == 12
    assert found["model"] == pytest.approx(np.mean((predicted - y).numpy() ** 2), rel=1e-5)
    assert found["repeat"] == pytest.approx(np.mean((x - y).numpy() ** 2), rel=1e-5)
    table = task.table({**found, "turn": 0.005, "ridge": 0.0004})
    names = ["rnn", "repeat the last image", "turn it by interpolation", "ridge regression"]
    assert [row[0] for row in table.rows] == names
    assert "a ridge regression is better than interpolation" in table.title
    assert "better" not in task.table({**found, "turn": 0.005, "ridge": 0.006}).title  # too few images


def test_interpolation_turns_the_whole_of_the_last_image() -> None:
    task = make(steps=2, features=30)
    errors = []
    for row in task.data.parts["test"].numpy() / 255:
        steps = [turned(row.reshape(8, 8), 10 * t) for t in range(3)]
        errors += [np.mean((turned(steps[t], 10) - steps[t + 1]).flatten()[:30] ** 2) for t in range(2)]
    assert task.evaluate()["turn"] == pytest.approx(np.mean(errors), rel=1e-4)


def test_large_images_do_without_the_ridge_regression(monkeypatch) -> None:
    monkeypatch.setattr("plait.tasks.rotate.WIDEST_RIDGE", 63)
    task = make()
    found = task.evaluate()
    assert found["ridge"] is None
    assert task.table(found).rows[-1] == ["ridge regression", "-"]
    assert task.about()[1].endswith("ridge -")


# --- the network and its loss ----------------------------------------------------------------------------------------
def test_the_network_is_the_papers() -> None:
    """h = tanh(W x + R h), y = tanh(V h), and the gradient of the squared error, summed, an image at a time."""
    task = make(steps=4)
    task.model.double()
    some = torch.tensor([4, 0, 2])
    W, R = (p for p in task.model.rnn.parameters())
    (V,) = task.model.head.parameters()
    parts = [task.data.parts["train"][k].numpy().reshape(8, 8) / 255 for k in some]
    x = torch.from_numpy(np.array([[turned(image, 10 * t) for image in parts] for t in range(5)])).flatten(2)
    h, total = torch.zeros(3, 9, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for t in range(4):
        h = torch.tanh(x[t] @ W.t() + h @ R.t())
        total = total + (torch.tanh(h @ V.t()) - x[t + 1]).square().sum()
    expected = [total / 3, *torch.autograd.grad(total / 3, [W, R, V])]
    task.model.float()
    loss, count = task.loss(some)
    assert count == 3
    found = [loss, *torch.autograd.grad(loss, list(task.model.parameters()))]
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


def test_defaults_are_those_of_the_paper() -> None:
    s = RotateSettings()
    assert (s.cell, s.hidden, s.steps, s.degrees, s.batch, s.bias) == ("rnn", 1000, 10, 10.0, "1000", False)
    assert (s.optimizer, s.momentum, s.clip, s.weight_decay, s.schedule) == ("sgd", 0.0, 0.0, 0.0, "constant")


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_any_cell_with_biases_and_layers(cell: str) -> None:
    task = make(cell=cell, bias=True, layers=2, dropout=0.1)
    loss, _ = task.loss(torch.arange(5))
    loss.backward()
    names = {name for name, _ in task.model.named_parameters()}
    assert {"rnn.bias_hh_l1", "head.bias"} <= names
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in task.model.parameters())


# --- the command line ------------------------------------------------------------------------------------------------
def test_from_images_to_a_picture(plait) -> None:
    write_images(count=60)
    args = ("--data", "pictures", *ADAM, "--epochs", "30", "--steps", "4", "--features", "60")
    code, out, err = plait("train", "rotate", *args, "--out", "run", "--json", "j.json")
    assert (code, err) == (0, "")
    assert "pictures: 49 to train, 5 to validate, 6 to test; 8 x 8 pixels, the first 60 pixels\n" in out
    assert "4 turns of 10 degrees; test error per pixel: repeat " in out
    assert "rnn, 1 x 12 units, tanh output, no bias, 1,584 parameters\n" in out
    assert "epoch 30/30  error per pixel 0." in out
    assert max(len(line) for line in out.splitlines()) <= 100
    result = json.loads(Path("j.json").read_text())
    first, last = result["epochs"][0], result["epochs"][-1]
    assert last["validation"] < 0.5 * first["validation"]
    for name in ("turns.png", "curves.png"):
        assert Path("run", name).read_bytes().startswith(b"\x89PNG")
    code, out, _ = plait("evaluate", "run", "--json", "e.json")
    assert code == 0
    assert json.loads(Path("e.json").read_text()) == result["test"]
    assert f"rnn                                        {result['test']['model']:.4f}\n" in out


def test_without_data_it_draws_shapes(plait) -> None:
    code, out, _ = plait(
        "train", "rotate", *ADAM[:-4], "--hidden", "4", "--epochs", "1", "--steps", "2", "--out", "run"
    )
    assert code == 0
    assert "shapes: 1,620 to train, 180 to validate, 200 to test; 32 x 32 pixels\n" in out


def test_killed_and_resumed_it_ends_with_the_same_weights(plait) -> None:
    """In the middle of an epoch, with momentum and dropout."""
    write_images()
    options = ("--data", "pictures", "--optimizer", "sgd", "--lr", "0.003", "--momentum", "0.9", "--batch", "2")
    options += ("--hidden", "6", "--layers", "2", "--dropout", "0.2", "--steps", "3", "--epochs", "4", "--threads", "1")
    assert plait("train", "rotate", *options, "--out", "whole")[0] == 0
    process = started("train", "rotate", *options, "--save-every", "0", "--out", "run")
    killed(process, "run", saves=23)
    code, out, _ = plait("train", "rotate", "--resume", "run")
    assert code == 0
    assert "goes on in epoch" in out
    check_same_bits("whole", "run")


@pytest.mark.slow
def test_two_ranks_train_what_one_does(plait) -> None:
    write_images()
    options = ("--data", "pictures", "--lr", "0.01", "--batch", "8", "--hidden", "6", "--steps", "3", "--epochs", "3")
    check_two_ranks(("train", "rotate", *options), plait)


def test_the_images_of_a_run_come_back_as_they_were(tmp_path: Path) -> None:
    task = make()
    for name, content in task.files().items():
        (tmp_path / name).write_bytes(content)
    again = Rotate.reopen(task.settings, Run(tmp_path))
    assert again.digest == task.digest
    assert (again.data.name, again.data.height, again.data.width) == ("shapes", 8, 8)
    assert {p: s.tolist() for p, s in again.data.parts.items()} == {p: s.tolist() for p, s in task.data.parts.items()}


@pytest.mark.parametrize(
    ("change", "about"),
    [
        (lambda parts: parts.pop("test"), {}),
        (lambda parts: parts.update(train=parts["train"].float()), {}),
        (lambda parts: parts.update(valid=parts["valid"][:, :-1]), {}),
        (lambda parts: parts.update(valid=parts["valid"][:0]), {}),
        (lambda parts: None, {"height": 4}),
        (lambda parts: None, {"height": -8, "width": -8}),
        (lambda parts: None, {"height": "8"}),
        (lambda parts: None, {"width": None}),
    ],
)
def test_images_of_a_run_that_make_no_sense(change, about: dict, tmp_path: Path) -> None:
    task = make()
    parts = dict(task.data.parts)
    change(parts)
    content = dumps(parts, {"name": "shapes", "height": 8, "width": 8} | about)
    (tmp_path / "images.safetensors").write_bytes(content)
    with pytest.raises(PlaitError, match=r"images.safetensors has no images \(.*\): restore it from a copy"):
        Rotate.reopen(task.settings, Run(tmp_path))


# --- refused ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--data", "nowhere"), "nowhere does not exist: expected a folder, a zip or a tar"),
        (("--data", "none"), "none has no images (found: nothing)"),
        (
            ("--data", "pictures", "--features", "65"),
            "features 65: the images have 8 x 8 pixels, 64 in all; take at mos",
        ),
        (("--features", "0"), "features 0: must be at least 1."),
        (("--steps", "0"), "steps 0: must be at least 1."),
        (("--degrees", "nan"), "degrees nan: must be from -360 to 360."),
        (("--test", "0"), "shapes has no test part: give --test a share."),
        (("--data", "parts", "--test", "0.3"), "test 0.3 goes with data without a test part: leave it out."),
        (("--data", "few"), "few has 1 image to train on: too few to take 10% of them for the test part; give more"),
        (("--dropout", "0.5"), "dropout 0.5 acts between layers, and there is one"),
        (("--validation", "1"), "validation 1.0: must be at least 0 and below 1."),
        (("--momentum", "0.9", "--optimizer", "adam"), "momentum 0.9 goes with sgd, not with adam: leave it out."),
    ],
)
def test_what_is_refused(args: tuple[str, ...], says: str, empty_folder: Path, refused) -> None:
    write_images()
    write_images("few", 1)
    Path("none").mkdir()
    write_images("parts", 3)
    for name in ("train", "test"):
        Path("parts", name).mkdir()
        Path("parts/000.png").write_bytes(Path("parts/001.png").read_bytes())
        Path("parts/000.png").rename(f"parts/{name}/a.png")
    found = refused("train", "rotate", *args)
    assert found.removeprefix("plait: ").startswith(says), found


def test_what_does_not_fit_is_refused(refused, monkeypatch) -> None:
    monkeypatch.setattr("plait.tasks.memory.available", lambda: 30 * 2**20)
    said = refused("train", "rotate", "--hidden", "10", "--batch", "1000")
    assert "batch 1000, 10 steps of 1024 pixels needs about" in said
    assert "training 120,480,000 weights" in refused("train", "rotate", "--hidden", "10000")


# --- the picture -----------------------------------------------------------------------------------------------------
def test_the_picture_has_input_prediction_and_truth(monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr(pictures, "png", lambda figure: drawn.append(figure) or b"")
    task = make(steps=12, features=60)
    task.pictures(task.evaluate(), [{"epoch": 1, "loss": 12 * 60 * 0.5, "validation": None}])
    turns, curves = drawn
    grid = np.array(turns.axes).reshape(3, 10)
    assert [axes.get_ylabel() for axes in grid[:, 0]] == ["input", "prediction", "truth"]
    assert [grid[0, 0].get_title(), grid[0, -1].get_title()] == ["0° to 10°", "110° to 120°"]
    _, x, y = task.some("test", slice(0, 1))
    for row, expected in zip(grid, (x, task.model(x).detach(), y), strict=True):
        shown = row[-1].images[0].get_array()
        assert np.allclose(shown.filled(0).flatten()[:60], expected[11, 0].numpy())
        assert np.ma.getmaskarray(shown).flatten().tolist() == [False] * 60 + [True] * 4
    assert curves.axes[0].lines[0].get_ydata().tolist() == [0.5]


# --- real data -------------------------------------------------------------------------------------------------------
def cifar(**options) -> Rotate:
    settings = RotateSettings(features=1000, batch="100", **options)
    return Rotate(settings, images.read(str(data_file("cifar10-jpeg-subset.zip"))).cut(0.1, 0.1, 0))


def test_what_needs_no_network_on_cifar() -> None:
    found = cifar(hidden=1).without
    assert found["repeat"] == pytest.approx(0.0244, abs=5e-5)
    assert found["turn"] == pytest.approx(0.0050, abs=5e-5)
    assert 0.0003 < found["ridge"] < 0.0004


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "below"),
    [
        (("--momentum", "0.9", "--epochs", "10"), 0.0244),  # repeating the last image
        (("--optimizer", "adam", "--lr", "0.001", "--epochs", "16"), 0.0050),  # interpolation
    ],
)
def test_cifar(plait, options: tuple[str, ...], below: float) -> None:
    """The errors that docs/rotate.md has, or rather their bounds; how long it takes is not looked at."""
    data = ("--data", str(data_file("cifar10-jpeg-subset.zip")), "--features", "1000", "--batch", "100")
    assert plait("train", "rotate", *data, *options, "--out", "run", "--json", "j.json")[0] == 0
    assert json.loads(Path("j.json").read_text())["test"]["model"] < below
