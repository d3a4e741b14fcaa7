"""`bench ladder`, the first paper's table: one training, every rung, the same loss in the end."""

import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import PlaitError
from . import blas
from .ladder_cuda import cuda_rungs
from .ladder_order import Order, Row
from .ladder_problem import Problem
from .ladder_rungs import NUMPY, RUNGS, SEQUENTIAL, ByHand, Rung
from .report import interleaved, ratio, timing

TOLERANCE = 1e-4  # of the loss after training, relative
BLOCK = 0.2  # seconds of a measurement
REST = 0.1  # seconds before it: NumPy's threads stay awake for a while, and would disturb whoever comes next
OURS, BY_HAND = "fused", ByHand.name
Batches = Sequence[tuple[Tensor, Tensor]]


def rungs(order: Order) -> list[Row]:
    problem = order.problem()
    made = [make(problem) for make in RUNGS]
    more, missing = cuda_rungs(problem)
    made += more
    order.remarks += missing
    batches, losses, seconds = problem.batches(), {}, {}
    with blas.threads(torch.get_num_threads()) as told:
        for rung in made:
            spent = train(rung, batches)  # the first time, from the first weights: what fast rungs need to be warm
            losses[rung.name] = problem.loss(*rung.result())
            if rung.slow:
                seconds[rung.name] = [part * len(batches) for part in spent]
        compare(losses)
        fast = {rung.name: partial(train, rung, batches) for rung in made if not rung.slow}
        seconds |= interleaved(fast, order.repeats, warm=False, least=BLOCK, rest=REST)
    rows = [row(rung, seconds, losses[rung.name]) for rung in made]
    rows += alone(problem, batches, order) if told and torch.get_num_threads() > 1 else []
    order.remarks += [
        f"H = {problem.H}, window {problem.T}, batch {problem.batch}, {problem.epochs} epochs, {len(batches)} steps; "
        f"all rungs end with the same loss, to {TOLERANCE:g}.",
        "low, high: quartiles; where runs is 1, those of single steps.",
        "vs python, vs NumPy: how many times as fast as these. fused is, by hand is: as this rung, how many times.",
        "The paper, with a GPU: 293 s sequential, 130 s NumPy, 17.2 s V3, which is 17.0 and 7.6 times as fast.",
        "goals: the paper's, against NumPy one sample at a time: 75 % faster, 100 % x5, 125 % x10; 150 %: training "
        "time grows more slowly than the data (--parts growth).",
    ]
    if not told:
        order.remarks.append(
            "NumPy's library for products is not OpenBLAS of its wheel: plait cannot set its number of threads."
        )
    return rows


def train(rung: Rung, batches: Batches) -> list[float]:
    """All epochs -> the seconds of each step. Weights go on from where they are."""
    clock, ends = time.perf_counter, [time.perf_counter()]
    for x, y in batches:
        rung.step(x, y)
        ends.append(clock())
    return [b - a for a, b in pairwise(ends)]


def compare(losses: dict[str, float]) -> None:
    """An error if one rung ended with another loss than sequential python."""
    expected = losses[SEQUENTIAL]
    for name, loss in losses.items():
        if not abs(loss - expected) <= TOLERANCE * abs(expected):
            raise PlaitError(
                f"rung '{name}': the loss after training is {loss:.7g}, that of '{SEQUENTIAL}' {expected:.7g}: "
                f"expected the same to {TOLERANCE:g}; the rung computes something else."
            )


def row(rung: Rung, seconds: dict[str, list[float]], loss: float) -> Row:
    """Factors of ours are taken pair by pair where both took turns."""
    mine, place = seconds[rung.name], rung.place
    found = timing(mine)
    turns = [found.median] * len(seconds[OURS]) if rung.slow else mine
    faster, by_hand = ratio(turns, seconds[OURS]), ratio(turns, seconds[BY_HAND])
    against: Row = {
        f"vs {name}": timing(seconds[of]).median / found.median
        for name, of in (("python", SEQUENTIAL), ("NumPy", NUMPY))
    }
    times: Row = {"rung": rung.name, "s": found.median, "low": found.low, "high": found.high, **against}
    times |= {"fused is": faster.median, "fused is, low": faster.low, "fused is, high": faster.high}
    times |= {"by hand is": by_hand.median, "by hand is, low": by_hand.low, "by hand is, high": by_hand.high}
    times |= {"runs": 1 if rung.slow else len(mine), "loss": loss}
    where = {"epoch": place.epoch, "mini-batch": place.batch, "sample": place.sample}
    return {**times, **where, "threads placed": place.threads, "transfers": place.transfer, "goals": goals(against)}


def goals(against: Row, slower_growth: bool = False) -> str:
    factor = against["vs NumPy"]
    met = [name for name, least in (("faster", 1.0), ("x5", 5.0), ("x10", 10.0)) if factor > least]
    return ", ".join([*met, *(["growth"] if slower_growth else [])]) or "-"


def alone(problem: Problem, batches: Batches, order: Order) -> list[Row]:
    """NumPy's rungs with products on one thread, which is often quicker for small ones; fused on all, as before."""
    made = [make(problem) for make in RUNGS]
    some = {rung.name: partial(train, rung, batches) for rung in made if rung.name in (OURS, BY_HAND) or rung.by_numpy}
    with blas.threads(1):
        seconds = interleaved(some, order.repeats, least=BLOCK, rest=REST)
    rows = []
    for name in some:
        found, faster = timing(seconds[name]), ratio(seconds[name], seconds[OURS])
        rows.append({"NumPy on one thread": name, "s": found.median, "low": found.low, "high": found.high})
        rows[-1] |= {"fused is": faster.median, "by hand is": ratio(seconds[name], seconds[BY_HAND]).median}
    return rows
