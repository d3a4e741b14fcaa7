"""How far is it from a sequential LSTM to a fast one? The first paper's climb, on this machine: about 5 minutes.

Sections, as --parts names them: rungs (one training of an LSTM on the airline passengers, from scalar Python to
compiled kernels, with the same loss in the end), growth (training time against the size of the dataset), descent
(stochastic, mini-batch and full-batch: time, loss, and the angle of their gradients).
"""

from collections.abc import Callable
from typing import Annotated

from ..errors import between, unknown
from ..tasks.pictures import check_picture
from ..tasks.settings import WIDEST
from ..training.files import write_whole
from .ladder_descent import descent
from .ladder_growth import growth
from .ladder_order import Order, Row
from .ladder_pictures import picture_of
from .ladder_table import goals, rungs
from .options import Repeats, Seed
from .report import Report, check, tracked

PARTS: dict[str, Callable[[Order], list[Row]]] = {"rungs": rungs, "growth": growth, "descent": descent}
QUICK_HIDDEN = 8
SHORT = ("trained by", "batch", "exponent", "low", "high", "1x ms", "4x ms", "16x ms")
LONG = (*SHORT, "64x ms")
TABLES = [
    ("rung", "s", "low", "high", "vs python", "vs NumPy", "fused is"),
    ("rung", "by hand is", "runs", "loss", "goals"),
    ("rung", "epoch", "mini-batch", "sample", "threads placed", "transfers"),
    ("NumPy on one thread", "s", "low", "high", "fused is", "by hand is"),
    LONG,
    SHORT,
    ("descent", "batch", "steps", "ms/epoch", "loss", "angle, start", "angle, end"),
]


def measure(
    parts: Annotated[str | None, "Which sections, with commas.  (default: all)"] = None,
    hidden: Annotated[int | None, "Units of the LSTM.  (default: 64; with --quick 8)"] = None,
    quick: Annotated[bool, "A smaller LSTM and up to 16 times the data: all tables in under a minute."] = False,
    picture: Annotated[str | None, "Draw the sections there, as a PNG file.", "FILE"] = None,
    repeats: Repeats = 7,
    seed: Seed = 0,
) -> Report:
    check(repeats, seed)
    units = hidden if hidden is not None else QUICK_HIDDEN if quick else 64
    between("hidden", units, 1, WIDEST)
    place = check_picture(picture) if picture else None
    wanted = list(PARTS) if parts is None else [name.strip() for name in parts.split(",")]
    for name in wanted:
        if name not in PARTS:
            raise unknown("--parts: section", name, PARTS)
    order = Order(units, quick, repeats, seed)
    rows: list[Row] = []
    for name in tracked(wanted):
        rows += PARTS[name](order)
    slower = {row["trained by"] for row in rows if row.get("batch") == "growing" and row["exponent"] < 1}
    for row in rows:
        if row.get("rung") in slower:
            row["goals"] = goals(row, slower_growth=True)
    if place:
        write_whole(place, picture_of(rows))
    seen = [keys for keys in TABLES if any(row.keys() >= set(keys) for row in rows)]
    if LONG in seen:  # it says what the shorter one says
        seen.remove(SHORT)
    return Report(
        "How far is it from a sequential LSTM to a fast one? Whole training of the airline passengers, seconds",
        seen,
        rows,
        order.remarks,
    )
