"""CIFAR's Python batches: pickles, read by an unpickler that knows arrays, bytes, lists and dicts, and nothing else.

A pickle may name any function, to be called when it is read. So names are looked up here in a table of stand-ins, which
keep what they are called with; nothing of NumPy or of any other module is called for a file.
"""

import io
import math
import pickle
import re
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PlaitError

Pixels = NDArray[np.uint8]
SIDE, COLOURS = 32, 3
ADMITTED = "arrays, bytes, lists and dicts"
EXPECTED = f"expected a batch of CIFAR-10, with data (n, {COLOURS * SIDE * SIDE}) of bytes"
WEIGHTS = (19595, 38470, 7471)  # of red, green and blue in grey, of 65536 in all: those that Pillow has
NAMES = ("numpy.ndarray", "numpy.dtype", "numpy.core.multiarray._reconstruct", "numpy.core.numeric._frombuffer")


class Refused(Exception):
    """A pickle that asks for something that is not admitted."""


class Call:
    """What an admitted name is called with, and the state that follows."""

    def __init__(self, name: str, args: tuple[Any, ...]) -> None:
        self.name, self.args = name, args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Reader(pickle._Unpickler):
    """Python's own, in Python: the one in C trusts the sizes that a file claims."""

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}".replace("numpy._core", "numpy.core")
        if full in NAMES:
            return lambda *args: Call(name, args)
        if full == "_codecs.encode":  # how Python 3 writes bytes for Python 2
            return lambda *args: encoded(*args)
        raise Refused(full)

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("a persistent object")


def encoded(text: Any, coding: Any) -> bytes:
    if not isinstance(text, str) or coding != "latin1":
        raise Refused(f"_codecs.encode to {coding!r:.40}")
    return text.encode("latin1")


def part_of(name: str) -> str | None:
    """Of a file, by its name: data_batch_1 is to train on, test_batch for the test."""
    file = PurePosixPath(name).name
    return "train" if re.fullmatch(r"data_batch_\d+", file) else "test" if file == "test_batch" else None


def images(content: bytes, where: str) -> Pixels:  # (n, 32, 32)
    try:
        found = Reader(io.BytesIO(content), encoding="bytes").load()
        data = found.get(b"data", found.get("data")) if isinstance(found, dict) else None
        if data is None:
            raise ValueError("it has no data")
        rows = array(data)
    except Refused as e:
        raise PlaitError(
            f"{where} asks for {e}, which may run code when it is read: expected a pickle of {ADMITTED} alone."
        ) from None
    except Exception as e:  # of many kinds: what a pickle says is done, whatever it makes of it
        raise PlaitError(f"{where} cannot be read ({type(e).__name__}: {e!s:.100}): {EXPECTED}.") from None
    if rows.ndim != 2 or rows.shape[1] != COLOURS * SIDE * SIDE:
        raise PlaitError(f"{where} has data of shape {rows.shape}: {EXPECTED}.")
    colours = rows.reshape(-1, COLOURS, SIDE, SIDE)
    grey = sum(w * colours[:, k].astype(np.uint32) for k, w in enumerate(WEIGHTS))
    return ((np.asarray(grey) + 2**15) >> 16).astype(np.uint8)


def array(call: Any) -> Pixels:
    """An array of bytes, from how it is pickled: by protocol 5, or by those before it."""
    if not isinstance(call, Call):
        raise ValueError("its data is no array")
    if call.name == "_frombuffer":
        content, dtype, shape, order = call.args
    elif call.name == "_reconstruct" and isinstance(call.state, tuple):
        _, shape, dtype, columns_first, content = call.state
        order = "F" if columns_first else "C"
    else:
        raise ValueError("its data is no array")
    if not isinstance(dtype, Call) or dtype.name != "dtype" or dtype.args[0] not in ("u1", b"u1"):
        raise ValueError("its array is not one of bytes")
    if not isinstance(content, bytes | bytearray) or math.prod(shape) != len(content):
        raise ValueError("its array has another number of bytes than its shape says")
    return np.frombuffer(content, np.uint8).reshape(shape, order=order)
