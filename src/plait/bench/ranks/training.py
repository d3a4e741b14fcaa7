"""Does it learn as well, and as fast? Loss against seconds, perplexity against the batch."""

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from ...errors import PlaitError
from ...tasks.corpus import Corpus
from ...tasks.language import Language, safe_exp
from ...training import signals
from ...training.loop import train
from ..core import Row, tracked
from ..questions import RanksOptions
from .race import Job

# Zaremba's 1 and 5, for the mean over a stream's steps instead of the sum
LEARNING: dict[str, Any] = {"lr": 20.0, "clip": 0.25}
TRAINED = 60, 8  # steps; the latter with --quick
SMOOTH = 5  # steps over which a loss is averaged
BATCHES = (1, 4, 16)  # times the batch, for which the perplexity is compared


def learning(job: Job) -> list[Row]:
    """Some steps of training from the same weights, with the same batches."""
    batch, steps = job.order.batch, TRAINED[job.order.quick]
    task = job.text(size=steps, **LEARNING)
    double = job.text(batch=2 * batch, size=steps // 2, **LEARNING)
    task.learns = double.learns = True
    some = [job.alone(task), job.together("data=2", task), job.together("layers=2", task)]
    some.append(job.together("data=2", double, f", batch {2 * batch}"))
    job.race(some, repeats=1)
    return curve_rows({c.name: ([step[0]["loss"] for step in c.notes], c.steps) for c in some})


def smoothed(losses: Sequence[float]) -> list[float]:
    return [fmean(losses[max(0, k + 1 - SMOOTH) : k + 1]) for k in range(len(losses))]


def curve_rows(found: dict[str, tuple[Sequence[float], Sequence[float]]]) -> list[Row]:
    """From losses and seconds of all steps. The set loss is one that all of them reach."""
    curves = {name: smoothed(losses) for name, (losses, _) in found.items()}
    wanted = max(min(curve) for curve in curves.values())
    rows = list[Row]()
    for name, curve in curves.items():
        steps = next(k for k, loss in enumerate(curve, 1) if loss <= wanted)
        ends = list(accumulate(found[name][1]))
        rows.append(
            {
                "training": name,
                "steps": len(curve),
                "first loss": curve[0],
                "last loss": curve[-1],
                "seconds": ends[-1],
                "set loss": wanted,
                "steps to it": steps,
                "s to it": ends[steps - 1],
                "curve": [[a, b] for a, b in zip(ends, curve, strict=True)],
            }
        )
    return rows


def perplexities(order: RanksOptions, corpus: Corpus) -> list[Row]:
    """By one process. Larger batches: also with a larger learning rate."""
    runs = [(n * order.batch, is_scaled) for n in BATCHES for is_scaled in (False, True)]
    return [perplexity(order, corpus, *run) for run in tracked(runs[:1] + runs[2:])]


def perplexity(order: RanksOptions, corpus: Corpus, batch: int, is_scaled: bool) -> Row:
    steps = -(-len(corpus.parts["train"].ids) // (batch * order.steps))  # in an epoch
    settings = order.settings(
        layers=2,
        hidden=min(order.hidden, 32) if order.quick else 200,
        embedding=None,
        batch=str(batch),
        steps=order.steps,
        epochs=1 if order.quick else 3,
        patience=0,
        lr_batch=order.batch if is_scaled else None,
        warmup=max(1, steps // 4) if is_scaled else 0,
        **LEARNING,
    )
    row: Row = {"global batch": batch, "lr": settings.scaled_lr, "warm-up": settings.warmup}
    row["steps"] = steps * settings.epochs
    try:
        outcome = train(Language(settings, corpus), settings)
    except PlaitError:  # it diverged
        return {**row, "perplexity": None, "seconds": None}
    if outcome.interrupted:
        signals.leave()
    last = outcome.progress.history[-1]
    return {**row, "perplexity": safe_exp(last["validation"]), "seconds": last["seconds"]}
