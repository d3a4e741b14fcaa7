"""What do several processes bring, by data, by layers, or with a server? Up to an hour; with --quick under 3 minutes.

One job of as many processes as --ranks says, each with one thread, measures everything (ranks_work.py). The contenders
take turns step by step: what a speed-up compares ran within seconds of each other.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

from ..errors import PlaitError, between
from ..tasks.corpus import Corpus
from ..tasks.language_model import LanguageModel
from ..tasks.memory import check_fits, weights_of
from ..tasks.pictures import check_picture
from ..tasks.settings import LanguageSettings
from ..training.files import write_whole
from .job import ORDER, started
from .options import Repeats, Seed, Text
from .ranks_race import Order, Row
from .ranks_report import TABLES, closing, remarks
from .ranks_text import StreamBatches, beginning, made_up
from .ranks_training import perplexities
from .ranks_work import PICTURE
from .report import Report, check

FULL = (8, 400, 35)  # layers, units, steps: the second paper's
QUICK = (4, 96, 20)
LARGE, SMALL = (10_000, 42_000), (1_000, 1_500)  # words and sentences of a text that is made up
COPIES = 12  # of the weights on a rank: gradients of several meshes, and memory that ranks share


def measure(
    data: Text = None,
    layers: Annotated[int | None, "Layers of LSTM.  (default: 8; 4 with --quick)"] = None,
    hidden: Annotated[int | None, "Units in a layer.  (default: 400; 96 with --quick)"] = None,
    embedding: Annotated[int | None, "Numbers that stand for a word.  (default: half of the units)"] = None,
    batch: Annotated[int, "Streams, or sentences, in a step of all ranks together."] = 20,
    steps: Annotated[int | None, "Steps of a stream.  (default: 35; 20 with --quick)"] = None,
    ranks: Annotated[int, "Processes, at the most; each has one thread."] = 4,
    quick: Annotated[bool, "A small network, few batches: all tables in under 3 minutes."] = False,
    picture: Annotated[
        str | None, "Draw the wavefront there, measured beside simulated, as a PNG file.", "FILE"
    ] = None,
    repeats: Repeats = 5,
    seed: Seed = 0,
) -> Report:
    check(repeats, seed)
    usual = QUICK if quick else FULL
    layers, hidden, steps = (usual[k] if n is None else n for k, n in enumerate((layers, hidden, steps)))
    embedding = max(1, hidden // 2) if embedding is None else embedding
    order = Order(layers, hidden, embedding, batch, steps, ranks, repeats, seed, quick)
    check_order(order)
    place = check_picture(picture) if picture else None
    corpus = read(data, order)
    check_size(order, corpus)
    with tempfile.TemporaryDirectory(prefix="plait-") as name:
        rows, said = measured(order, corpus, Path(name))
        if place:
            write_whole(place, (Path(name) / PICTURE).read_bytes())
    rows += perplexities(order, corpus)
    rows += closing(rows)
    return Report(
        f"What do several processes bring? {corpus.name}, {len(corpus.vocabulary):,} words, LSTM {order.layers} x "
        f"{order.hidden}, embedding {order.embedding}, batch {batch}, {order.steps} steps, 1 to {ranks} ranks",
        TABLES,
        rows,
        [*remarks(rows, os.cpu_count() or 1), *said],
    )


def check_order(order: Order) -> None:
    between("ranks", order.ranks, 2, 64)
    between("layers", order.layers, 2, 1000)
    between("batch", order.batch, order.ranks, 10**6)
    between("steps", order.steps, 2, 10**6)
    order.network()  # checks the rest


def read(data: str | None, order: Order) -> Corpus:
    if data is None:
        return made_up(*(SMALL if order.quick else LARGE), order.seed)
    corpus = Corpus.read(LanguageSettings(data=data))
    return beginning(corpus, SMALL[1]) if order.quick else corpus


def check_size(order: Order, corpus: Corpus) -> None:
    """Refuses a text that is too short, and a network that does not fit."""
    sentences = len(corpus.parts["train"].lengths)
    if sentences < order.batch * order.ranks:
        raise PlaitError(
            f"{corpus.name} has {sentences} sentences to train on: expected at least {order.batch * order.ranks}, a "
            "batch for each rank; lower --batch or --ranks."
        )
    for batch, steps, size in (
        (order.most_streams, order.steps, order.batches),
        (order.batch, order.steps, order.trained),
        (order.global_batches[-1], 2, 1),
    ):
        StreamBatches(corpus, batch, steps, size)
    weights = weights_of(lambda: LanguageModel(order.network(), len(corpus.vocabulary)))
    needed = order.ranks * COPIES * 4 * weights
    check_fits(needed, f"{order.ranks} ranks with {weights:,} weights", "lower --hidden, --layers or --ranks")


def measured(order: Order, corpus: Corpus, folder: Path) -> tuple[list[Row], list[str]]:
    """Starts the job, and waits for it -> its rows, and what it has to say."""
    for name, content in corpus.files().items():
        (folder / name).write_bytes(content)
    (folder / ORDER).write_text(json.dumps(order.as_dict()))
    found = started(folder, order.ranks, "plait.bench.ranks_work")
    return found["rows"], found["remarks"]
