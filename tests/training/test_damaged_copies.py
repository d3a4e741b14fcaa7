"""model.safetensors and history.json under --resume: what is wrong with them is said, and nothing is lost."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from plait import PlaitError, cli
from plait.training.damaged_copies import check_copies
from plait.training.run import Run
from plait.training.tensors import dumps, loads

MODEL, HISTORY = "model.safetensors", "history.json"
RESUME = ("train", "forecast", "--resume", "run", "--epochs", "3")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs, and what it is when it has gone on to three."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for args in (("train", "forecast", "--epochs", "2", "--hidden", "4", "--out", "run"), RESUME):
            patched.setattr("sys.argv", ["plait", *args])
            with pytest.raises(SystemExit) as end:
                cli.main()
            assert not end.value.code
            shutil.copytree("run", "before" if args != RESUME else "whole")
    return folder


@pytest.fixture
def run(runs: Path, empty_folder: Path) -> Path:
    shutil.copytree(runs / "before", "run")
    return Path("run")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "mine").write_text("precious")


def a_loop_of_links(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def foreign(path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, path)


def nan_header(path: Path) -> None:
    header = b'{"weight": NaN}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def other_shapes(path: Path) -> None:
    weights, meta = loads(path)
    path.write_bytes(dumps({**weights, "head.bias": torch.zeros(3)}, meta))


def a_weight_less(path: Path) -> None:
    weights, meta = loads(path)
    del weights["head.bias"]
    path.write_bytes(dumps(weights, meta))


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content) and None


def other_epochs(path: Path) -> None:
    found = json.loads(path.read_text())
    found["epochs"][0]["loss"] += 1
    path.write_text(json.dumps(found))


DAMAGE = [
    (MODEL, truncated, "is truncated or damaged ("),
    (MODEL, empty, "is truncated or damaged ("),
    (MODEL, text("not tensors"), "is truncated or damaged ("),
    (MODEL, nan_header, "is truncated or damaged ("),
    (MODEL, foreign, "is not a checkpoint of plait: it was written by something else"),
    (
        MODEL,
        other_shapes,
        "has head.bias as torch.float32 of shape (3,), and the model has torch.float32 of shape (1,)",
    ),
    (MODEL, a_weight_less, "has no head.bias, which the model has"),
    (MODEL, a_folder, "is a directory"),
    (MODEL, a_pipe, "is a pipe or a socket"),
    (MODEL, a_loop_of_links, "cannot be read: Too many levels of symbolic links"),
    (HISTORY, truncated, "is truncated or damaged"),
    (HISTORY, empty, "is truncated or damaged"),
    (HISTORY, text("[]"), "is truncated or damaged"),
    (HISTORY, text('{"epochs": {}}'), "is truncated or damaged"),
    (HISTORY, text("[" * 100_000), "is truncated or damaged"),
    (HISTORY, other_epochs, "has other epochs than state.safetensors"),
    (HISTORY, a_folder, "is a directory"),
]


def untimed(folder: Path) -> dict:
    found = json.loads((folder / HISTORY).read_text())
    return {**found, "epochs": [{**row, "seconds": 0, "rate": 0} for row in found["epochs"]]}


@pytest.mark.parametrize(("name", "damage", "found"), DAMAGE)
def test_what_was_found_and_what_is_done(name: str, damage, found: str, run: Path, runs: Path, plait) -> None:
    damage(run / name)
    old = (run / name).lstat()
    code, out, err = plait(*RESUME)
    assert code == 0, err
    assert err.startswith(f"run/{name} {found}")
    assert err.endswith(f": it is kept as {name}.damaged, and written again from state.safetensors.\n")
    assert err.count("\n") == 1
    assert "epoch 3/3" in out
    assert os.path.samestat((run / f"{name}.damaged").lstat(), old)  # the very file, or folder, that was there
    assert (run / MODEL).read_bytes() == (runs / "whole" / MODEL).read_bytes()
    assert untimed(run) == untimed(runs / "whole")
    assert plait(*RESUME)[2] == ""  # all is well now


@pytest.mark.parametrize("name", [MODEL, HISTORY])
def test_a_file_that_is_missing(name: str, run: Path, runs: Path, plait) -> None:
    (run / name).unlink()
    code, _, err = plait(*RESUME)
    assert (code, err) == (0, f"run/{name} is missing: it is written again from state.safetensors.\n")
    assert (run / MODEL).read_bytes() == (runs / "whole" / MODEL).read_bytes()
    assert untimed(run) == untimed(runs / "whole")


def test_both_and_again(run: Path, plait) -> None:
    for times in (1, 2):
        truncated(run / MODEL)
        empty(run / HISTORY)
        code, _, err = plait(*RESUME)
        assert code == 0
        assert len(err.splitlines()) == 2
        more = "" if times == 1 else "-2"
        assert all(f".damaged{more}, and written again" in line for line in err.splitlines())
    assert {path.name for path in run.glob("*.damaged*")} == {
        f"{name}.damaged{k}" for name in (MODEL, HISTORY) for k in ("", "-2")
    }


def test_nothing_is_touched_if_the_state_is_lost(run: Path, plait) -> None:
    for damage in (truncated, lambda path: path.unlink()):
        damage(run / "state.safetensors")
        empty(run / MODEL)
        before = {path.name: path.read_bytes() for path in run.iterdir()}
        code, _, err = plait("train", "forecast", "--resume", "run")
        assert code == 2
        assert err.startswith("plait: run/state.safetensors ")
        assert err.count("\n") == 1
        assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_older_copies_are_what_a_killed_process_leaves(run: Path, runs: Path, plait) -> None:
    """It had written state.safetensors alone."""
    shutil.copy(runs / "whole" / "state.safetensors", run)
    code, _, err = plait(*RESUME)
    assert (code, err) == (0, "")
    assert untimed(run) == untimed(runs / "whole")


def test_a_folder_in_which_nothing_can_be_renamed(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / MODEL).write_text("damaged")
    (tmp_path / HISTORY).write_text('{"epochs": []}')

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(PlaitError, match=r"model.safetensors cannot be written: Permission denied"):
        check_copies(Run(tmp_path), {}, [])
    assert (tmp_path / MODEL).read_text() == "damaged"
