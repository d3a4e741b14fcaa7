"""Starts the job of `bench ranks`: what each process measures, and what is reported.

The crews that `plait train` runs take turns step by step, so what a speed-up compares ran within seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...errors import PlaitError
from ...ranks.group import Group
from ...tasks.corpus import Corpus
from ...tasks.language_model import LanguageModel
from ...tasks.memory import check_fits, weights_of
from ..core import Report, Row, tracked
from ..core.job import run_job
from ..core.pictures import draw
from ..questions import RanksOptions
from .gantt import gantt
from .parts import exchange, parts
from .race import ONE, Job
from .scaling import computation, padding, strong, variants, weak
from .text import read
from .training import BATCHES, TRAINED, learning, perplexities

COPIES = 12  # of the weights on a rank: gradients of several meshes, and memory that ranks share
SPREAD = ("low", "high")
TABLES = (
    ("strong scaling", "text", "ms", "speed-up", *SPREAD, "efficiency", "Karp-Flatt", "of limit %", "oversubscribed"),
    ("weak scaling", "text", "batch", "tokens/s each", "of 1 rank %", *SPREAD, "oversubscribed"),
    ("padding", "ranks", "padding %", "s/epoch", "faster", *SPREAD),
    ("time of", "text", "rank", "step ms", "compute", "exposed", "hidden", "wait", "MB sent"),
    ("exchange alone", "ms", *SPREAD, "MB sent", "oversubscribed"),
    ("more computation", "batch", "units", "speed-up", *SPREAD, "without exchange", "of that %"),
    ("split", "layers of each", "chunks", "speed-up", *SPREAD, "oversubscribed"),
    ("training", "steps", "first loss", "last loss", "seconds", "steps to it", "s to it"),
    ("the paper's table", "MB sent", "busiest/mean", "s to it"),
    ("global batch", "lr", "warm-up", "steps", "perplexity", "seconds"),
    ("mesh", "text", "simulated ms", "outside ms", "measured ms", "off %"),
    ("wavefront", "ms", "idle %"),
)
REMARKS = (
    "A step is both passes, the exchange, clipping and the update, with one thread a rank.",
    "Speed-ups are against 1 rank with 1 thread in the same turn: median and quartiles.",
    "no exchange: each rank takes its part of the batch, and nothing is added up: the limit.",
    "data=2: by shared memory where there is any. oversubscribed: more threads than cores.",
    "exposed: communication that a rank did or waited for. hidden: the rest of the exchange.",
    "wait: until the other rank has come as far.",
    "training: from the same weights, with the same batches; losses are means over some steps.",
    "busiest/mean: compute time of the busiest rank over the mean of all.",
    "global batch: of all ranks together. It does not depend on the mesh: one process trained.",
    "simulated: from parts that were timed alone. outside: those that no schedule has.",
)


def measure(options: RanksOptions) -> Report:
    order, corpus = options, read(options)
    check_size(order, corpus)
    rows: list[Row] = run_job(__name__, order.ranks, asdict(order))
    rows += [*perplexities(order, corpus), *closing(rows)]
    draw(options.picture, rows, [({"wavefront"}, "A step of layers=2", gantt)])
    return Report(
        f"What do several processes bring? {corpus.name}, {len(corpus.vocabulary):,} words, LSTM {order.layers} x "
        f"{order.hidden}, embedding {order.embedding}, batch {order.batch}, {order.steps} steps, 1 to {order.ranks} "
        "ranks",
        TABLES,
        rows,
        [*REMARKS, *measured(rows)],
    )


def work(order: dict[str, Any], folder: Path, group: Group) -> list[Row]:
    """What each process of the job does: one question after another."""
    torch.set_num_threads(1)
    mine = RanksOptions(**order)
    job = Job(mine, read(mine), group)
    questions: list[Callable[[Job], list[Row]]] = [
        *(partial(question, by=by) for question in (strong, weak, parts) for by in ("streams", "sentences")),
        *(padding, exchange, learning),
        *(partial(computation, batch=batch, hidden=hidden) for batch, hidden in variants(mine)),
    ]
    watched = questions if job.rank else tracked(questions)
    return [row for question in watched for row in question(job)]


def check_size(order: RanksOptions, corpus: Corpus) -> None:
    """Refuses a text that is too short, and a network that does not fit."""
    train, most = corpus.parts["train"], order.batch * order.ranks
    sentences, tokens = len(train.lengths), len(train.ids)
    if sentences < most:
        raise PlaitError(
            f"{corpus.name} has {sentences} sentences to train on: expected at least {most}, a batch for each rank; "
            "lower --batch or --ranks."
        )
    for batch, steps, size in (
        (max(most, *(batch for batch, _ in variants(order))), order.steps, 1),
        (order.batch, order.steps, TRAINED[order.quick]),
        (BATCHES[-1] * order.batch, 2, 1),
    ):
        if tokens < batch * steps * size:
            raise PlaitError(
                f"{corpus.name} has {tokens:,} words to train on, and {size} batches of {batch} x {steps} need "
                f"{batch * steps * size:,}: give a longer text, or lower --batch, --steps or --ranks."
            )
    weights = weights_of(lambda: LanguageModel(order.settings(), len(corpus.vocabulary)))
    needed = order.ranks * COPIES * 4 * weights
    check_fits(needed, f"{order.ranks} ranks with {weights:,} weights", "lower --hidden, --layers or --ranks")


def closing(rows: Sequence[Row]) -> list[Row]:
    """The table with which the second paper ends. Streams, two ranks."""
    reached = {row["training"]: row["s to it"] for row in rows if "training" in row}
    found: dict[str, Row] = {}
    for row in rows:
        name = row.get("time of")
        if name in ("data=2", "data=2:server", "layers=2") and row["text"] == "streams":
            sent = max(row["MB sent"], found.get(name, row)["MB sent"])  # of its ranks
            mine = {"MB sent": sent, "busiest/mean": row["busiest/mean"], "s to it": reached.get(name)}
            found[name] = {"the paper's table": name, **mine}
    return list(found.values())


def measured(rows: Sequence[Row]) -> list[str]:
    """What loss was set, and the largest deviation of each mesh over all texts."""
    found, far = list[str](), dict[str, float]()
    for row in rows:
        if row.get("training") == ONE:
            found.append(f"training: the set loss is {row['set loss']:.4g}.")
        name = row.get("strong scaling") or row.get("time of")
        if name and name != ONE and row.get("deviation") is not None:
            far[name] = max(far.get(name, 0.0), row["deviation"])
    words = ", ".join(f"{name} {value:.1e}" for name, value in far.items())
    return [*found, f"Largest deviation of loss and gradients from one rank (relative): {words}."]
