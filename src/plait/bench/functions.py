"""How exact are tanh and sigmoid in the float32 kernels? Every number of a range, in about two minutes."""

from collections.abc import Callable, Iterator
from typing import Annotated

import torch
from torch import Tensor

from .. import engines
from ..cells import Cell
from ..engines import Layout, Weights
from ..errors import between
from .report import Report, tracked

TINY = 2.0**-126  # the smallest float32 with all its digits
H, B = 16, 1 << 18  # one call computes so many units of so many sequences


class Tanh(Cell):
    gates, states = ("a",), ("h",)

    def step(wx, rh, state, ops):
        return ops.tanh(wx[0])


class Sigmoid(Tanh):
    def step(wx, rh, state, ops):
        return ops.sigmoid(wx[0])


FUNCTIONS: dict[str, tuple[type[Cell], Callable[[Tensor], Tensor]]] = {
    "tanh": (Tanh, torch.tanh),
    "sigmoid": (Sigmoid, torch.sigmoid),
}


def on_kernel(cell: type[Cell], x: Tensor) -> Tensor:
    """One step of a cell that is nothing but the function."""
    engine, rows = engines.get("fused"), x.view(-1, H)
    w = Weights(x.new_zeros(H, 1), x.new_zeros(H, H), None, None, None)
    (h,), _ = engine.recur(engine.prepare(cell, w), rows, None, Layout(1, rows.shape[0]), keep=False)
    return h.view(-1)


def floats(bound: float, step: int, *, negative: bool) -> Iterator[Tensor]:
    """Every step-th float32 from 0 to the bound, in pieces; denormals count as 0 in the kernels, and are left out."""
    first, last = (int(torch.tensor(v).view(torch.int32)) for v in (2.0**-125, bound))
    for start in range(first, last + 1, step * H * B):
        bits = torch.arange(start, min(start + step * H * B, last + 1), step, dtype=torch.int32)
        bits = torch.cat([bits, bits[-1:].expand(-bits.numel() % H)])
        values = bits.view(torch.float32)
        yield -values if negative else values


def sweep(function: str, bound: float, step: int, *, negative: bool) -> tuple[int, float, float, float]:
    """-> how many, the largest absolute error, where it is, and the largest in units of the last place"""
    cell, exact = FUNCTIONS[function]
    count, absolute, where, places = 0, 0.0, 0.0, 0.0
    for x in floats(bound, step, negative=negative):
        expected = exact(x.double())
        error = on_kernel(cell, x).double().sub_(expected).abs_()
        largest, index = error.max(0)
        if float(largest) > absolute:
            absolute, where = float(largest), float(x[index])
        exponent = expected.float().view(torch.int32).bitwise_and_(0x7F800000).view(torch.float32).clamp_(min=TINY)
        places = max(places, float(error.div_(exponent).max()) * 2**23)
        count += x.numel()
    return count, absolute, where, places


def measure(
    bound: Annotated[float, "The range goes from minus this to this."] = 20.0,
    step: Annotated[int, "1 takes every float32 of the range, 2 every second one, and so on."] = 1,
) -> Report:
    between("bound", bound, 1e-30, 1e6)
    between("step", step, 1, 10**9)
    rows = []
    for function, negative in tracked([("tanh", False), ("tanh", True), ("sigmoid", False), ("sigmoid", True)]):
        count, absolute, where, places = sweep(function, bound, step, negative=negative)
        span = f"{-bound:g} to 0" if negative else f"0 to {bound:g}"
        row = {"function": function, "from": span, "values": count, "largest error": absolute, "at": where}
        rows.append({**row, "last places": places})
    return Report(
        f"How far are tanh and sigmoid in the float32 kernels from float64? Step {step} in the list of all float32.",
        [("function", "from", "values", "largest error", "at", "last places")],
        rows,
        ["last places: the error in units of the result's last binary place; sigmoid is exact to 1, not to its size."],
    )
