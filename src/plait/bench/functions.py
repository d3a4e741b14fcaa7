"""How exact are the kernels' tanh and sigmoid? Every float32 of a range, against float64."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import cells, engines
from ..engines import Layout, Tape, Weights
from ..errors import PlaitError
from .report import Report, tracked

H, B = 16, 1 << 20  # one call computes so many units of so many sequences


def on_kernel(function: str, x: Tensor) -> Tensor:
    """tanh is a step of the rnn, sigmoid a gate that the gru saves, both without a recurrent part."""
    cell = cells.get({"tanh": "rnn", "sigmoid": "gru"}[function])
    engine, G, rows = engines.get("fused"), len(cell.gates), x.numel() // H
    w = Weights(x.new_zeros(G * H, 1), x.new_zeros(G * H, H), None, None, None)
    wx = x.view(rows, H).repeat(1, G)
    layout = Layout(1, rows)
    tape = Tape.of(cell, layout, engine.blank(cell, w, rows, wx), projected=False, reverse=False)
    y, _ = engine.recur([engine.prepare(cell, w)], [wx], [tape], [None])
    return y.view(-1) if function == "tanh" else tape.saved[0][:, :H].reshape(-1)


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
    exact = {"tanh": torch.tanh, "sigmoid": torch.sigmoid}[function]
    count, absolute, where, places = 0, 0.0, 0.0, 0.0
    for x in floats(bound, step, negative=negative):
        expected = exact(x.double())
        error = (on_kernel(function, x).double() - expected).abs()
        largest, index = error.max(0)
        if float(largest) > absolute:
            absolute, where = float(largest), float(x[index])
        unit = torch.exp2(torch.floor(torch.log2(expected.abs())) - 23)
        places = max(places, float((error / unit).max()))
        count += x.numel()
    return count, absolute, where, places


def measure(bound: float, step: int) -> Report:
    if not 0 < bound <= 1e6:
        raise PlaitError(f"bound {bound}: expected more than 0 and at most 1000000.")
    if step < 1:
        raise PlaitError(f"step {step}: must be at least 1, which is every float32.")
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
