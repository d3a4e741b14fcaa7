"""Large matrices on large pages: the first touch of fresh memory otherwise costs more than the arithmetic on it."""

import ctypes
import sys
from functools import cache
from typing import Any

from torch import Tensor

HUGE = 1 << 21  # bytes of a large page
WORTH = 1 << 22  # bytes: two large pages or more
MADV_HUGEPAGE = 14


@cache
def madvise() -> Any:
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def empty(like: Tensor, *shape: int) -> Tensor:
    return advised(like.new_empty(*shape))


def advised(tensor: Tensor) -> Tensor:
    """The tensor, not yet touched: the system is asked for large pages, and may refuse."""
    if tensor.nbytes >= WORTH and tensor.device.type == "cpu" and (advise := madvise()):
        start = tensor.data_ptr()
        first, last = -(-start // HUGE) * HUGE, (start + tensor.nbytes) // HUGE * HUGE
        advise(first, last - first, MADV_HUGEPAGE)
    return tensor
