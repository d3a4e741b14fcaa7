"""Versions 1 to 3: whole training steps in one kernel, compiled by numba-cuda, and what is copied for them.

A step is a layer, a linear head on its last h, the mean squared error and the backward pass, as in the first paper. The
weights are the host's, and it moves them down the gradient. Version 1: one thread runs the mini-batch. Version 2: a
thread for each sample. Both pass host arrays, so numba copies every array to the device and back. Version 3: arrays
that are only read are copied to the device and never back, and only results come back.

With NUMBA_ENABLE_CUDASIM=1 numba's simulator runs them, without a device.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cells import Cell
from ...cells.trace import trace
from ...kernels.cuda.gpu import too_large
from ...layout import Layout
from ..peers.contenders.network import WEIGHTS
from .text import text_of

Array = NDArray[Any]
Arrays = dict[str, Array]
THREADS = 64  # of a block
OUT_OF_MEMORY = 2  # CUDA's number for it
CLEAR = """
def clear(array):
    k = cuda.grid(1)
    if k < array.shape[0]:
        array[k] = zero
"""


@dataclass
class Moved:
    """Bytes that were copied, to the device and back."""

    there: int = 0
    back: int = 0


class Launch(NamedTuple):
    """The arrays of a launch, by what becomes of them."""

    sizes: tuple[int, ...]  # T, B, N, I, H
    read: Arrays
    work: Arrays  # only the device uses them
    clear: Arrays  # the same, with zeros to begin with
    sums: Arrays  # results, to which samples add; zero to begin with

    @property
    def arrays(self) -> Arrays:
        return {**self.read, **self.work, **self.clear, **self.sums}


class Kernel:
    def __init__(self, cell: type[Cell], positioned: bool, dtype: str) -> None:
        import numba
        from numba import cuda

        text, real = text_of(cell, positioned), getattr(np, dtype)
        scope: dict[str, Any] = {"zero": real(0.0), "INF": real(math.inf), "NAN": real(math.nan)}
        scope |= {"math": math, "cuda": cuda, "plait_real": getattr(numba, dtype)}
        known = set(scope)
        exec(text.functions, scope)  # what text.py produced
        for name in scope.keys() - known - {"__builtins__"}:
            scope[name] = cuda.jit(device=True, inline="always")(scope[name])
        exec(CLEAR + text.kernel, scope)
        self.arrays, self.positioned, self.cuda = text.arrays, positioned, cuda
        self.function = scope["kernel"]
        self.compiled, self.clear = cuda.jit(self.function), cuda.jit(scope["clear"])

    def run(self, launch: Launch, version: int, moved: Moved) -> None:
        """The results are in `sums` afterwards."""
        grid = (-(-launch.sizes[1] // THREADS), THREADS) if self.positioned else (1, 1)
        with warnings.catch_warnings():  # that arrays are copied, and the grid is small, is what the versions are
            warnings.filterwarnings("ignore", message=".*(Host array used|Grid size)")
            try:
                self.run_resident(launch, grid, moved) if version == 3 else self.run_copied(launch, grid, moved)
            except Exception as e:  # numba's; the simulator has no such class
                if getattr(e, "code", None) != OUT_OF_MEMORY:
                    raise
                needed = sum(array.nbytes for array in launch.arrays.values())
                raise too_large(needed, None, "the device") from e

    def run_copied(self, launch: Launch, grid: tuple[int, int], moved: Moved) -> None:
        arrays = launch.arrays
        self.compiled[grid](*launch.sizes, *(arrays[name] for name in self.arrays))
        everything = sum(arrays[name].nbytes for name in self.arrays)
        moved.there += everything
        moved.back += everything

    def run_resident(self, launch: Launch, grid: tuple[int, int], moved: Moved) -> None:
        there: dict[str, Any] = {}
        for name, array in launch.read.items():
            there[name] = self.cuda.to_device(array)
            moved.there += array.nbytes
        for name, array in {**launch.work, **launch.clear, **launch.sums}.items():
            there[name] = self.cuda.device_array(array.shape, array.dtype)
            if array.size and name not in launch.work:
                self.clear[-(-array.size // THREADS), THREADS](there[name].reshape(array.size))
        self.compiled[grid](*launch.sizes, *(there[name] for name in self.arrays))
        for name, array in launch.sums.items():
            there[name].copy_to_host(array)
            moved.back += array.nbytes


@cache
def kernel(cell: type[Cell], positioned: bool, dtype: str) -> Kernel:
    return Kernel(cell, positioned, dtype)


class TrainingStep:
    """weights: by WEIGHTS' names, as torch.nn shapes them; then the cell's own. They are changed in place."""

    def __init__(self, cell: type[Cell], weights: Mapping[str, Array], version: int) -> None:
        self.cell, self.version, self.moved = cell, version, Moved()
        self.weights = {name: weights[name] for name in WEIGHTS}
        self.weights |= {f"param_{k}": weights[name] for k, name in enumerate(cell.params)}
        self.kernel = kernel(cell, version > 1, weights["w_hh"].dtype.name)  # type: ignore[arg-type]  # hash of a class

    def __call__(self, x: Array, y: Array, lr: float) -> float:
        """x (T, B, I), y (B, O) -> the loss before the step."""
        gradients, loss = self.gradients(x, y)
        for name, d in gradients.items():
            self.weights[name] -= lr * d
        return loss

    def gradients(self, x: Array, y: Array, lengths: Array | None = None) -> tuple[Arrays, float]:
        """Lengths, if any, with the longest first."""
        T, B, I = x.shape
        GH, H = self.weights["w_hh"].shape
        layout = Layout(T, B) if lengths is None else Layout.of_sorted(lengths)
        N, extra, states = layout.N, trace(self.cell).extra, range(len(self.cell.states))
        rows = x.reshape(N, I) if lengths is None else x[layout.steps_and_places]
        shapes = {**dict.fromkeys(("wx", "gates", "d_wx", "d_rh"), (N, GH)), "extra": (N, extra * H)}
        shapes |= {f"d_state_{k}": (B, H) for k in states}
        scale = np.full(1, 1 / y.size, x.dtype)
        sums = {f"d_{name}": np.zeros_like(w) for name, w in self.weights.items()}
        groups: dict[str, Arrays] = {
            "read": {"starts": layout.bounds.numpy(), "x": rows, "y": y, "scale": scale, **self.weights},
            "work": {name: np.empty(shape, x.dtype) for name, shape in shapes.items()},
            "clear": {f"past_{k}": np.zeros((B + N, H), x.dtype) for k in states},  # begins with zeros
            "sums": {**sums, "loss": np.zeros(B, x.dtype)},
        }
        used = {group: {k: v for k, v in some.items() if k in self.kernel.arrays} for group, some in groups.items()}
        self.kernel.run(Launch((T, B, N, I, H), **used), self.version, self.moved)
        return {name.removeprefix("d_"): d for name, d in sums.items()}, float(groups["sums"]["loss"].sum())
