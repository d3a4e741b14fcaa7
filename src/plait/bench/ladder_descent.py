"""`bench ladder`, the third question: how rough is a gradient, and what does a good one cost?"""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .ladder_order import Order, Row
from .ladder_problem import BATCH, Problem
from .ladder_rungs import Autograd, Place
from .report import timing


def descent(order: Order) -> list[Row]:
    """One sample, a mini-batch, or all samples for each step; the same rate and the same number of epochs."""
    whole = order.problem(epochs=10 if order.quick else 40)
    ways = {"stochastic": 1, "mini-batch": BATCH, "full batch": len(whole.x)}
    rows: list[Row] = []
    ends = {}
    for name, batch in ways.items():
        learner = Learner(replace(whole, batch=batch))
        learner.step(*learner.batches[0])  # warm
        learner = Learner(learner.problem)
        seconds, losses = learner.epochs()
        ends[name] = learner
        taken = timing(seconds)
        row: Row = {"descent": name, "batch": batch, "steps": len(learner.batches), "ms/epoch": taken.median * 1e3}
        rows.append({**row, "loss": losses[-1], "by epoch": losses, "seconds": seconds})
    first, last = Learner(whole), ends["mini-batch"]
    for row in rows:
        for when, learner in (("start", first), ("end", last)):
            found = timing(angles(learner, replace(whole, epochs=1, batch=row["batch"])))
            row |= {f"angle, {when}": found.median, f"{when} low": found.low, f"{when} high": found.high}
    order.remarks.append(
        f"descent: {whole.epochs} epochs at rate {whole.rate:g}, engine fused. angle: degrees between the gradient of "
        "a step and that of all samples, at the first weights and at those that mini-batches end with; medians."
    )
    return rows


class Learner(Autograd):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, "fused", "fused", Place())
        self.batches = problem.batches()

    def epochs(self) -> tuple[list[float], list[float]]:
        """Seconds and loss of each. The loss, of all samples, is not in the time."""
        count = len(self.batches) // self.problem.epochs
        seconds, losses = [], []
        for first in range(0, len(self.batches), count):
            start = time.perf_counter()
            for x, y in self.batches[first : first + count]:
                self.step(x, y)
            seconds.append(time.perf_counter() - start)
            losses.append(self.problem.loss(*self.result()))
        return seconds, losses


def angles(learner: Autograd, problem: Problem) -> list[float]:
    """Between the gradient of each mini-batch and that of all samples, in degrees."""
    ((x, y),) = replace(problem, batch=len(problem.x)).batches()
    full = flat(learner.gradient(x, y))
    return [angle(flat(learner.gradient(x, y)), full) for x, y in problem.batches()]


def flat(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients]).double()


def angle(a: Tensor, b: Tensor) -> float:
    """By both sine and cosine: the cosine alone is blunt near 0."""
    a, b = a / a.norm(), b / b.norm()
    return float(torch.rad2deg(2 * torch.atan2((a - b).norm(), (a + b).norm())))
