"""What each process of `bench ranks` runs: `python -m plait.bench.ranks_work FOLDER`. The first one writes the rows."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ..ranks.world import find, quieten
from ..training import signals

ORDER, RESULT, PICTURE = "order.json", "result.json", "wavefront.png"  # in the folder


def run(folder: Path) -> int:
    """-> the exit code"""
    from ..errors import PlaitError
    from ..ranks.group import join
    from ..ranks.heartbeat import LOST, Lost
    from .ranks_race import TIMEOUT

    world = find(os.environ)
    if world is None:
        print("plait: ranks_work is started by plait bench ranks.", file=sys.stderr)
        return 2
    group = join(world, TIMEOUT)
    try:
        with group.talking():
            work(folder)
        group.close()
        return 0
    except PlaitError as e:
        group.tell(str(e))
        group.close(together=False)
        if isinstance(e, Lost):
            return LOST
        if world.rank == 0:
            print(f"plait: {e}", file=sys.stderr)
        return 2
    except BaseException:
        group.close(together=False)
        raise


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
    signals.listen()
    quieten(os.environ)
    sys.exit(run(Path(sys.argv[1])))
