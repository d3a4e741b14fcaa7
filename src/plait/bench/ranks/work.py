"""What each process of `bench ranks` measures: one question after another."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...ranks.group import Group
from ...tasks.corpus import Corpus
from ...training.run import Run
from ..core.report import tracked
from ..core.turns import Row
from .order import Order
from .parts import exchange, parts
from .race import Job
from .scaling import computation, padding, strong, weak
from .training import learning

TEXTS = ("streams", "sentences")


def work(order: dict[str, Any], folder: Path, group: Group) -> dict[str, Any]:
    torch.set_num_threads(1)
    job = Job(Order(**order), Corpus.reopen(Run(folder), "text"), group)
    questions: list[Callable[[Job], list[Row]]] = [
        *(partial(question, by=by) for question in (strong, weak, parts) for by in TEXTS),
        *(padding, exchange, learning),
        *(partial(computation, batch=batch, hidden=hidden) for batch, hidden in job.order.variants),
    ]
    rows: list[Row] = []
    for question in tracked(questions) if job.rank == 0 else questions:
        rows += question(job)
    return {"rows": rows, "remarks": job.remarks}
