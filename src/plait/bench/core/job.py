"""A question that several processes measure together: how they are started, and what each of them runs."""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ...ranks.world import find, quieten
from ...training import signals

ORDER, RESULT = "order.json", "result.json"  # in the folder of a job
TIMEOUT = 300.0  # seconds that a rank may sleep while others work


def run_job(module: str, ranks: int, order: Mapping[str, Any]) -> Any:
    """Starts so many processes of one thread, and waits. Each calls `work(order, folder, group)` of the module.

    -> what that of the first rank gives, as JSON
    """
    from ...errors import PlaitError
    from ...ranks.exits import STOPPED
    from ...ranks.launch import launch

    said: list[str] = []
    with tempfile.TemporaryDirectory(prefix="plait-") as name:
        (Path(name) / ORDER).write_text(json.dumps(order))
        code = launch([name, module], ranks, threads=1, max_restarts=0, say=said.append, module=__name__)
        if code == 0:
            return json.loads((Path(name) / RESULT).read_text())
    if code == STOPPED or not said:
        for line in said:
            print(f"plait: {line}", file=sys.stderr)
        sys.exit(code)
    raise PlaitError(" ".join(said))


def run(folder: Path, module: str) -> int:
    """What each process does -> its exit code. Slow imports are made when signals are heard."""
    from ...errors import PlaitError
    from ...ranks.group import join
    from ...ranks.heartbeat import LOST, Lost

    world = find(os.environ)
    assert world is not None  # run_job started it
    group = join(world, TIMEOUT)
    try:
        with group.guarded():
            order = json.loads((folder / ORDER).read_text())
            found = import_module(module).work(order, folder, group)
        if world.rank == 0:
            (folder / RESULT).write_text(json.dumps(found))
        group.leave_together()
        return 0
    except PlaitError as e:
        group.report(str(e))
        if world.rank == 0 and not isinstance(e, Lost):
            print(f"plait: {e}", file=sys.stderr)
        return LOST if isinstance(e, Lost) else 2
    finally:
        group.close(together=False)


if __name__ == "__main__":
    signals.listen()
    quieten(os.environ)
    sys.exit(run(Path(sys.argv[1]), sys.argv[2]))
