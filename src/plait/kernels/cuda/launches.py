"""Versions 1 to 3: the parts of samples.py compiled by numba-cuda, launched, and what is copied for that.

Version 1: one thread runs the mini-batch. Version 2: a thread for each sample. Both pass host arrays, and so numba
copies every array to the device and back at each launch. Version 3: arrays that are only read are copied in and never
back, what is only needed on the device stays there, and only results come back.

With NUMBA_ENABLE_CUDASIM=1 numba's simulator runs them, without a device.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .gpu import too_large
from .samples import Form, text_of

Array = NDArray[Any]
Arrays = Mapping[str, Array]
VERSIONS = (1, 2, 3)
THREADS = 64  # of a block
MOST_KERNELS = 512
OUT_OF_MEMORY = 2  # CUDA's number for it
CLEAR = """
def clear(array):
    k = cuda.grid(1)
    if k < array.shape[0]:
        array[k] = zero
"""
HIGHEST = {"float32": 88.7, "float64": 709.7}  # exp of more is infinite


@dataclass
class Moved:
    """Bytes that were copied, to the device and back."""

    there: int = 0
    back: int = 0


@dataclass(frozen=True)
class Launch:
    """The arrays of a launch, by what becomes of them."""

    sizes: tuple[int, ...]  # T, B, N, I, H, P
    read: Arrays
    both: Arrays = field(default_factory=dict)  # read, and written
    work: Arrays = field(default_factory=dict)  # what one part writes and another reads; nothing to begin with
    clear: Arrays = field(default_factory=dict)  # the same, with zeros to begin with
    sums: Arrays = field(default_factory=dict)  # samples add to them; zero to begin with

    @property
    def arrays(self) -> dict[str, Array]:
        return {**self.read, **self.both, **self.work, **self.clear, **self.sums}


class Kernel:
    def __init__(self, form: Form, kind: str, dtype: str) -> None:
        import numba
        from numba import cuda

        text, real = text_of(form, kind), getattr(np, dtype)
        numbers = {"zero": 0.0, "one": 1.0, "inf": math.inf, "nan": math.nan, "highest": HIGHEST[dtype]}
        scope: dict[str, Any] = {name: real(value) for name, value in numbers.items()}
        scope |= {"math": math, "cuda": cuda, "plait_real": getattr(numba, dtype)}
        known = set(scope)
        exec(text.functions, scope)  # text that samples.py produced
        for name in scope.keys() - known - {"__builtins__"}:
            scope[name] = cuda.jit(device=True, inline="always")(scope[name])
        exec(CLEAR + text.kernel, scope)
        self.arrays, self.positioned, self.dtype, self.cuda = text.arrays, form.positioned, dtype, cuda
        self.function, self.clear_function = scope["kernel"], scope["clear"]
        self.compiled, self.clear = cuda.jit(self.function), cuda.jit(self.clear_function)

    def run(self, launch: Launch, version: int, moved: Moved) -> None:
        """What is written is in the launch's arrays afterwards. (In version 3 not what is in `work`.)"""
        grid = (-(-launch.sizes[1] // THREADS), THREADS) if self.positioned else (1, 1)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".*(Host array used|Grid size)"
            )  # that is what versions 1 and 2 are
            try:
                self.run_resident(launch, grid, moved) if version == 3 else self.run_copied(launch, grid, moved)
            except Exception as e:  # numba's; the simulator has no such class
                if getattr(e, "code", None) != OUT_OF_MEMORY:
                    raise
                needed = sum(array.nbytes for array in launch.arrays.values())
                raise too_large(needed, None, "the device") from e

    def run_copied(self, launch: Launch, grid: tuple[int, int], moved: Moved) -> None:
        arrays = launch.arrays
        for array in (*launch.clear.values(), *launch.sums.values()):
            array.fill(0)
        self.compiled[grid](*launch.sizes, *(arrays[name] for name in self.arrays))
        everything = sum(arrays[name].nbytes for name in self.arrays)
        moved.there += everything
        moved.back += everything

    def run_resident(self, launch: Launch, grid: tuple[int, int], moved: Moved) -> None:
        there: dict[str, Any] = {}
        for name, array in {**launch.read, **launch.both}.items():
            there[name] = self.cuda.to_device(array)
            moved.there += array.nbytes
        for name, array in {**launch.work, **launch.clear, **launch.sums}.items():
            there[name] = self.cuda.device_array(array.shape, array.dtype)
        for name, array in {**launch.clear, **launch.sums}.items():
            if not array.size:
                continue
            flat = there[name].reshape(array.size)
            self.clear[-(-flat.size // THREADS), THREADS](flat)
        self.compiled[grid](*launch.sizes, *(there[name] for name in self.arrays))
        for name, array in {**launch.both, **launch.sums}.items():
            there[name].copy_to_host(array)
            moved.back += array.nbytes


@lru_cache(MOST_KERNELS)
def kernel(form: Form, kind: str, dtype: str) -> Kernel:
    return Kernel(form, kind, dtype)
