"""Starts the job of `bench ranks`, and reports what it found."""

import os
from dataclasses import asdict

from ...errors import PlaitError
from ...ranks.schedule import Timeline
from ...tasks.corpus import Corpus
from ...tasks.language_model import LanguageModel
from ...tasks.memory import check_fits, weights_of
from ...tasks.pictures import check_picture
from ...tasks.settings import LanguageSettings
from ...training.files import write_whole
from ..core.job import run_job
from ..core.report import Report
from . import Options
from .account import spans_of
from .gantt import gantt
from .order import Order
from .report import TABLES, closing, remarks, table
from .text import beginning, made_up
from .training import perplexities

COPIES = 12  # of the weights on a rank: gradients of several meshes, and memory that ranks share


def measure(options: Options) -> Report:
    order = Order.of(options)
    corpus = read(order)
    check_size(order, corpus)
    found = run_job("plait.bench.ranks.work", order.ranks, asdict(order), corpus.files())
    rows = [*found["rows"], *perplexities(order, corpus)]
    rows += closing(rows)
    if options.picture:
        timelines = {row["wavefront"]: Timeline(tuple(spans_of([row]))) for row in table(rows, "wavefront")}
        write_whole(check_picture(options.picture), gantt(timelines))
    return Report(
        f"What do several processes bring? {corpus.name}, {len(corpus.vocabulary):,} words, LSTM {order.layers} x "
        f"{order.hidden}, embedding {order.embedding}, batch {order.batch}, {order.steps} steps, 1 to {order.ranks} "
        "ranks",
        TABLES,
        rows,
        [*remarks(rows, os.cpu_count() or 1), *found["remarks"]],
    )


def read(order: Order) -> Corpus:
    if order.data is None:
        return made_up(order.scale.words, order.scale.sentences, order.seed)
    corpus = Corpus.read(LanguageSettings(data=order.data))
    return beginning(corpus, order.scale.sentences) if order.quick else corpus


def check_size(order: Order, corpus: Corpus) -> None:
    """Refuses a text that is too short, and a network that does not fit."""
    train = corpus.parts["train"]
    sentences, tokens = len(train.lengths), len(train.ids)
    if sentences < order.batch * order.ranks:
        raise PlaitError(
            f"{corpus.name} has {sentences} sentences to train on: expected at least {order.batch * order.ranks}, a "
            "batch for each rank; lower --batch or --ranks."
        )
    most_streams = max(order.batch * order.ranks, *(batch for batch, _ in order.variants))
    for batch, steps, size in (
        (most_streams, order.steps, order.scale.batches),
        (order.batch, order.steps, order.scale.trained),
        (order.global_batches[-1], 2, 1),
    ):
        if tokens < batch * steps * size:
            raise PlaitError(
                f"{corpus.name} has {tokens:,} words to train on, and {size} batches of {batch} x {steps} need "
                f"{batch * steps * size:,}: give a longer text, or lower --batch, --steps or --ranks."
            )
    weights = weights_of(lambda: LanguageModel(order.settings(), len(corpus.vocabulary)))
    needed = order.ranks * COPIES * 4 * weights
    check_fits(needed, f"{order.ranks} ranks with {weights:,} weights", "lower --hidden, --layers or --ranks")
