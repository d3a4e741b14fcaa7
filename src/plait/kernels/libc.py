"""Calls of the C library, most of them about memory. On systems other than Linux they do nothing."""

import ctypes
import mmap
import sys
from functools import cache
from typing import Any

HUGE = 1 << 21  # bytes of a large page
WORTH_HUGE = 1 << 22  # bytes: two large pages or more
MADV_DONTNEED, MADV_HUGEPAGE = 4, 14


@cache
def find(name: str, *arguments: Any) -> Any:
    """A function of the C library, or None where there is none."""
    found = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if found is not None:
        found.argtypes = arguments
    return found


def ask_for_large_pages(start: int, size: int) -> None:
    """For memory that was not used yet. The system may refuse."""
    if size >= WORTH_HUGE:
        advise(start, size, HUGE, MADV_HUGEPAGE)


def drop_pages(start: int, size: int) -> None:
    """They go back to the system, and what was written there is lost. The memory may be used again."""
    advise(start, size, mmap.PAGESIZE, MADV_DONTNEED)


def advise(start: int, size: int, page: int, advice: int) -> None:
    """What the system is to do with the whole pages of some memory."""
    if madvise := find("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int):
        first, last = -(-start // page) * page, (start + size) // page * page
        madvise(first, last - first, advice)


def trim() -> None:
    """malloc gives the memory that was freed back to the system."""
    if malloc_trim := find("malloc_trim", ctypes.c_size_t):
        malloc_trim(0)
