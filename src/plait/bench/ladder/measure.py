"""The sections of `bench ladder`. Their docstrings are printed below the tables."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from ...errors import PlaitError
from ..core import Report, Row, Seconds, blas, ratio, spread, take_turns
from ..core.pictures import measure_sections
from ..cuda.versions import versions
from ..peers.contenders.network import Stepper
from ..questions import LadderOptions
from .pictures import PANELS
from .problem import BATCH, Batches, Problem, problem
from .rungs import BY_HAND, EXPERT, FUSED, NUMPY, RUNGS, SEQUENTIAL, TORCH, Autograd, Rung

TABLES = [
    ("rung", "s", "low", "high", "vs python", "vs NumPy", "fused"),
    ("rung", "by hand", "runs", "loss", "goals"),
    ("rung", "epoch", "mini-batch", "sample", "threads placed", "transfers"),
    ("NumPy on one thread", "s", "low", "high", "fused", "by hand"),
]
GROWTH = ("trained by", "batch", "exponent", "low", "high", "1x ms", "4x ms", "16x ms")
DESCENT = ("descent", "batch", "steps", "ms/epoch", "loss", "angle, start", "angle, end")
QUESTION = "How far is it from a sequential LSTM to a fast one? Whole training of the airline passengers, seconds"
TOLERANCE = 1e-4  # of the loss after training, relative
BLOCK, SHORT_BLOCK = 0.2, 0.02  # seconds of a measurement
REST = 0.1  # seconds of sleep before it: NumPy's threads spin for a while


def training(stepper: Stepper, batches: Batches) -> Callable[[], list[float]]:
    """A call trains on all batches -> the seconds of each step."""
    data = [stepper.batch(x, y) for x, y in batches]

    def run() -> list[float]:
        ends = [perf_counter()]
        for x, y in data:
            stepper.step(x, y)
            ends.append(perf_counter())
        return [b - a for a, b in pairwise(ends)]

    return run


# --- the first paper's table: one training, every rung, the same loss in the end
def rungs(options: LadderOptions) -> list[Row]:
    """low, high: quartiles; where runs is 1, of single steps. goals: the paper's, against NumPy one sample at a
    time: 75 % faster, 100 % x5, 125 % x10, 150 % growth. The paper, with a GPU: 293 s, NumPy 130 s, V3 17.2 s."""
    asked = problem(options)
    every = [*RUNGS, *versions(simulators=False)[0]]
    batches, losses, seconds, fast = asked.batches(), {}, Seconds(), {}
    with blas.threads(torch.get_num_threads()) as told:
        for rung in every:
            made = rung.make(asked.network())
            run = training(made, batches)
            spent = run()  # from the first weights; it also warms up the fast rungs
            losses[rung.name] = asked.loss(made.weights())
            if rung.slow:
                seconds[rung.name] = [part * len(batches) for part in spent]
            else:
                fast[rung.name] = run
        compare(losses)
        seconds.update(take_turns(fast, options.repeats, warm=False, least=BLOCK, rest=REST))
    rows = [row(rung, seconds, losses[rung.name]) for rung in every]
    return rows + (alone(asked, batches, options.repeats) if told and torch.get_num_threads() > 1 else [])


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
    found, turns = seconds.spread(rung.name), seconds[rung.name]
    if rung.slow:
        turns = [found.median] * len(seconds[FUSED.name])
    return {
        "rung": rung.name,
        **found.row("s"),
        "vs python": seconds.median(SEQUENTIAL.name) / found.median,
        "vs NumPy": seconds.median(NUMPY.name) / found.median,
        **ours(turns, seconds),
        "runs": 1 if rung.slow else len(turns),
        "loss": loss,
        "epoch": "CPU",
        "mini-batch": rung.device,
        "sample": rung.device,
        "threads placed": rung.threads,
        "transfers": rung.transfers,
    }


def ours(turns: list[float], seconds: Seconds) -> Row:
    """How many times faster they are."""
    return {"fused": ratio(turns, seconds[FUSED.name]).median, "by hand": ratio(turns, seconds[BY_HAND.name]).median}


def alone(asked: Problem, batches: Batches, repeats: int) -> list[Row]:
    """NumPy's rungs with products on one thread, which is often quicker; fused on all, as before."""
    some = [rung for rung in RUNGS if rung in (FUSED, BY_HAND) or rung.by_numpy]
    runs = {rung.name: training(rung.make(asked.network()), batches) for rung in some}
    with blas.threads(1):
        seconds = take_turns(runs, repeats, least=BLOCK, rest=REST)
    rows = []
    for name in runs:
        found = seconds.spread(name).row("s")
        rows.append({"NumPy on one thread": name, **found, **ours(seconds[name], seconds)})
    return rows


# --- does training time grow more slowly than the dataset?
def growth(options: LadderOptions) -> list[Row]:
    """an epoch of 1, 2, 4 ... times the data; exponent 1: training time grows as quickly as the data."""
    sizes = [2**k for k in range(5 if options.quick else 7)]
    series = [(rung, kind) for rung in (FUSED, EXPERT, TORCH) for kind in ("fixed", "growing")]
    contenders = {}  # all of them take turns, so that a slow minute bends no line
    for rung, kind in series:
        for times in sizes:
            grown = problem(options, epochs=1).grown(times, BATCH * (times if kind == "growing" else 1))
            contenders[f"{rung.name}/{kind}/{times}"] = training(rung.make(grown.network()), grown.batches())
    with blas.threads(torch.get_num_threads()):
        seconds = take_turns(contenders, options.repeats, least=SHORT_BLOCK, rest=REST)
    rows: list[Row] = []
    for rung, kind in series:
        mine = {times: seconds[f"{rung.name}/{kind}/{times}"] for times in sizes}
        found = spread(exponent(sizes, some) for some in zip(*mine.values(), strict=True))
        times_ms = {f"{times}x ms": spread(some).median * 1e3 for times, some in mine.items()}
        rows.append({"trained by": rung.name, "batch": kind, **found.row("exponent"), **times_ms, "sizes": sizes})
    return rows


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of the line through the points, both axes logarithmic."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


# --- how rough is a gradient, and what does a good one cost?
def descent(options: LadderOptions) -> list[Row]:
    """angle: degrees to the gradient of all samples, at the first weights and where mini-batches end."""
    whole = problem(options, epochs=10 if options.quick else 40)
    first = Autograd(whole.network(), "fused")
    rows: list[Row] = []
    ends = {}
    for name, batch in {"stochastic": 1, "mini-batch": BATCH, "full batch": len(whole.windows)}.items():
        asked = replace(whole, batch=batch)
        batches, seconds, losses = asked.batches(), [], []
        training(Autograd(asked.network(), "fused"), batches[:1])()  # warm
        learner = ends[name] = Autograd(asked.network(), "fused")
        count = len(batches) // asked.epochs
        for begin in range(0, len(batches), count):
            seconds.append(sum(training(learner, batches[begin : begin + count])()))
            losses.append(asked.loss(learner.weights()))  # of all samples; not timed
        found: Row = {"descent": name, "batch": batch, "steps": len(batches)}
        found |= {"ms/epoch": spread(seconds).median * 1e3, "loss": losses[-1]}
        rows.append({**found, "by epoch": losses, "seconds": seconds})
    for found in rows:
        for when, learner in (("start", first), ("end", ends["mini-batch"])):
            off = spread(angles(learner, replace(whole, epochs=1, batch=found["batch"])))
            found |= {f"angle, {when}": off.median, f"{when} low": off.low, f"{when} high": off.high}
    return rows


def angles(learner: Autograd, asked: Problem) -> list[float]:
    """Between the gradient of each mini-batch and that of all samples, in degrees."""

    def gradients(batches: Batches) -> list[Tensor]:
        found = (learner.gradient(*learner.batch(x, y)) for x, y in batches)
        return [torch.cat([d.flatten() for d in some]).double() for some in found]

    (full,) = gradients(replace(asked, batch=len(asked.windows)).batches())
    return [angle(some, full) for some in gradients(asked.batches())]


def angle(a: Tensor, b: Tensor) -> float:
    """By both sine and cosine: the cosine alone is blunt near 0."""
    a, b = a / a.norm(), b / b.norm()
    return float(torch.rad2deg(2 * torch.atan2((a - b).norm(), (a + b).norm())))


def measure(options: LadderOptions) -> Report:
    tables = [*TABLES, GROWTH if options.quick else (*GROWTH, "64x ms"), DESCENT]
    report = measure_sections(QUESTION, (rungs, growth, descent), tables, PANELS, options)
    slower = {row["trained by"] for row in report.rows if row.get("batch") == "growing" and row["exponent"] < 1}
    for row in report.rows:
        if "rung" in row:
            row["goals"] = goals(row["vs NumPy"], row["rung"] in slower)
    if options.parts is not None and "rungs" not in options.parts:
        return report
    missing = versions(simulators=False)[1]
    if blas.openblas() is None:
        missing.append("NumPy's products are not by the OpenBLAS of its wheel: its threads cannot be set.")
    return replace(report, remarks=[*report.remarks, *missing])


def goals(factor: float, slower_growth: bool = False) -> str:
    met = [name for name, least in (("faster", 1.0), ("x5", 5.0), ("x10", 10.0)) if factor > least]
    return ", ".join([*met, *(["growth"] if slower_growth else [])]) or "-"
