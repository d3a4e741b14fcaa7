"""Measuring with malloc as it comes, or with one that keeps what was freed."""

import ctypes
import os
import platform
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import torch

from ...errors import PlaitError
from ...kernels import libc
from ...ranks.launch import KEEP

ABOUT = {"default": "malloc is as it comes", "tuned": "malloc is told to keep its memory"}
PR_SET_PDEATHSIG = 1


def runner(malloc: str) -> Callable[..., Any]:
    """Calls a function with its arguments, with that malloc."""
    if malloc == "default":
        return lambda function, *args: function(*args)
    if platform.libc_ver()[0] != "glibc":
        raise PlaitError("malloc 'tuned' is a setting of glibc, which is not here: leave --malloc out.")
    return tuned


def tuned(function: Callable[..., Any], *args: Any) -> Any:
    """In a process of its own, for glibc reads its settings when a process starts."""
    try:
        with (
            patch.dict(os.environ, KEEP),
            ProcessPoolExecutor(1, get_context("spawn"), begin, (torch.get_num_threads(),)) as process,
        ):
            return process.submit(function, *args).result()
    except BrokenProcessPool:
        raise PlaitError("the process that measured was ended from outside: is there enough memory for it?") from None


def begin(threads: int) -> None:
    """The process ends silently with its parent, or on Ctrl-C: the parent prints the message."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    libc.find("prctl", ctypes.c_int, ctypes.c_ulong)(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(threads)
