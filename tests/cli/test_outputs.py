"""No output replaces a file of a run, or a file that is read, whatever the link or the spelling."""

import os
from pathlib import Path

import numpy as np
import pytest

from driver_world import BOOK
from plait.cli.output import OF_A_RUN
from processes import QUICK

SMALL = ("--epochs", "1", "--hidden", "4", "--layers", "1", "--batch", "4")


@pytest.fixture
def run(plait, empty_folder: Path) -> dict[str, bytes]:
    """A run named good -> its files"""
    assert plait("train", "forecast", *QUICK, "--out", "good")[0] == 0
    return files()


def files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path("good").iterdir()}


def test_every_file_that_training_writes_is_known(plait, empty_folder: Path) -> None:
    Path("book.txt").write_text(BOOK)
    rows = np.random.default_rng(0).normal(size=(24, 5, 1)).astype(np.float32)
    np.savez("waves.npz", x=rows, y=np.arange(24) % 2)
    written = set()
    for task, options in {
        "forecast": QUICK,
        "language": ("--data", "book.txt", *SMALL),
        "classify": ("--data", "waves.npz", *SMALL),
        "rotate": ("--epochs", "1", "--hidden", "4", "--features", "16", "--steps", "2"),
    }.items():
        code, _, err = plait("train", task, *options, "--out", task)
        assert code == 0, err
        written |= {path.name for path in Path(task).iterdir()}
    assert written == OF_A_RUN


@pytest.mark.parametrize("name", sorted({"config.json", "history.json", "model.safetensors", "state.safetensors"}))
@pytest.mark.parametrize("command", ["forecast good", "evaluate good", "engines", "train forecast --epochs 1"])
def test_the_json_is_no_file_of_a_run(refused, run, command: str, name: str) -> None:
    said = refused(*command.split(), "--json", f"good/{name}")
    assert said.startswith(f"plait: --json good/{name} is a file of the run ")
    assert said.endswith(", and would be replaced: give another name.\n")
    assert files() == run


SPELLINGS = [
    "good/../good/model.safetensors",
    "./good//model.safetensors",
    "good/model.safetensors/",
    "good/model.safetensors/.",
    "good/none/../model.safetensors",
    "{here}/good/model.safetensors",
    "link",
    "chain",
    "hard",
    "folder/model.safetensors",
    "/proc/self/cwd/good/model.safetensors",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_whatever_the_link_or_the_spelling(refused, run, empty_folder: Path, spelling: str) -> None:
    Path("link").symlink_to("good/model.safetensors")
    Path("chain").symlink_to("link")
    Path("folder").symlink_to("good")
    os.link("good/model.safetensors", "hard")
    said = refused("forecast", "good", "--json", spelling.format(here=empty_folder))
    assert "is a file of the run" in said
    assert files() == run


def test_a_file_of_a_run_that_is_a_link(refused, run) -> None:
    Path("good/model.safetensors").rename("weights")
    Path("good/model.safetensors").symlink_to("../weights")
    assert "is a file of the run" in refused("forecast", "good", "--json", "weights")
    assert "is a file of the run" in refused("forecast", "good", "--json", "good/model.safetensors")
    assert Path("weights").read_bytes() == run["model.safetensors"]


@pytest.mark.parametrize(
    "command",
    [
        "forecast good --picture link.png",
        "forecast good --picture good/forecast.png",
        "bench ladder --quick --picture link.png",
        "train forecast --resume good --epochs 3 --json good/state.safetensors",
        "train forecast --out folder --json folder/model.safetensors",
        "train forecast --out lost/history.json",
        "equations cell.py:MGU --json cell.py",
        "train forecast --data table.csv --json table.csv",
        "forecast good --data table.csv --json ./table.csv",
        "classify good table.csv --out good/series.csv",
        "classify good table.csv --out table.csv",
    ],
)
def test_every_path_that_is_written(refused, run, command: str) -> None:
    Path("link.png").symlink_to("good/model.safetensors")
    Path("folder").mkdir()
    Path("lost").mkdir()  # a run that has lost all but its weights, and can no longer be opened
    for name in ("state.safetensors", "model.safetensors"):
        Path(f"lost/{name}").write_bytes(run[name])
    Path("cell.py").write_text("kept")
    Path("table.csv").write_text("kept")
    assert ", and would be replaced: give another name.\n" in refused(*command.split())
    assert files() == run
    assert Path("table.csv").read_text() == Path("cell.py").read_text() == "kept"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("train language --data d --json d/ptb.train.txt", "--json d/ptb.train.txt is in d, which the command reads"),
        ("train language --data link --json d/new", "--json d/new is in link, which the command reads: give a name"),
        ("train language --data d --json d/deep/x.png", "--json d/deep/x.png is in d, which the command reads: give"),
        ("bench ragged --data d --json d/old.json", "d/old.json is in d, which the command reads, and would be"),
        ("bench ragged --data d --json other.json", "other.json is in d, which the command reads, and would be"),
        ("train language --data p.zip/in --json p.zip", "--json p.zip is a file that the command reads"),
        ("train classify --data d --splits s --json s/x", "--json s/x is in s, which the command reads: give"),
        ("forecast good --json x.png --picture x.png", "--picture x.png and --json x.png are the same file"),
        ("forecast good --json x.png --picture ./y.png", "--picture ./y.png and --json x.png are the same file"),
        ("forecast good --json good/future.png", "--picture good/future.png and --json good/future.png are the same"),
        ("train forecast --json x.png --out x.png", "--json x.png and --out x.png are the same file"),
        ("engines --json good/history.json.damaged-2", "damaged-2 is a file of the run"),
    ],
)
def test_what_is_read_and_what_is_written_are_apart(refused, run, command: str, sentence: str) -> None:
    for path in ("d/deep", "s"):
        Path(path).mkdir(parents=True)
    Path("link").symlink_to("d")
    Path("y.png").symlink_to("x.png")
    Path("other.json").symlink_to("d/old.json")
    kept = [Path("d/ptb.train.txt"), Path("d/old.json"), Path("p.zip"), Path("good/history.json.damaged-2")]
    for path in kept:
        path.write_text("kept")
    assert sentence in refused(*command.split())
    assert [path.read_text() for path in kept] == ["kept"] * 4
    assert not Path("x.png").exists()


@pytest.mark.parametrize("json", ["new.json", "/dev/null"])
def test_run_and_result_may_be_made_beside_the_data(plait, empty_folder: Path, json: str) -> None:
    Path("book.txt").write_text(BOOK)
    code, _, err = plait("train", "language", "--data", ".", *SMALL, "--out", "run", "--json", json)
    assert code == 0, err
    assert Path("book.txt").read_text() == BOOK
    assert json == "/dev/null" or Path("new.json").read_text().startswith("{")


def test_the_picture_of_the_future_is_not_written_through_a_link(refused, run) -> None:
    Path("good/future.png").symlink_to("model.safetensors")
    assert "--picture good/future.png is a file of the run" in refused("forecast", "good")
    assert Path("good/model.safetensors").read_bytes() == run["model.safetensors"]


def test_another_name_in_the_folder_of_a_run_is_fine(plait, run) -> None:
    for _ in range(2):  # the second one replaces the first
        assert plait("forecast", "good", "--json", "good/next.json", "--picture", "good/future.png")[0] == 0
    Path("other").mkdir()
    Path("other/config.json").write_text("{}")  # of another program
    assert plait("engines", "--json", "other/config.json")[0] == 0
    assert {name: content for name, content in files().items() if name in run} == run
