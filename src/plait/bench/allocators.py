"""What a benchmark's memory comes from: malloc as it comes, or one that keeps what was freed."""

import ctypes
import os
import platform
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

import torch

from ..errors import PlaitError, unknown
from ..kernels import libc

ABOUT = {
    "default": "malloc is as it comes",
    "tuned": "malloc is told to keep its memory",
}
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}  # bytes
PR_SET_PDEATHSIG = 1


def get(name: str) -> Callable[..., Any]:
    """Calls a function with its arguments, with that malloc."""
    if name not in ABOUT:
        raise unknown("malloc", name, ABOUT)
    if name == "default":
        return here
    if platform.libc_ver()[0] != "glibc":
        raise PlaitError("malloc 'tuned' is a setting of glibc, which this system does not have: leave --malloc out.")
    return tuned


def here(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def tuned(function: Callable[..., Any], *args: Any) -> Any:
    """In a process of its own, for glibc reads its settings when a process starts."""
    before = {name: os.environ.get(name) for name in KEEP}
    os.environ.update(KEEP)
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), begin, (torch.get_num_threads(),)) as process:
            return process.submit(function, *args).result()
    except BrokenProcessPool:
        raise PlaitError("the process that measured was ended from outside: is there enough memory for it?") from None
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def begin(threads: int) -> None:
    """It ends silently with its parent, or on Ctrl-C: the parent prints the message."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    libc.find("prctl", ctypes.c_int, ctypes.c_ulong)(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(threads)
