"""`bench ladder`, the second question: does training time grow more slowly than the dataset?"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from . import blas
from .ladder_order import Order, Row
from .ladder_problem import BATCH
from .ladder_rungs import NumpyExpert, fused, torch_nn
from .ladder_table import REST, train
from .report import interleaved, timing

RUNGS = (fused, NumpyExpert, torch_nn)
KINDS = ("fixed", "growing")
LEAST = 0.02  # seconds of a measurement


def growth(order: Order) -> list[Row]:
    """One epoch, with 1 to 64 times the data. All of them take turns, so that a slow minute bends no line."""
    sizes = [2**k for k in range(5 if order.quick else 7)]
    contenders = {}
    for kind in KINDS:
        for times in sizes:
            problem = order.problem(epochs=1).grown(times, BATCH * (times if kind == "growing" else 1))
            batches = problem.batches()
            for make in RUNGS:
                rung = make(problem)
                contenders[f"{rung.name}/{kind}/{times}"] = partial(train, rung, batches)
    with blas.threads(torch.get_num_threads()):
        seconds = interleaved(contenders, order.repeats, least=LEAST, rest=REST)
    names = dict.fromkeys(name.split("/")[0] for name in contenders)
    rows: list[Row] = []
    for name in names:
        for kind in KINDS:
            mine = [seconds[f"{name}/{kind}/{times}"] for times in sizes]
            found = timing([exponent(sizes, some) for some in zip(*mine, strict=True)])
            row: Row = {"trained by": name, "batch": kind, "exponent": found.median}
            row |= {"low": found.low, "high": found.high}
            row |= {f"{times}x ms": timing(some).median * 1e3 for times, some in zip(sizes, mine, strict=True)}
            rows.append({**row, "sizes": sizes})
    order.remarks.append(
        f"exponent: of training time against the size of the dataset, for {sizes[0]} to {sizes[-1]} times the airline "
        f"series, one epoch each; batch {BATCH}, or {BATCH} to {BATCH * sizes[-1]}. 1: it grows as quickly as the data."
    )
    return rows


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of the line through the points, both axes logarithmic."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
