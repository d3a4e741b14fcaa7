"""The threads that run a kernel: torch's own OpenMP threads, as many as torch.set_num_threads says.

The calling thread works alone after a fork (the child has no other threads, and would wait for them forever), inside
another parallel region, while another Python thread uses the team, and where torch's OpenMP cannot be found.
"""

import ctypes
import os
import platform
import sys
import threading
from functools import cache
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
    """One OpenMP runtime of this process: its entry points, and the file that has them."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.parallel = address_of(library.GOMP_parallel)
        self.team_size = address_of(library.omp_get_num_threads)
        self.number = address_of(library.omp_get_thread_num)
        self.inside = library.omp_in_parallel
        self.set_threads = library.omp_set_num_threads
        found = (ctypes.c_void_p * 4)()  # by dladdr: its file first
        ctypes.CDLL(None).dladdr(ctypes.c_void_p(self.parallel), found)
        self.path = os.fsdecode(ctypes.string_at(found[0])) if found[0] else "unknown"

    def is_torchs(self) -> bool:
        """Whether torch reports the number of threads that we set in this runtime."""
        count = torch.get_num_threads()
        other = count - 1 if count > 1 else 2  # a runtime may refuse more threads than there are
        self.set_threads(other)
        is_same = torch.get_num_threads() == other
        self.set_threads(count)
        return is_same


def address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def openmp() -> OpenMP | None:
    """The runtime that torch uses. Others may be loaded, too, but their threads would compete with torch's for cores.

    The dynamic linker searches first the global libraries (LD_PRELOAD) and then those that came with torch. So one of
    these two has the runtime.
    """
    if sys.platform == "win32":  # torch's runtime there has no GOMP_parallel
        return None
    for file in (torch._C.__file__, None):
        try:
            found = OpenMP(ctypes.CDLL(file))
        except (AttributeError, OSError):  # it has no such function, or is no library on disk
            continue
        if found.is_torchs():
            return found
    return None


def why_alone() -> str | None:
    """The sentence for `plait engines`, if the kernels cannot have torch's threads here."""
    return None if openmp() else "torch's OpenMP threads were not found, so it runs on one thread"


@cache
def sched_yield() -> int:
    return address_of(ctypes.CDLL(None).sched_yield) if sys.platform != "win32" else 0


@cache
def syscall() -> int:
    """0 where a thread cannot sleep until a word in memory changes (a futex), or where its number is not known."""
    has_futex = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    return address_of(ctypes.CDLL(None).syscall) if has_futex else 0


def team_functions() -> tuple[int, int, int, int]:
    """Addresses of what a kernel calls: the real size of the team; the number of a thread in it, which in most teams of
    one caller is the same thread, with what it used last in its cache; functions that yield the core, and that sleep.
    """
    omp = openmp()
    return *((0, 0) if omp is None else (omp.team_size, omp.number)), sched_yield(), syscall()


@cache
def start() -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(compiler.shared()["plait_start"])


def threads() -> int:
    """The number of threads to plan for. There may be fewer."""
    omp = None if _forked else openmp()
    return 1 if omp is None or omp.inside() else torch.get_num_threads()


def run(program: int, addresses: int, workspace: int, count: int) -> bool:
    """Runs the program on `count` threads, or on this one alone if another Python thread uses the team.

    The first three arguments are addresses. -> whether a team has run it
    """
    omp = openmp() if count > 1 and not _forked else None
    if omp is not None and _team.acquire(blocking=False):
        try:
            start()(program, addresses, workspace, omp.parallel, count)
        finally:
            _team.release()
        return True
    start()(program, addresses, workspace, 0, 1)
    return False
