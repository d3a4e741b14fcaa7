"""Versions 1 to 3: whole training steps in one kernel, compiled by numba-cuda, and their copies: docs/cuda.md.

With NUMBA_ENABLE_CUDASIM=1 numba's simulator runs them, without a device.
"""

import math
import warnings
from functools import cache
from typing import Any

import numpy as np

from ... import cells
from ...cells.trace import trace
from ..ladder.rungs import Arrays, Descent
from ..peers.contenders.network import Array, Network
from .text import text_of

THREADS = 64  # of a block


@cache
def kernel(cell: str, dtype: str) -> tuple[Any, tuple[str, ...]]:
    """-> the kernel, and the names of its arrays"""
    import numba
    from numba import cuda

    functions, text, arrays = text_of(cells.get(cell))
    real = getattr(np, dtype)
    scope: dict[str, Any] = {"zero": real(0.0), "INF": real(math.inf), "NAN": real(math.nan)}
    scope |= {"math": math, "tanh": math.tanh, "cuda": cuda, "plait_real": getattr(numba, dtype)}
    known = set(scope)
    exec(functions, scope)  # what text.py produced
    for name in scope.keys() - known - {"__builtins__"}:
        scope[name] = cuda.jit(device=True, inline="always")(scope[name])
    exec(text, scope)
    return cuda.jit(scope["kernel"]), arrays


class OneKernel(Descent):
    """The weights have WEIGHTS' names; those of a cell's own are param_0, param_1 and so on."""

    def __init__(self, net: Network, version: int) -> None:
        super().__init__(net)
        self.cell, self.version = net.cell, version

    def gradients(self, x: Array, y: Array) -> tuple[Arrays, float]:
        """x (T, B, I), y (B, O)"""
        (T, B, I), (GH, H) = x.shape, self.own["w_hh"].shape
        cell, N = cells.get(self.cell), T * B
        work = {"gates": (N, GH), "d_wx": (N, GH), "d_rh": (N, GH), "extra": (N, trace(cell).extra * H)}
        for k in range(len(cell.states)):
            work |= {f"past_{k}": (B + N, H), f"d_state_{k}": (B, H)}
        read = {"x": x.reshape(N, I), "y": y, **self.own}
        sums = {f"d_{name}": np.zeros_like(w) for name, w in self.own.items()}
        sums["loss"] = np.zeros(B, x.dtype)
        with warnings.catch_warnings():  # that arrays are copied, and the grid is small, is what the versions are
            warnings.filterwarnings("ignore", message=".*(Host array used|Grid size)")
            self.launch(read, work, sums)
        loss = float(sums.pop("loss").sum())
        return {name.removeprefix("d_"): d for name, d in sums.items()}, loss

    def launch(self, read: Arrays, work: dict[str, tuple[int, int]], sums: Arrays) -> None:
        """work: shapes of what only the device uses. sums: zeros, to which samples add; they come back."""
        from numba import cuda

        compiled, names = kernel(self.cell, read["x"].dtype.name)
        grid = (1, 1) if self.version == 1 else (-(-len(read["y"]) // THREADS), THREADS)
        there: Arrays = {**read, **sums}
        there |= {name: np.empty(shape, read["x"].dtype) for name, shape in work.items() if name in names}
        if self.version == 3:
            for name, array in there.items():
                there[name] = cuda.to_device(array) if name in read else cuda.device_array_like(array)
            for name in sums:
                there[name][:] = 0
        compiled[grid](*(there[name] for name in names))
        if self.version == 3:
            for name, array in sums.items():
                there[name].copy_to_host(array)
