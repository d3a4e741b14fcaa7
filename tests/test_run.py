"""A run folder: whole or not there, checked to the last bit, and what becomes of the files that a user names."""

import fcntl
import math
import os
import re
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest
import torch

from plait import PlaitError
from plait.data import series
from plait.tasks import pictures
from plait.tasks.forecast import Forecast
from plait.tasks.settings import ForecastSettings
from plait.training.loop import train
from plait.training.run import Run

QUICK = ("--epochs", "2", "--hidden", "4")
TEXT = "one two three four five six seven\n" * 60


# --- a run is there whole, or not at all ------------------------------------------------------------------------------
def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_run_gets_its_name_when_all_is_there_to_go_on(tmp_path: Path) -> None:
    settings = ForecastSettings(epochs=1, hidden=4)
    run = Run.create(str(tmp_path / "a" / "run"), "forecast", {"settings": settings.as_dict()}, {"series.csv": b"1"})
    assert names(tmp_path) == []
    seen: list[list[str]] = []
    begin = run.begin

    def watched() -> None:
        seen.append(names(tmp_path / "a"))
        begin()
        seen.append(names(tmp_path / "a"))
        seen.append(names(tmp_path / "a" / "run"))

    run.begin = watched
    train(Forecast(settings, series.airline()), settings, run)
    (hidden,), after, files = seen
    assert re.fullmatch(r"\.plait\..*\.partial", hidden)
    assert after == ["run"]
    assert files == ["config.json", "history.json", "model.safetensors", "series.csv", "state.safetensors"]


def test_the_lock_is_held_from_before_the_name_to_the_end(tmp_path: Path) -> None:
    run = Run.create(str(tmp_path / "run"), "forecast", {})
    with run.locked():
        with pytest.raises(PlaitError, match="is being trained by another process"), Run(run.folder).locked():
            pass
        run.begin()
        with pytest.raises(PlaitError, match="is being trained by another process"), Run(tmp_path / "run").locked():
            pass
    with Run(tmp_path / "run").locked():
        pass


@pytest.mark.parametrize("out", ["run", "a/b/run", "empty", None])
@pytest.mark.parametrize("why", [PlaitError, OSError, MemoryError, KeyboardInterrupt])
def test_a_start_that_fails_leaves_nothing(out: str | None, why: type[BaseException], empty_folder: Path) -> None:
    Path("empty").mkdir()
    run = Run.create(out, "forecast", {}, {"series.csv": b"1"})

    def fail() -> None:
        with run.locked():
            assert run.folder.is_dir()
            raise why

    with pytest.raises(why):
        fail()
    assert names(empty_folder) == ["empty"]
    assert names(Path("empty")) == []


def test_a_folder_above_is_left_if_it_was_there(empty_folder: Path) -> None:
    Path("a").mkdir()
    run = Run.create("a/b/run", "forecast", {})
    with pytest.raises(KeyboardInterrupt), run.locked():
        raise KeyboardInterrupt
    assert names(Path("a")) == []


def test_left_overs_of_the_killed_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".plait.1.0.partial", tmp_path / ".plait.2.0.partial"
    for folder in (dead, alive):
        folder.mkdir()
        (folder / "state.safetensors").write_text("x")
    handle = os.open(alive, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    run = Run.create(str(tmp_path / "run"), "forecast", {})
    with run.locked():
        run.begin()
    os.close(handle)
    assert names(tmp_path) == [alive.name, "run"]


def test_each_gets_a_number_of_its_own(empty_folder: Path) -> None:
    """All look for one at the same moment, many times."""
    together, got = threading.Barrier(8), []

    def begin() -> None:
        for _ in range(5):
            run = Run.create(None, "forecast", {})
            together.wait()
            with run.locked():
                together.wait()
                run.begin()
            got.append(run.path.name)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got)) == 40
    assert names(Path("runs")) == sorted(got)


def test_an_empty_folder_keeps_its_permissions_and_a_link_stays(empty_folder: Path) -> None:
    Path("mine").mkdir(mode=0o700)
    Path("link").symlink_to("mine")
    run = Run.create("link", "forecast", {})
    with run.locked():
        run.begin()
    assert Path("link").is_symlink()
    assert stat.S_IMODE(Path("mine").stat().st_mode) == 0o700
    assert names(Path("mine")) == ["config.json"]


def test_a_place_that_cannot_be_taken(empty_folder: Path) -> None:
    with pytest.raises(PlaitError, match=r"the folder that you are in, or a disk.* such as --out run"):
        Run.create(".", "forecast", {})
    with pytest.raises(PlaitError, match="cannot be written: File name too long"):
        Run.create("x" * 300, "forecast", {})
    Path("loop").symlink_to("loop")
    with pytest.raises(PlaitError, match="loop exists already"):
        Run.create("loop", "forecast", {})
    run = Run.create("run", "forecast", {})
    Path("run").mkdir()
    Path("run/file").write_text("of another process")
    with pytest.raises(PlaitError, match="run exists already"), run.locked():
        run.begin()
    assert names(Path("run")) == ["file"]
    assert names(empty_folder) == ["loop", "run"]
    with pytest.raises(PlaitError, match="cannot be read: File name too long"):
        Run.open("x" * 300)


def test_a_run_can_be_started_again_after_a_start_that_failed(plait, empty_folder: Path) -> None:
    assert plait("train", "forecast", *QUICK, "--data", "nowhere", "--out", "a/r")[0] == 2
    assert names(empty_folder) == []
    assert plait("train", "forecast", *QUICK, "--out", "a/r")[0] == 0
    assert names(Path("a")) == ["r"]


# --- killed, and stopped, at any moment ------------------------------------------------------------------------------
COMMANDS = {
    "forecast": ("train", "forecast", "--epochs", "6", "--hidden", "4"),
    "language": ("train", "language", "--data", "book.txt", "--epochs", "2", "--hidden", "8", "--layers", "1"),
}
ALWAYS = ("--threads", "1", "--save-every", "0", "--patience", "0")


def started(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from plait.cli import main; main()", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The last ones, and the best."""
    state, best = (Run(folder).read_tensors(f"{name}.safetensors")[0] for name in ("state", "model"))
    return {**{k: v for k, v in state.items() if k.startswith("model.")}, **best}


def undisturbed(task: str) -> tuple[dict[str, torch.Tensor], float]:
    """-> the weights that it ends with, and the seconds that it takes once everything is compiled"""
    for out in ("warm", "whole"):
        began = time.monotonic()
        process = started(*COMMANDS[task], *ALWAYS, "--out", f"{out}-{task}")
        said = process.communicate(timeout=600)
        assert process.returncode == 0, said
    return weights(Path(f"whole-{task}")), time.monotonic() - began


def wait_a_little(process: subprocess.Popen[str], folder: Path, seconds: float, rng: Random) -> None:
    """From 1 ms to longer than a whole life; a third of the lives end while their first files are made."""
    if not folder.exists() and rng.random() < 0.33:
        while process.poll() is None and not folder.exists() and not any(folder.parent.glob(".plait.*")):
            time.sleep(0.0005)
        time.sleep(rng.uniform(0, 0.05))
    else:
        low, high = rng.choice([(0.001 / seconds, 0.02), (0, 0.7), (0.5, 1.0), (0.7, 1.2)])
        time.sleep(seconds * rng.uniform(low, high))


@pytest.mark.slow
def test_kill_9_from_the_first_millisecond_on(empty_folder: Path, capsys) -> None:
    """100 times. A run goes on, or was never begun; in the end it has bitwise the weights of one left in peace."""
    Path("book.txt").write_text(TEXT)
    whole = {task: undisturbed(task) for task in COMMANDS}
    rng, counts, kills, runs = Random(0), {"never begun": 0, "to be resumed": 0, "finished": 0}, 0, 0
    while kills < 100:
        runs += 1
        task = list(COMMANDS)[runs % 2]
        expected, seconds = whole[task]
        folder, code, lives = Path(f"runs/{task}-{runs}"), -9, 0
        while code != 0:
            again = ("train", task, "--resume", str(folder))
            process = started(*(again if folder.exists() else (*COMMANDS[task], *ALWAYS, "--out", str(folder))))
            lives += 1
            if kills < 100 and lives < 5:
                wait_a_little(process, folder, seconds, rng)
                process.kill()
                kills += 1
                said = process.communicate()
                code = process.returncode
                counts["finished" if code == 0 else "to be resumed" if folder.exists() else "never begun"] += 1
            else:
                said = process.communicate(timeout=600)
                code = process.returncode
                assert code == 0, said
            assert code in (0, -9), said
            if folder.exists():
                assert {"config.json", "state.safetensors", "model.safetensors"} <= set(names(folder))
        found = weights(folder)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert sum(counts.values()) == 100
    assert min(counts["never begun"], counts["to be resumed"]) >= 10
    with capsys.disabled():
        print(f"\n100 kills of {runs} runs: {counts}")


# --- pictures ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "rows", [[(6.1234567, 6.2)], [(900, 177)], [(1e300, 1e200)], [(300 / k + 60, 200 / k + 90) for k in range(1, 14)]]
)
def test_a_perplexity_picture_has_a_few_round_ticks(rows: list[tuple[float, float]], monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr(pictures, "png", lambda figure: drawn.append(figure) or b"")
    history = [{"epoch": k, "loss": math.log(a), "validation": math.log(b)} for k, (a, b) in enumerate(rows, 1)]
    pictures.perplexity_picture("name", history, rows[-1][1])
    drawn[0].canvas.draw()
    (axes,) = drawn[0].axes
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        at = [t for t in axis.get_majorticklocs() if limits[0] <= t <= limits[1]]
        shown = [label.get_text() for label in axis.get_ticklabels() if label.get_text()]
        assert 1 <= len(at) <= 9
        assert len(set(shown)) == len(shown)
        assert all(len(text) <= 6 for text in shown)
        assert [t for t in axis.get_minorticklocs() if limits[0] <= t <= limits[1]] == []
    assert all(t == int(t) for t in axes.get_xticks())


def test_a_forecast_picture_shows_the_forecast_that_is_hard_to_beat(monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr(pictures, "png", lambda figure: drawn.append(figure) or b"")
    task = Forecast(ForecastSettings(hidden=4), series.airline())
    metrics = task.evaluate()
    task.pictures(metrics, [])
    lines = {line.get_label(): line.get_ydata() for line in drawn[0].axes[0].lines}
    assert list(lines) == ["history", "truth", "seasonal naive", "seasonal naive + drift", "lstm, 12 steps at a time"]
    found = series.errors(lines["seasonal naive + drift"][1:], task.data.values[-24:])
    assert found == metrics["seasonal naive + drift"]
