"""What each process of `bench ranks` runs: `python -m plait.bench.ranks_work FOLDER`. The first one writes the rows."""

import json
from collections.abc import Callable
from pathlib import Path

from .job import ORDER, RESULT, main

PICTURE = "wavefront.png"  # in the folder


def work(folder: Path) -> None:
    import torch

    from ..tasks.corpus import Corpus
    from ..training.run import Run
    from .ranks_parts import exchange, parts
    from .ranks_race import Job, Order, Row
    from .ranks_scaling import computation, padding, strong, weak
    from .ranks_training import learning
    from .report import tracked

    torch.set_num_threads(1)
    order = Order(**json.loads((folder / ORDER).read_text()))
    job = Job(order, Corpus.reopen(Run(folder), "text"))
    questions: list[Callable[[Job], list[Row]]] = [strong, weak, padding, parts, exchange, computation, learning]
    rows: list[Row] = []
    for question in tracked(questions) if job.rank == 0 else questions:
        rows += question(job)
    if job.rank == 0:
        (folder / PICTURE).write_bytes(job.picture)
        (folder / RESULT).write_text(json.dumps({"rows": rows, "remarks": job.remarks}))


if __name__ == "__main__":
    main("ranks", work)
