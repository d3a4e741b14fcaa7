"""Whatever happens while a checkpoint is written, the run goes on from a whole one."""

import dataclasses
import multiprocessing
import os
import random
import resource
import stat
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from plait import PlaitError
from plait.data import series
from plait.tasks.forecast import Forecast
from plait.tasks.settings import ForecastSettings
from plait.training.files import atomically
from plait.training.loop import train
from plait.training.run import Run

SETTINGS = ForecastSettings(hidden=200, patience=0, save_every=0.0)  # a checkpoint after every step


def train_until_killed(folder: str, resume: bool, epochs: int) -> None:
    torch.set_num_threads(1)
    settings = dataclasses.replace(SETTINGS, epochs=epochs)
    run = Run.open(folder) if resume else Run.create(folder, "forecast", {"settings": settings.as_dict()})
    train(Forecast(settings, series.airline()), settings, run, resume=resume)


@pytest.mark.parametrize(("times", "epochs"), [(12, 40), pytest.param(50, 100, marks=pytest.mark.slow)])
def test_kill_9_while_checkpoints_are_written(times: int, epochs: int, tmp_path: Path) -> None:
    """Many times, at random moments: the run always goes on, never back, and ends where an undisturbed one ends."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["plait.training.loop", "plait.tasks.forecast", "torch._dynamo"])
    run, whole = Run(tmp_path / "run"), Run(tmp_path / "whole")
    rng, partial, steps_before, kills = random.Random(0), 0, -1, 0
    state = run.path / "state.safetensors"
    while kills < times:
        assert state.exists() == run.path.exists()  # it is there with all that it takes to go on, or not at all
        process = context.Process(target=train_until_killed, args=(str(run.path), state.exists(), epochs))
        began = state.stat().st_mtime_ns if state.exists() else None
        process.start()
        if kills % 5:  # one life in five ends at any moment, even before it has begun
            while process.is_alive() and (not state.exists() or state.stat().st_mtime_ns == began):
                time.sleep(0.001)  # the others once they have written something
        time.sleep(rng.uniform(0, 0.03))
        assert process.is_alive(), "the run ended before it could be killed so often"
        process.kill()
        process.join()
        assert process.exitcode == -9
        kills += 1
        left = list(run.path.glob(".*.partial"))
        partial += any(left)
        for path in left:
            os.utime(path, (0, 0))  # so old that the next one clears it away
        if state.exists():
            meta = Run.open(str(run.path)).read_tensors("state.safetensors")[1]["progress"]
            steps = meta["epoch"] * 1000 + meta["position"]
            assert steps >= steps_before
            steps_before = steps
    assert partial > 0 or times < 50, "no kill met a write: the test has lost its point"
    assert steps_before > 0
    for path, resume_command in ((run.path, True), (whole.path, False)):  # in processes like those that were killed
        process = context.Process(target=train_until_killed, args=(str(path), resume_command, epochs))
        process.start()
        process.join()
        assert process.exitcode == 0
    found, expected = (r.read_tensors("state.safetensors")[0] for r in (run, whole))
    assert len(found) == len(expected) > 10
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    """A real limit of the system stops the write half way: the disk is full, as far as this process can tell."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            atomically(path, b"x" * 100_000)
        with pytest.raises(PlaitError, match=r"file cannot be written: File too large. What was there .* unharmed"):
            Run(tmp_path).write("file", b"x" * 100_000)
        with pytest.raises(PlaitError, match=r"new cannot be written: File too large.$"):
            Run(tmp_path).write("new", b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_content_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch) -> None:
    path, said = tmp_path / "file", []
    path.write_bytes(b"old")
    fsync, replace = os.fsync, os.replace

    def synced(file: int) -> None:
        status = os.fstat(file)
        said.append("the folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes")
        fsync(file)

    def renamed(*paths: object, **options: object) -> None:
        said.append("the name")
        replace(*paths, **options)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    atomically(path, b"new content")
    assert said == ["11 bytes", "the name", "the folder"]
    assert path.read_bytes() == b"new content"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def finished_run(folder: Path) -> Run:
    settings = ForecastSettings(epochs=1)
    run = Run.create(str(folder / "run"), "forecast", {"settings": settings.as_dict()})
    train(Forecast(settings, series.airline()), settings, run)
    return run


def resume(run: Run, **options) -> None:
    settings = ForecastSettings(epochs=1, **options)
    train(Forecast(settings, series.airline()), settings, run, resume=True)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 100, 4000, -1])
def test_truncated_checkpoint(tmp_path: Path, keep: int) -> None:
    run = finished_run(tmp_path)
    path = run.path / "state.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(PlaitError, match=r"state.safetensors is truncated or damaged .*: restore it from a copy"):
        resume(run)


def test_foreign_checkpoint(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    save_file({"weight": torch.zeros(3)}, run.path / "state.safetensors")
    with pytest.raises(PlaitError, match="is not a checkpoint of plait: it was written by something else"):
        resume(run)


def test_checkpoint_of_another_model(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    with pytest.raises(PlaitError, match=r"was written with hidden 32, not 5: put back what the run began with"):
        resume(run, hidden=5)
    with pytest.raises(PlaitError, match=r"was written with lr 0.002, not 0.1"):
        resume(run, lr=0.1)
    tensors, meta = run.read_tensors("state.safetensors")
    tensors["model.head.bias"] = torch.zeros(3)
    run.write_tensors("state.safetensors", tensors, meta)
    with pytest.raises(PlaitError, match=r"does not fit the model of its config.json: size mismatch for .*head.bias"):
        resume(run)


def test_checkpoint_of_other_data(tmp_path: Path) -> None:
    run, settings, data = finished_run(tmp_path), ForecastSettings(epochs=1), series.airline()
    other = dataclasses.replace(data, values=data.values + 1)
    with pytest.raises(PlaitError, match="was written with other data: put back what the run began with"):
        train(Forecast(settings, other), settings, run, resume=True)


def test_best_weights_of_another_shape(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    tensors, meta = run.read_tensors("state.safetensors")
    name = next(key for key in tensors if key.startswith("best."))
    run.write_tensors("state.safetensors", {**tensors, name: torch.zeros(7, 7)}, meta)
    with pytest.raises(PlaitError, match="does not fit the model"):
        resume(run)


def test_checkpoint_without_an_optimizer(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    run.write_tensors("state.safetensors", run.read_tensors("model.safetensors")[0], {})
    with pytest.raises(PlaitError, match=r"does not fit the model|lacks what a checkpoint of this run has"):
        resume(run)


def test_a_checkpoint_that_was_lost(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    (run.path / "state.safetensors").unlink()
    with pytest.raises(
        PlaitError, match=r"state.safetensors does not exist: restore it from a copy, or train again with"
    ):
        resume(run)


def begun(out: str | None) -> Run:
    run = Run.create(out, "forecast", {}, {"series.csv": b"1"})
    with run.locked():
        run.begin()
    return run


def test_run_folders_are_numbered_and_never_overwritten(empty_folder: Path) -> None:
    assert [str(begun(None).path) for _ in range(3)] == [f"runs/forecast-{k}" for k in (1, 2, 3)]
    with pytest.raises(PlaitError, match=r"runs/forecast-2 exists already: choose another --out, or .*--resume"):
        Run.create("runs/forecast-2", "forecast", {})
    (empty_folder / "file").write_text("")
    with pytest.raises(PlaitError, match="file exists already"):
        Run.create("file", "forecast", {})
    with pytest.raises(PlaitError, match="file is a file: a run needs a folder to be in"):
        Run.create("file/run", "forecast", {})
    (empty_folder / "empty").mkdir()
    assert begun("empty").path.name == "empty"
    assert sorted(p.name for p in (empty_folder / "empty").iterdir()) == ["config.json", "series.csv"]


def test_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(PlaitError, match="nowhere does not exist: expected the folder of a run"):
        Run.open(str(tmp_path / "nowhere"))
    with pytest.raises(PlaitError, match=r"has no config.json"):
        Run.open(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PlaitError, match=r"config.json cannot be read as a run's settings"):
        Run.open(str(tmp_path)).config("forecast")
    (tmp_path / "config.json").write_text('{"task": "language"}')
    with pytest.raises(PlaitError, match="is a run of task 'language', not 'forecast'"):
        Run.open(str(tmp_path)).config("forecast")
