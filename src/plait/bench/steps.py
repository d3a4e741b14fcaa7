"""What is raced: a training step of torch.nn's layer against the same step of plait's, and how it is asked for."""

import copy
import ctypes
import gc
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import cells, layers
from ..errors import PlaitError, unknown
from ..kernels import libc, pool
from ..tasks.memory import check_layer
from .report import Timing, interleaved, ratio, timing

if sys.platform != "win32":
    import resource

TORCH: dict[str, type[nn.LSTM | nn.GRU | nn.RNN]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


@dataclass(frozen=True)
class Case:
    """One layer, or several on top of one another, and a dense batch for it."""

    cell: str
    B: int
    T: int
    I: int
    H: int
    layers: int = 1

    @property
    def shape(self) -> str:
        return f"{self.B},{self.T},{self.I},{self.H},{self.layers}"

    @property
    def gates(self) -> int:  # G*H
        return len(cells.get(self.cell).gates) * self.H

    def work(self, input_gradient: bool = False) -> int:
        """Multiplications and additions of a step's matrix products.

        Those with W are two, and a third where the gradient of the input is wanted; those with R are three.
        """
        first = (3 if input_gradient else 2) * self.I + 3 * self.H
        return 2 * self.T * self.B * self.gates * (first + (self.layers - 1) * 6 * self.H)


def parse_cell(name: str) -> str:
    if name not in TORCH:
        raise unknown("cell", name, TORCH)
    return name


def parse_cells(text: str) -> list[str]:
    return [parse_cell(name) for name in text.split(",")]


def parse_shapes(text: str, cells: Sequence[str]) -> list[Case]:
    """Every shape with every cell."""
    cases = []
    for shape in text.split() or [text]:
        if not re.fullmatch(r"[1-9][0-9]{0,4}(,[1-9][0-9]{0,4}){4}", shape):
            expected = "expected B,T,I,H,layers, each 1 to 99999, such as 32,128,64,64,1"
            raise PlaitError(f"shape '{shape}': {expected}; between two shapes a space.")
        cases += [Case(cell, *map(int, shape.split(","))) for cell in cells]
    return cases


class Step:
    """Forward and backward, as a training loop has them."""

    def __init__(self, layer: nn.Module, x: Tensor, d_y: Tensor) -> None:
        self.layer, self.x, self.d_y = layer, x, d_y

    def __call__(self) -> None:
        self.clear()
        y, _ = self.layer(self.x)
        y.backward(self.d_y)

    def clear(self) -> None:
        self.layer.zero_grad(set_to_none=True)
        self.x.grad = None


def contenders(case: Case, engine: str, input_gradient: bool = False) -> dict[str, Step]:
    """Torch's layer and plait's, with the same weights and data."""
    check_layer(case.B, case.T, case.I, case.H, case.gates, case.layers, of=2)
    theirs = TORCH[case.cell](case.I, case.H, case.layers)
    ours = layers.accelerate(copy.deepcopy(theirs), engine)
    x = torch.randn(case.T, case.B, case.I, requires_grad=input_gradient)
    d_y = torch.randn(case.T, case.B, case.H)
    return {"torch": Step(theirs, x, d_y), "plait": Step(ours, x, d_y)}


def race(pair: dict[str, Step], repeats: int) -> tuple[Timing, Timing, Timing]:
    """Seconds of torch's step and of plait's, and how many times faster plait's is."""
    seconds = interleaved(pair, repeats)
    theirs, ours = seconds["torch"], seconds["plait"]
    return timing(theirs), timing(ours), ratio(theirs, ours)


# --- memory ----------------------------------------------------------------------------------------------------------
def extra_memory(step: Step) -> float | None:
    """MB that a step, not the first, takes at its peak, with its gradients, beyond what is there before.

    The system keeps the peak; None where it does not. What earlier steps left with the allocator is given back first.
    """
    trim = give_back()
    if trim is None:
        return None
    step.clear()
    gc.collect()  # garbage that is freed in the middle of the step would make its peak look smaller
    pool.release()  # the step has to take all that it needs
    trim(0)
    try:
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        step()
        return (resident("VmHWM") - before) / 1024
    except (OSError, KeyError):
        return None


def give_back() -> Callable[[int], Any] | None:
    return libc.find("malloc_trim", ctypes.c_size_t)  # type: ignore[no-any-return]


def pages(step: Step, repeats: int) -> tuple[float, float] | tuple[None, None]:
    """Pages that a step touches for the first time, and milliseconds that the system works for it; None on Windows."""
    if sys.platform == "win32":
        return None, None
    step()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(repeats):
        step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_minflt - before.ru_minflt) / repeats, (after.ru_stime - before.ru_stime) / repeats * 1e3


def resident(field: str) -> int:  # kB
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int({name: value for name, _, value in lines}[field].split()[0])
