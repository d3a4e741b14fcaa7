"""The errors of the kernels' functions and of torch's, against longer numbers."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ... import engines
from ...cells import Cell
from ...engines import Layout, Weights
from ..core import Report, tracked
from ..questions import FunctionsOptions

H, B = 16, 1 << 18  # one call computes so many units of so many sequences
DRAWN = 1 << 22  # float64 numbers: all of them are too many
DIGITS = {torch.float32: 23, torch.float64: 52}
TINY = {torch.float32: 2.0**-126, torch.float64: 2.0**-1022}  # the smallest number with all its digits

# For NumPy's longer numbers. (abs, relu, maximum, minimum and where are exact: they choose a number.)
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
}
# How far from 0 a result is a float32 with all its digits. Those of log and sqrt are numbers on one side only.
ABOVE = {"exp": 88.722}
BELOW = {"tanh": torch.inf, "sigmoid": 87.336, "exp": 87.336, "softplus": 87.336}


@cache
def alone(function: str) -> type[Cell]:
    """A cell that is nothing but the function."""

    def step(wx, rh, state, ops):
        return getattr(ops, function)(wx[0])

    return type(function, (Cell,), {"gates": ("a",), "states": ("h",), "name": f"{function}_alone", "step": step})


def on_kernel(cell: type[Cell], x: Tensor) -> Tensor:
    """One step of such a cell."""
    engine, rows = engines.get("fused"), x.view(-1, H)
    w = Weights(x.new_zeros(H, 1), x.new_zeros(H, H), None, None, None)
    (h,), _ = engine.recur(engine.prepare(cell, w), rows, None, Layout(1, rows.shape[0]), keep=False)
    return h.view(-1)


def floats(bound: float, step: int, *, negative: bool) -> Iterator[Tensor]:
    """Every step-th float32 from 0 to the bound, in pieces, without denormals (0 in the kernels)."""
    first, last = (int(torch.tensor(v).view(torch.int32)) for v in (2.0**-125, bound))
    for start in range(first, last + 1, step * H * B):
        bits = torch.arange(start, min(start + step * H * B, last + 1), step, dtype=torch.int32)
        bits = torch.cat([bits, bits[-1:].expand(-bits.numel() % H)])
        values = bits.view(torch.float32)
        yield -values if negative else values


class Worst:
    """The largest errors so far: absolute and where it is; in units of the last place of the result."""

    def __init__(self) -> None:
        self.absolute, self.where, self.places = 0.0, 0.0, 0.0

    def add(self, x: Tensor, error: Tensor, expected: Tensor) -> None:
        """expected: in the precision of x"""
        largest, index = error.max(0)
        if float(largest) > self.absolute:
            self.absolute, self.where = float(largest), float(x[index])
        _, exponent = torch.frexp(expected.abs().clamp_(min=TINY[x.dtype]))
        places = torch.ldexp(error, DIGITS[x.dtype] + 1 - exponent)
        self.places = max(self.places, float(places.max()))


def errors(function: str, values: Iterable[Tensor], longer: type) -> tuple[int, Worst, Worst]:
    """Against NumPy's numbers of that type -> how many, the kernel's errors, torch's"""
    count, ours, theirs = 0, Worst(), Worst()
    torchs = getattr(torch.nn.functional if function == "softplus" else torch, function)
    for x in values:
        exact = FUNCTIONS[function](x.numpy().astype(longer))
        rounded = torch.from_numpy(exact.astype(x.numpy().dtype))
        for worst, found in ((ours, on_kernel(alone(function), x)), (theirs, torchs(x))):
            error = np.abs(found.numpy().astype(longer) - exact)
            worst.add(x, torch.from_numpy(error.astype(np.float64)), rounded)
        count += x.numel()
    return count, ours, theirs


def sweep(function: str, bound: float, step: int, *, negative: bool) -> tuple[int, Worst, Worst]:
    return errors(function, floats(bound, step, negative=negative), np.float64)


def drawn(function: str, bound: float, count: int, *, negative: bool, seed: int = 0) -> tuple[int, Worst, Worst]:
    """float64 at random, half of them evenly and half by size."""
    rng = np.random.default_rng(seed)
    sizes = np.concatenate([rng.uniform(0, bound, count // 2), bound * 10.0 ** -rng.uniform(0, 12, count // 2)])
    return errors(function, [torch.from_numpy(-sizes if negative else sizes)], np.longdouble)


def measure(options: FunctionsOptions) -> Report:
    bound, step = options.bound, options.step
    longer = np.finfo(np.longdouble).nmant > 60
    kinds = ["float32", "float64"] if longer else ["float32"]
    sides = [(name, negative) for name in FUNCTIONS for negative in (False, True) if not negative or name in BELOW]
    rows = []
    for kind, (function, negative) in tracked([(kind, side) for kind in kinds for side in sides]):
        end = min(bound, BELOW[function] if negative else ABOVE.get(function, torch.inf))
        if kind == "float32":
            count, ours, theirs = sweep(function, end, step, negative=negative)
        else:
            many = 2 * H * max(1, DRAWN // step // (2 * H))
            count, ours, theirs = drawn(function, end, many, negative=negative, seed=options.seed)
        span = f"{-end:g} to 0" if negative else f"0 to {end:g}"
        row = {"function": function, "of": kind, "from": span, "values": count}
        row |= {"largest error": ours.absolute, "at": ours.where}
        rows.append({**row, "last places": ours.places, "torch's": theirs.places})
    return Report(
        f"How exact are the kernels' functions? Step {step} in the list of all float32.",
        [("function", "of", "from", "values", "largest error", "at", "last places", "torch's")],
        rows,
        [
            "last places: the error in units of the result's last binary place; torch's: of torch's own function.",
            "sigmoid is exact to 1, not to its size, in float32.",
            *([] if longer else ["float64 is left out: NumPy has no longer numbers on this machine."]),
        ],
    )
