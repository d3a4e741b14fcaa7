"""Time over ranks: measured with two processes, predicted for more from costs that were measured here."""

from collections.abc import Callable

from ..core.job import run_job
from ..core.turns import Row
from .nets import Order
from .schedules import TimeCosts
from .work import RANKS

FULL, QUICK = (8192, 64), (16384, 32)  # steps of the sequence, and units
WARM = 192  # steps of a warm-up
BEYOND = (4, 8, 16, 32, 64)
MEASURED = (  # series, ranks, contender, what it is compared with
    ("one walk", 1, "serial", "serial"),
    ("shooting", 1, "shooting", "serial"),
    ("multigrid", 1, "multigrid", "serial"),
    ("shooting", RANKS, "shooting, time", "serial"),
    ("multigrid", RANKS, "multigrid, time", "serial"),
    ("data=2, two sequences", RANKS, "data", "serial two"),
    ("layers=2, two layers", RANKS, "layers", "serial layers"),
)


def ranks(order: Order) -> list[Row]:
    """Two processes of one thread measure."""
    T, H = QUICK if order.quick else FULL
    found = run_job("plait.bench.time.work", RANKS, {"T": T, "H": H, **order.some("repeats", "seed")})
    seconds, costs = found["seconds"], TimeCosts(**found["costs"])
    rows = [row(series, n, T, seconds[name], seconds[than], "measured") for series, n, name, than in MEASURED]
    predictions: dict[str, Callable[[int], float]] = {
        "shooting": lambda count: costs.shooting(count, T, WARM),
        "multigrid": lambda count: costs.multigrid(count, T),
    }
    for series, predicted in predictions.items():
        beside = max(0.0, seconds[series] - predicted(1))  # what one rank takes beside its steps, others take, too
        for count in (RANKS, *BEYOND):
            rows.append(row(series, count, T, beside + predicted(count), seconds["serial"], "predicted"))
    order.remarks.append(
        f"ranks: processes of one thread; T {T}: strong scaling, against one walk on one thread; 'T = 4 a rank': "
        "weak scaling; predicted: by the simulator, from costs measured here, if ranks had cores of their own."
    )
    return rows + weak(costs)


def row(series: str, count: int, T: int, seconds: float, serial: float, how: str) -> Row:
    mesh = f"{series}, {count} rank{'s' * (count > 1)}"
    found: Row = {"series": series, "ranks": count, "mesh": mesh, "T": T, "how": how}
    return {**found, "ms": 1e3 * seconds, "speed-up": serial / seconds}


def weak(costs: TimeCosts) -> list[Row]:
    """As many ranks as there are pieces of four steps: the published setting."""
    rows = []
    for count in (2, 8, 32, 128):
        T = 4 * count
        one = costs.call * 2 + T * (costs.walk + costs.walk_backward + costs.loss)
        rows.append(row("multigrid, T = 4 a rank", count, T, costs.multigrid(count, T), one, "predicted"))
    return rows
