"""How many threads NumPy's own matrix products take: torch's number says nothing to them."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads64_")


@cache
def openblas() -> tuple[Any, Any] | None:
    """OpenBLAS's `get` and `set`, if it is in NumPy's wheel."""
    folder = Path(np.__file__).parent
    for file in sorted([*folder.with_name("numpy.libs").glob("*openblas*"), *folder.glob(".dylibs/*openblas*")]):
        library = ctypes.CDLL(str(file))
        for name in (*NAMES, "openblas_{}_num_threads"):
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


@contextmanager
def threads(count: int) -> Iterator[bool]:
    """So many inside the block. False if nobody can say."""
    found = openblas()
    if found is None:
        yield False
        return
    get, put = found
    before = get()
    put(count)
    try:
        yield True
    finally:
        put(before)
