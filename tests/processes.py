"""Processes of their own, which are ended if they hang."""

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

PATIENCE = 180  # seconds until a process counts as hung
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def start(code: str, *args: object, **environment: str | Path) -> subprocess.Popen[str]:
    """Python, on this code."""
    command = [sys.executable, "-c", code, *map(str, args)]
    env = {**os.environ, **{name: str(value) for name, value in environment.items()}}
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
