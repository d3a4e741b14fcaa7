"""Ctrl-C and SIGTERM: one plain line, exit code 130, nothing half written, at any moment."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from plait.training.signals import Interrupt
from processes import ALWAYS, COMMANDS, QUICK, hear, names, undisturbed, weights

AT = """
import os, signal, sys
from plait.tasks.forecast import Forecast
name, times, number = sys.argv.pop(1), int(sys.argv.pop(1)), int(sys.argv.pop(1))
old = getattr(Forecast, name)
def sends(*args, **options):
    for _ in range(times):
        os.kill(os.getpid(), number)
    return old(*args, **options)
setattr(Forecast, name, sends)
from plait.__main__ import main
main()
"""


def stopped_at(name: str, times: int, number: int, *args: str) -> tuple[str, str]:
    """A process that gets `times` signals where a method of the task is called -> what it prints"""
    command = [sys.executable, "-c", AT, name, str(times), str(int(number)), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, preexec_fn=hear)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    return done.stdout, done.stderr


def test_a_signal_in_the_final_evaluation(plait, empty_folder: Path) -> None:
    _, err = stopped_at("evaluate", 1, signal.SIGINT, "train", "forecast", *QUICK, "--out", "run")
    assert err == "plait: stopped; go on with plait train forecast --resume run.\n"
    code, out, _ = plait("train", "forecast", "--resume", "run")
    assert code == 0
    assert "nothing is left to do: all its epochs (2) are done" in out


LEAVE = "import os, sys; from plait.training import signals; signals.resume_command = sys.argv[1]; {}; signals.leave()"


def test_the_last_words_cannot_fail() -> None:
    whole = b"plait: stopped; go on with r\xff.\n"
    for before, said in (("0", whole), ("os.close(2)", b""), ("sys.stderr = None", whole)):
        command = [sys.executable, "-c", LEAVE.format(before), b"r\xff"]
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
        assert done.returncode == 130, done.stderr
        assert done.stderr == said


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGTERM)
        assert not interrupt.asked
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_stage(number: int, plait, empty_folder: Path) -> None:
    start = ("train", "forecast", *QUICK, "--out", "run")
    assert stopped_at("files", 1, number, *start) == ("", "plait: stopped.\n")  # the data is read
    assert names(empty_folder) == []
    out, _ = stopped_at("loss", 1, number, *start)
    assert re.search(r"^stopped in epoch 1 of 2$", out, re.M)
    assert re.search(r"^go on     plait train forecast --resume run$", out, re.M)
    for name, times in (("loss", 2), ("pictures", 1)):
        _, err = stopped_at(name, times, number, "train", "forecast", "--resume", "run")
        assert err == "plait: stopped; go on with plait train forecast --resume run.\n"
    assert not any(name.startswith(".") for name in names(Path("run")))
    assert plait("evaluate", "run")[0] == 0


def listens(process: subprocess.Popen[str]) -> bool:
    """Whether it has a handler for SIGTERM by now: Python itself brings none."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s*(\w+)$", text, re.M)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def as_module(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "plait", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc here")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_libraries_are_imported(number: int, empty_folder: Path) -> None:
    process = as_module("train", "forecast")
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(number)
    assert process.communicate(timeout=300) == ("", "plait: stopped.\n")
    assert process.returncode == 130
    assert names(empty_folder) == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc here")
def test_ctrl_c_at_40_moments(empty_folder: Path, capsys) -> None:
    _, seconds = undisturbed("forecast")
    counts = {"before ours": 0, "never begun": 0, "resumed": 0, "over": 0}
    for k in range(40):
        folder = Path(f"runs/run-{k}")
        process = as_module(*COMMANDS["forecast"], *ALWAYS, "--out", str(folder))
        time.sleep(seconds * (k + 0.5) / 40)
        ours = process.poll() is None and listens(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        if not ours and process.returncode != 0:
            counts["before ours"] += 1  # Python itself was not ready
            assert not folder.exists()
            continue
        assert "Traceback" not in out + err
        if process.returncode == 0:  # it had said all there is to say
            assert "forecast  plait forecast" in out
            counts["over"] += 1
        else:
            assert process.returncode == 130, err
            assert "stopped" in out + err
            counts["resumed" if folder.exists() else "never begun"] += 1
        assert not any(Path("runs").glob(".plait.*"))
        if folder.exists():
            again = as_module("train", "forecast", "--resume", str(folder))
            said = again.communicate(timeout=300)
            assert again.returncode == 0, said
            expected, found = weights(Path("whole-forecast")), weights(folder)
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert counts["never begun"] >= 5
    assert counts["resumed"] >= 1
    with capsys.disabled():
        print(f"\n40 times Ctrl-C: {counts}")
