"""`bench ladder`, the second question: does training time grow more slowly than the dataset?"""

from collections.abc import Sequence

import numpy as np
import torch

from ..core import blas
from ..core.turns import Row, spread, take_turns
from .problem import BATCH, Order
from .rungs import EXPERT, FUSED, TORCH
from .table import REST, training

RUNGS = (FUSED, EXPERT, TORCH)
KINDS = ("fixed", "growing")
LEAST = 0.02  # seconds of a measurement


def growth(order: Order) -> list[Row]:
    """One epoch, with 1 to 64 times the data. All of them take turns, so that a slow minute bends no line."""
    sizes = [2**k for k in range(5 if order.quick else 7)]
    contenders = {}
    for kind in KINDS:
        for times in sizes:
            problem = order.problem(epochs=1).grown(times, BATCH * (times if kind == "growing" else 1))
            for rung in RUNGS:
                contenders[f"{rung.name}/{kind}/{times}"] = training(rung.make(problem.network()), problem.batches())
    with blas.threads(torch.get_num_threads()):
        seconds = take_turns(contenders, order.repeats, least=LEAST, rest=REST)
    rows: list[Row] = []
    for rung in RUNGS:
        for kind in KINDS:
            mine = {times: seconds[f"{rung.name}/{kind}/{times}"] for times in sizes}
            found = spread(exponent(sizes, some) for some in zip(*mine.values(), strict=True))
            times_ms = {f"{times}x ms": spread(some).median * 1e3 for times, some in mine.items()}
            rows.append({"trained by": rung.name, "batch": kind, **found.row("exponent"), **times_ms, "sizes": sizes})
    order.remarks.append(
        f"exponent: of training time against the size of the dataset, for {sizes[0]} to {sizes[-1]} times the airline "
        f"series, one epoch each; batch {BATCH}, or {BATCH} to {BATCH * sizes[-1]}. 1: it grows as quickly as the data."
    )
    return rows


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of the line through the points, both axes logarithmic."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
