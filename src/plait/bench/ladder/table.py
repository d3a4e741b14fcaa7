"""`bench ladder`, the first paper's table: one training, every rung, the same loss in the end."""

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter

import torch

from ...errors import PlaitError
from ..core import blas
from ..core.turns import Row, Seconds, take_turns
from ..cuda.versions import versions
from ..peers.contenders.network import Stepper
from .problem import Batches, Order, Problem
from .rungs import BY_HAND, FUSED, NUMPY, RUNGS, SEQUENTIAL, Rung

TOLERANCE = 1e-4  # of the loss after training, relative
BLOCK = 0.2  # seconds of a measurement
REST = 0.1  # seconds of sleep before it: NumPy's threads spin for a while, and would take a core from the next rung


def rungs(order: Order) -> list[Row]:
    problem = order.problem()
    able, missing = versions(simulators=False)
    every = [*RUNGS, *able]
    order.remarks += missing
    batches, losses, seconds, fast = problem.batches(), {}, Seconds(), {}
    with blas.threads(torch.get_num_threads()) as told:
        for rung in every:
            made = rung.make(problem.network())
            run = training(made, batches)
            spent = run()  # from the first weights; it also warms up the fast rungs
            losses[rung.name] = problem.loss(made.weights())
            if rung.slow:
                seconds[rung.name] = [part * len(batches) for part in spent]
            else:
                fast[rung.name] = run
        compare(losses)
        seconds.update(take_turns(fast, order.repeats, warm=False, least=BLOCK, rest=REST))
    rows = [row(rung, seconds, losses[rung.name]) for rung in every]
    rows += alone(problem, batches, order) if told and torch.get_num_threads() > 1 else []
    sizes = f"H = {order.hidden}, window {problem.x.shape[1]}, batch {problem.batch}, {problem.epochs} epochs"
    order.remarks += [
        f"{sizes}, {len(batches)} steps; all rungs end with the same loss (relative difference at most {TOLERANCE:g}).",
        "low, high: quartiles; where runs is 1, those of single steps.",
        "vs python, vs NumPy: speed-up of this row over them. fused, by hand: their speed-up over this row.",
        "The paper, with a GPU: 293 s sequential, 130 s NumPy, 17.2 s V3, which is 17.0 and 7.6 times as fast.",
        "goals: the paper's, against NumPy one sample at a time: 75 % faster, 100 % x5, 125 % x10; 150 %: training "
        "time grows more slowly than the data (--parts growth).",
    ]
    if not told:
        order.remarks.append("NumPy's products are not by the OpenBLAS of its wheel: its threads cannot be set.")
    return rows


def training(stepper: Stepper, batches: Batches) -> Callable[[], list[float]]:
    """A call trains on all batches -> the seconds of each step. Weights go on from where they are."""
    data = [stepper.batch(x, y) for x, y in batches]

    def run() -> list[float]:
        ends = [perf_counter()]
        for x, y in data:
            stepper.step(x, y)
            ends.append(perf_counter())
        return [b - a for a, b in pairwise(ends)]

    return run


def compare(losses: dict[str, float]) -> None:
    """An error if one rung ended with another loss than sequential python."""
    expected = losses[SEQUENTIAL.name]
    for name, loss in losses.items():
        if not abs(loss - expected) <= TOLERANCE * abs(expected):
            raise PlaitError(
                f"rung '{name}': the loss after training is {loss:.7g}, that of '{SEQUENTIAL.name}' {expected:.7g}: "
                f"expected the same to {TOLERANCE:g}; the rung computes something else."
            )


def row(rung: Rung, seconds: Seconds, loss: float) -> Row:
    """Speed-ups of ours are taken turn by turn, where both took turns."""
    found = seconds.spread(rung.name)
    turns = Seconds(seconds)
    if rung.slow:
        turns[rung.name] = [found.median] * len(seconds[FUSED.name])
    against = {
        f"vs {name}": seconds.median(of.name) / found.median for name, of in (("python", SEQUENTIAL), ("NumPy", NUMPY))
    }
    ours: Row = {}
    for name, of in (("fused", FUSED), ("by hand", BY_HAND)):
        faster = turns.faster(of.name, than=rung.name)
        ours |= {name: faster.median, f"{name} low": faster.low, f"{name} high": faster.high}
    return {
        "rung": rung.name,
        **found.row("s"),
        **against,
        **ours,
        "runs": 1 if rung.slow else len(seconds[rung.name]),
        "loss": loss,
        "epoch": "CPU",
        "mini-batch": rung.device,
        "sample": rung.device,
        "threads placed": rung.threads,
        "transfers": rung.transfers,
        "goals": goals(against),
    }


def goals(against: Row, slower_growth: bool = False) -> str:
    factor = against["vs NumPy"]
    met = [name for name, least in (("faster", 1.0), ("x5", 5.0), ("x10", 10.0)) if factor > least]
    return ", ".join([*met, *(["growth"] if slower_growth else [])]) or "-"


def alone(problem: Problem, batches: Batches, order: Order) -> list[Row]:
    """NumPy's rungs with products on one thread, which is often quicker for small ones; fused on all, as before."""
    some = [rung for rung in RUNGS if rung in (FUSED, BY_HAND) or rung.by_numpy]
    runs = {rung.name: training(rung.make(problem.network()), batches) for rung in some}
    with blas.threads(1):
        seconds = take_turns(runs, order.repeats, least=BLOCK, rest=REST)
    return [
        {
            "NumPy on one thread": name,
            **seconds.spread(name).row("s"),
            "fused": seconds.faster(FUSED.name, than=name).median,
            "by hand": seconds.faster(BY_HAND.name, than=name).median,
        }
        for name in runs
    ]
