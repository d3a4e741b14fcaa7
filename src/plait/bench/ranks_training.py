"""Does it learn as well, and as fast? Loss against seconds for each mesh, and perplexity against the global batch."""

from collections.abc import Sequence
from statistics import fmean

from ..errors import PlaitError
from ..ranks.talk import tell_all
from ..tasks.corpus import Corpus
from ..tasks.language import Language, safe_exp
from ..tasks.settings import LanguageSettings
from ..training import signals
from ..training.loop import train
from .ranks_race import Entry, Job, Order, Row, lasted
from .ranks_scaling import ONE, layer_ways
from .ranks_text import Source
from .ranks_ways import Data, Way
from .report import tracked

LR, CLIP = 20.0, 0.25  # Zaremba's 1 and 5, for the mean over a stream's steps instead of the sum
SMOOTH = 5  # steps over which a loss is averaged


class Trainee:
    """A contender that learns, with weights of its own, and states that are carried on."""

    def __init__(self, name: str, way: Way | None, source: Source) -> None:
        self.entry = Entry(name, way, source)
        self.losses: list[float] = []
        self.took: list[tuple[float, float]] = []
        if way is not None:
            way.carries, way.weights = True, [p.detach().clone() for p in way.net.parameters]

    def note(self, way: Way, loss: float) -> None:
        self.losses.append(loss)
        self.took.append((way.marks["start"], way.marks["end"]))


def learning(job: Job) -> list[Row]:
    """Some steps of training from the same weights, with the same batches."""
    order, net, mesh = job.order, job.make(), job.mesh("data", 2)
    source, double = job.streams(size=order.trained), job.streams(2 * order.batch, size=order.trained // 2)
    pipeline = layer_ways(job, net, job.streams(), 2)[0].entry.way
    trainees = [
        Trainee(ONE, job.alone(net), source),
        Trainee("data=2", Data(net, mesh, "auto") if mesh else None, source),
        Trainee("layers=2", pipeline, source),
        Trainee(f"data=2, batch {2 * order.batch}", Data(net, mesh, "auto") if mesh else None, double),
    ]
    net.learn(LR, CLIP)
    for k in range(order.trained):
        for trainee in trainees[:: -1 if k % 2 else 1]:
            if k < trainee.entry.source.size:
                job.turn(trainee.entry, k, trainee.note)
    every = tell_all([[[span] for span in trainee.took] for trainee in trainees], job.everyone)
    seconds = [lasted([ranks[n] for ranks in every]) for n in range(len(trainees))]
    curves = [smoothed(trainee.losses) for trainee in trainees]
    return rows_of([t.entry.name for t in trainees], curves, seconds) if job.rank == 0 else []


def smoothed(losses: Sequence[float]) -> list[float]:
    return [fmean(losses[max(0, k + 1 - SMOOTH) : k + 1]) for k in range(len(losses))]


def rows_of(names: Sequence[str], curves: Sequence[Sequence[float]], seconds: Sequence[Sequence[float]]) -> list[Row]:
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
    smallest = order.global_batches[0]
    runs = [(batch, is_scaled) for batch in order.global_batches for is_scaled in (False, True)]
    return [perplexity(order, corpus, *run) for run in tracked(runs) if run != (smallest, True)]


def perplexity(order: Order, corpus: Corpus, batch: int, is_scaled: bool) -> Row:
    steps = -(-len(corpus.parts["train"].ids) // (batch * order.steps))  # in an epoch
    settings = LanguageSettings(
        data="text",
        layers=2,
        hidden=min(order.hidden, 32) if order.quick else 200,
        softmax="full",
        batch=str(batch),
        steps=order.steps,
        epochs=1 if order.quick else 3,
        patience=0,
        seed=order.seed,
        lr_batch=order.batch if is_scaled else None,
        warmup=max(1, steps // 4) if is_scaled else 0,
        optimizer="sgd",
        lr=LR,
        clip=CLIP,
    )
    row = {
        "global batch": batch,
        "lr": settings.scaled_lr,
        "warm-up": settings.warmup,
        "steps": steps * settings.epochs,
    }
    task = Language(settings, corpus)
    try:
        outcome = train(task, settings)
    except PlaitError:  # it diverged
        return {**row, "perplexity": None, "seconds": None}
    if outcome.interrupted:
        signals.leave()
    last = outcome.progress.history[-1]
    return {**row, "perplexity": safe_exp(last["validation"]), "seconds": last["seconds"]}
