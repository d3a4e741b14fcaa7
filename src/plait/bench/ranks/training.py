"""Does it learn as well, and as fast? Loss against seconds for each mesh, and perplexity against the global batch."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ...errors import PlaitError
from ...tasks.corpus import Corpus
from ...tasks.language import Language, safe_exp
from ...training import signals
from ...training.loop import train
from ..core.report import tracked
from ..core.turns import Row
from .order import Order
from .race import Job

# Zaremba's 1 and 5, for the mean over a stream's steps instead of the sum
LEARNING: dict[str, Any] = {"lr": 20.0, "clip": 0.25}
SMOOTH = 5  # steps over which a loss is averaged


def learning(job: Job) -> list[Row]:
    """Some steps of training from the same weights, with the same batches."""
    order = job.order
    task = job.text(size=order.scale.trained, **LEARNING)
    double = job.text(batch=2 * order.batch, size=order.scale.trained // 2, **LEARNING)
    cut = job.cut(job.costs(task, 2), task, 2)
    trainees = [
        job.alone(task, learns=True),
        job.together("data=2", task, learns=True),
        job.together("layers=2", task, cut, learns=True),
        job.together("data=2", double, name=f"data=2, batch {2 * order.batch}", learns=True),
    ]
    race = job.race(trainees, repeats=1)
    names = [trainee.name for trainee in trainees]
    curves = [smoothed([step[0]["loss"] for step in race.notes[name]]) for name in names]
    return curve_rows(names, curves, [race.steps(name) for name in names])


def smoothed(losses: Sequence[float]) -> list[float]:
    return [fmean(losses[max(0, k + 1 - SMOOTH) : k + 1]) for k in range(len(losses))]


def curve_rows(
    names: Sequence[str], curves: Sequence[Sequence[float]], seconds: Sequence[Sequence[float]]
) -> list[Row]:
    """The set loss is one that all of them reach."""
    wanted = max(min(curve) for curve in curves)
    rows = list[Row]()
    for name, curve, took in zip(names, curves, seconds, strict=True):
        steps = next(k for k, loss in enumerate(curve, 1) if loss <= wanted)
        ends = [sum(took[: k + 1]) for k in range(len(took))]
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


# --- the size of a batch
def perplexities(order: Order, corpus: Corpus) -> list[Row]:
    """Final perplexity against the global batch. It does not depend on the mesh, so one process is enough."""
    smallest, *larger = order.global_batches
    runs = [(smallest, False), *((batch, is_scaled) for batch in larger for is_scaled in (False, True))]
    return [perplexity(order, corpus, *run) for run in tracked(runs)]


def perplexity(order: Order, corpus: Corpus, batch: int, is_scaled: bool) -> Row:
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
    row = {
        "global batch": batch,
        "lr": settings.scaled_lr,
        "warm-up": settings.warmup,
        "steps": steps * settings.epochs,
    }
    try:
        outcome = train(Language(settings, corpus), settings)
    except PlaitError:  # it diverged
        return {**row, "perplexity": None, "seconds": None}
    if outcome.interrupted:
        signals.leave()
    last = outcome.progress.history[-1]
    return {**row, "perplexity": safe_exp(last["validation"]), "seconds": last["seconds"]}
