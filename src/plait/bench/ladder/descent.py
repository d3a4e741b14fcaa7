"""`bench ladder`, the third question: how rough is a gradient, and what does a good one cost?"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..core.turns import Row, spread
from .problem import BATCH, Order, Problem
from .rungs import Autograd
from .table import training


def descent(order: Order) -> list[Row]:
    """One sample, a mini-batch, or all samples for each step; the same rate and the same number of epochs."""
    whole = order.problem(epochs=10 if order.quick else 40)
    first = Autograd(whole.network(), "fused")
    rows: list[Row] = []
    ends = {}
    for name, batch in {"stochastic": 1, "mini-batch": BATCH, "full batch": len(whole.x)}.items():
        problem = replace(whole, batch=batch)
        ends[name], seconds, losses = epochs(problem)
        row: Row = {"descent": name, "batch": batch, "steps": len(problem.batches())}
        row |= {"ms/epoch": spread(seconds).median * 1e3, "loss": losses[-1]}
        rows.append({**row, "by epoch": losses, "seconds": seconds})
    for row in rows:
        for when, learner in (("start", first), ("end", ends["mini-batch"])):
            found = spread(angles(learner, replace(whole, epochs=1, batch=row["batch"])))
            row |= {f"angle, {when}": found.median, f"{when} low": found.low, f"{when} high": found.high}
    order.remarks.append(
        f"descent: {whole.epochs} epochs at rate {whole.rate:g}, engine fused. angle: degrees between the gradient of "
        "a step and that of all samples, at the first weights and at those that mini-batches end with; medians."
    )
    return rows


def epochs(problem: Problem) -> tuple[Autograd, list[float], list[float]]:
    """Trains -> the network, and of each epoch its seconds and the loss of all samples after it, which is not timed."""
    batches = problem.batches()
    training(Autograd(problem.network(), "fused"), batches[:1])()  # warm
    learner, count = Autograd(problem.network(), "fused"), len(batches) // problem.epochs
    seconds, losses = [], []
    for first in range(0, len(batches), count):
        seconds.append(sum(training(learner, batches[first : first + count])()))
        losses.append(problem.loss(learner.weights()))
    return learner, seconds, losses


def angles(learner: Autograd, problem: Problem) -> list[float]:
    """Between the gradient of each mini-batch and that of all samples, in degrees."""
    ((x, y),) = replace(problem, batch=len(problem.x)).batches()
    full = flat(learner.gradient(*learner.batch(x, y)))
    return [angle(flat(learner.gradient(*learner.batch(x, y))), full) for x, y in problem.batches()]


def flat(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients]).double()


def angle(a: Tensor, b: Tensor) -> float:
    """By both sine and cosine: the cosine alone is blunt near 0."""
    a, b = a / a.norm(), b / b.norm()
    return float(torch.rad2deg(2 * torch.atan2((a - b).norm(), (a + b).norm())))
