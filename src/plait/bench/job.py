"""A benchmark that several processes measure together: how it is started, and what each of them runs."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..ranks.world import find, quieten
from ..training import signals

ORDER, RESULT = "order.json", "result.json"  # in the folder
TIMEOUT = 300.0  # seconds that a rank may sleep while others work


def started(folder: Path, ranks: int, module: str) -> Any:
    """Starts `python -m MODULE FOLDER` in so many processes of one thread, and waits -> what the first one has left."""
    from ..errors import PlaitError
    from ..ranks.ends import STOPPED
    from ..ranks.launch import launch

    said: list[str] = []
    code = launch([str(folder)], ranks, threads=1, max_restarts=0, say=said.append, module=module)
    if code == 0:
        return json.loads((folder / RESULT).read_text())
    if code == STOPPED or not said:
        for line in said:
            print(f"plait: {line}", file=sys.stderr)
        sys.exit(code)
    raise PlaitError(" ".join(said))


def main(question: str, work: Callable[[Path], None]) -> None:
    """What each process runs. question: of `plait bench`, which starts it."""
    signals.listen()
    quieten(os.environ)
    sys.exit(run(Path(sys.argv[1]), question, work))


def run(folder: Path, question: str, work: Callable[[Path], None]) -> int:
    """-> the exit code"""
    from ..errors import PlaitError
    from ..ranks.group import join
    from ..ranks.heartbeat import LOST, Lost

    world = find(os.environ)
    if world is None:
        print(f"plait: this program is started by plait bench {question}.", file=sys.stderr)
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
