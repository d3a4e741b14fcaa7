"""Time over ranks: measured with two processes, predicted for more from costs that were measured here."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..ranks.time_schedule import TimeCosts, multigrid, multigrid_cost, predicted, shooting, shooting_cost
from .job import ORDER, started
from .time_order import Order, Row

RANKS, WARM = 2, 192
BEYOND = (4, 8, 16, 32, 64)


def ranks(order: Order) -> list[Row]:
    """Starts two processes of one thread, which measure."""
    with tempfile.TemporaryDirectory(prefix="plait-") as name:
        asked = {k: v for k, v in asdict(order).items() if k in ("quick", "repeats", "seed")}
        (Path(name) / ORDER).write_text(json.dumps(asked))
        found = started(Path(name), RANKS, "plait.bench.time_work")
    rows: list[Row] = found["rows"]
    costs, T, unsplit = TimeCosts(**found["costs"]), found["T"], found["serial"]
    rows += strong(costs, T, unsplit, rows) + weak(costs)
    order.remarks.append(
        f"ranks: processes of one thread; T {T}: strong scaling, against one walk on one thread; 'T = 4 a rank': "
        "weak scaling; predicted: by the simulator, from costs measured here, if ranks had cores of their own."
    )
    return rows


def row(series: str, count: int, T: int, seconds: float, serial: float, how: str) -> Row:
    mesh = f"{series}, {count} rank{'s' * (count > 1)}"
    found: dict[str, Any] = {"series": series, "ranks": count, "mesh": mesh, "T": T, "how": how}
    return {**found, "ms": 1e3 * seconds, "speed-up": serial / seconds}


def strong(costs: TimeCosts, T: int, serial: float, measured: list[Row]) -> list[Row]:
    """What one rank takes beside its steps is taken from its measurement; the others follow."""
    rows = []
    for name, cost in (
        ("shooting", lambda n: (shooting(n), shooting_cost(costs, n, T, WARM, WARM))),
        ("multigrid", lambda n: (multigrid(n, 2, 1), multigrid_cost(costs, n, T, 4, 3, 2))),
    ):
        (alone,) = (row["ms"] / 1e3 for row in measured if (row["series"], row["ranks"]) == (name, 1))
        beside = max(0.0, alone - predicted(*cost(1), costs.message))
        for count in (RANKS, *BEYOND):
            seconds = beside + predicted(*cost(count), costs.message)
            rows.append(row(name, count, T, seconds, serial, "predicted"))
    return rows


def weak(costs: TimeCosts) -> list[Row]:
    """As many ranks as there are pieces of four steps: the published setting."""
    rows = []
    for count in (2, 8, 32, 128):
        T = 4 * count
        one = costs.call * 2 + T * (costs.walk + costs.walk_back + costs.loss)
        seconds = predicted(multigrid(count, 2, 1), multigrid_cost(costs, count, T, 4, 3, 2), costs.message)
        rows.append(row("multigrid, T = 4 a rank", count, T, seconds, one, "predicted"))
    return rows
