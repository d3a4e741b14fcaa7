"""The sections of `bench ladder`, and its tables."""

from collections.abc import Callable

from ...errors import between
from ...tasks.settings import WIDEST
from ..core.pictures import draw
from ..core.report import Report
from ..core.sections import measure_sections
from ..core.turns import Row
from . import Options
from .descent import descent
from .growth import growth
from .pictures import PANELS
from .problem import Order
from .table import goals, rungs

PARTS: dict[str, Callable[[Order], list[Row]]] = {"rungs": rungs, "growth": growth, "descent": descent}
QUICK_HIDDEN = 8
SHORT = ("trained by", "batch", "exponent", "low", "high", "1x ms", "4x ms", "16x ms")
LONG = (*SHORT, "64x ms")
TABLES = [
    ("rung", "s", "low", "high", "vs python", "vs NumPy", "fused"),
    ("rung", "by hand", "runs", "loss", "goals"),
    ("rung", "epoch", "mini-batch", "sample", "threads placed", "transfers"),
    ("NumPy on one thread", "s", "low", "high", "fused", "by hand"),
]
DESCENT = ("descent", "batch", "steps", "ms/epoch", "loss", "angle, start", "angle, end")


def measure(options: Options) -> Report:
    units = options.hidden if options.hidden is not None else QUICK_HIDDEN if options.quick else 64
    between("hidden", units, 1, WIDEST)
    order = Order(units, options.quick, options.repeats, options.seed)
    rows = measure_sections(PARTS, options.parts, order)
    slower = {row["trained by"] for row in rows if row.get("batch") == "growing" and row["exponent"] < 1}
    for row in rows:
        if row.get("rung") in slower:
            row["goals"] = goals(row, slower_growth=True)
    draw(options.picture, rows, PANELS)
    return Report(
        "How far is it from a sequential LSTM to a fast one? Whole training of the airline passengers, seconds",
        [*TABLES, SHORT if options.quick else LONG, DESCENT],
        rows,
        order.remarks,
    )
