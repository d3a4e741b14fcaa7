"""Who runs a kernel: torch's own OpenMP threads, as many as torch.set_num_threads says.

One thread alone after a fork (the child has no others, and waiting for them would never end), inside another parallel
region, while another Python thread has the team, and where torch's OpenMP cannot be found.
"""

import ctypes
import os
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import torch

from . import compiler

_team = threading.Lock()
_forked = False


def _after_fork() -> None:
    global _forked, _team
    _forked, _team = True, threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


class OpenMP:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.parallel = address_of(library.GOMP_parallel)
        self.team_size = address_of(library.omp_get_num_threads)
        self.inside = library.omp_in_parallel


def address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def loaded() -> list[str]:
    """The OpenMP libraries in this process. (A second one would bring a second set of threads.)"""
    maps = Path("/proc/self/maps")
    if maps.is_file():
        paths = {line.split(maxsplit=5)[5].strip() for line in maps.read_text().splitlines() if line.count("/")}
    else:
        paths = {str(path) for path in (Path(torch.__file__).parent / "lib").iterdir()}
    ours = [p for p in sorted(paths) if Path(p).name.startswith(("libgomp", "libomp", "libiomp"))]
    return sorted(ours, key=lambda p: not p.startswith(str(Path(torch.__file__).parents[1])))


@cache
def openmp() -> OpenMP | None:
    for path in loaded():
        try:
            return OpenMP(ctypes.CDLL(path))
        except (OSError, AttributeError):  # another runtime than GNU's, without its entry points
            continue
    return None


def why_alone() -> str | None:
    """The sentence for `plait engines`, if the kernels cannot have torch's threads here."""
    return None if openmp() else "torch's OpenMP threads were not found, so it runs on one thread"


@cache
def sched_yield() -> int:
    return address_of(ctypes.CDLL(None).sched_yield) if sys.platform != "win32" else 0


def team_size() -> int:
    """The address of the function that says how many a team has come to be."""
    omp = openmp()
    return 0 if omp is None else omp.team_size


@cache
def start() -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)(
        compiler.walk()["plait_start"]
    )


def threads() -> int:
    """How many a kernel may count on. It may still get fewer."""
    omp = None if _forked else openmp()
    return 1 if omp is None or omp.inside() else torch.get_num_threads()


def run(program: int, addresses: bytes, workspace: int, count: int) -> None:
    """The program on `count` threads, or on this one alone if another Python thread has the team."""
    omp = openmp() if count > 1 else None
    if omp is not None and _team.acquire(blocking=False):
        try:
            start()(program, addresses, workspace, omp.parallel)
        finally:
            _team.release()
    else:
        start()(program, addresses, workspace, 0)
