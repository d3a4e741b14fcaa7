"""Processes of their own, which are ended if they hang; and runs that such processes make."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from plait.training.run import Run

PATIENCE = 180  # seconds until a process counts as hung
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def start(code: str, *args: object, **environment: str | Path) -> subprocess.Popen[str]:
    """Python, on this code. Its threads wait as they do for users, however those of the tests do."""
    command = [sys.executable, "-c", code, *map(str, args)]
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    env = {**inherited, **{name: str(value) for name, value in environment.items()}}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """-> what it printed, on stdout and on stderr"""
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"it hung, having said: {out}{err}") from None
    assert process.returncode == 0, err
    return out, err


def python(code: str, *args: object, **environment: str | Path) -> tuple[str, str]:
    return finish(start(code, *args, **environment))


def in_child(holds: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Whether it holds in a forked process, which has what this one has."""
    child = get_context("fork").Process(target=lambda: os._exit(0 if holds() else 1))
    child.start()
    child.join(patience)
    if hung := child.is_alive():
        child.kill()
        child.join()
    assert not hung
    return child.exitcode == 0


def hear() -> None:
    """Before a process begins: a shell's background jobs ignore Ctrl-C, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


# --- runs ------------------------------------------------------------------------------------------------------------
QUICK = ("--epochs", "2", "--hidden", "4")
COMMANDS = {
    "forecast": ("train", "forecast", "--epochs", "6", "--hidden", "4"),
    "language": ("train", "language", "--data", "book.txt", "--epochs", "2", "--hidden", "8", "--layers", "1"),
}
ALWAYS = ("--threads", "1", "--save-every", "0", "--patience", "0")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def started(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "plait", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The last ones, and the best."""
    state, best = (Run(folder).read_tensors(f"{name}.safetensors")[0] for name in ("state", "model"))
    return {**{k: v for k, v in state.items() if k.startswith("model.")}, **best}


def killed(process: subprocess.Popen[str], folder: str, saves: int) -> None:
    """kill -9, when so many checkpoints were seen."""
    state, seen = Path(folder) / "state.safetensors", set[int]()
    while len(seen) < saves:
        assert process.poll() is None, process.communicate()
        if state.exists():
            seen.add(state.stat().st_mtime_ns)
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def check_same_bits(one: str, other: str) -> None:
    expected, found = weights(Path(one)), weights(Path(other))
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def check_two_ranks(command: Sequence[str], plait: Callable[..., tuple[int, str, str]]) -> None:
    """Two data ranks end with the weights of one process."""
    assert plait(*command, "--threads", "1", "--out", "one")[0] == 0
    process = started(*command, "--parallel", "data=2", "--out", "two")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, (out, err)
    assert "2 ranks: data=2" in out
    one, two = weights(Path("one")), weights(Path("two"))
    for name, tensor in one.items():
        assert (tensor - two[name]).abs().max() / tensor.abs().max() < 1e-5


def undisturbed(task: str) -> tuple[dict[str, torch.Tensor], float]:
    """-> the weights that it ends with, and the seconds that it takes once everything is compiled"""
    for out in ("warm", "whole"):
        began = time.monotonic()
        process = started(*COMMANDS[task], *ALWAYS, "--out", f"{out}-{task}")
        said = process.communicate(timeout=600)
        assert process.returncode == 0, said
    return weights(Path(f"whole-{task}")), time.monotonic() - began
