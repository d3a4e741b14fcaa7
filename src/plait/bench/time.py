"""What does cutting time bring, how far off is it, and where is one exact walk faster? With --quick under 3 minutes.

Sections, as --parts names them: long (networks that remember, one sequence at a time), length (time of a step against
the number of steps), error (of the gradient, against warm-ups and iterations), residual (by iteration, on coarse
steps), where (sizes at which one walk wins), features (time of a batch against the width of its input), learning
(accuracy by epoch), ranks (time ranks, measured to 2 and predicted beyond).
"""

from collections.abc import Callable
from typing import Annotated, Any

from ..errors import unknown
from ..tasks.pictures import check_picture
from ..training.files import write_whole
from .options import Repeats, Seed
from .report import Report, check, tracked
from .time_learning import features, learning
from .time_long import long
from .time_order import Order
from .time_pictures import picture_of
from .time_ranks import ranks
from .time_sizes import error, length, residual, where

PARTS: dict[str, Callable[[Order], list[dict[str, Any]]]] = {
    "long": long,
    "length": length,
    "error": error,
    "residual": residual,
    "where": where,
    "features": features,
    "learning": learning,
    "ranks": ranks,
}
TABLES = [
    ("network", "H", "T", "loss", "push", "zeros", "serial ms", "shooting ms", "faster", "low", "high", "torch", "off"),
    ("T", "torch ms", "serial ms", "shooting ms", "faster", "low", "high", "multigrid ms"),
    ("network", "solver", "gradient off", "work there", "work back"),
    ("network", "cell", "coarse step", "1", "2", "3", "4", "5"),
    ("B", "H", "T", "pieces", "shooting", "low", "high", "faster is"),
    ("inputs", "gru ms", "implicit ms", "multigrid ms", "shooting ms"),
    ("trained with", "epoch", "accuracy", "by its own pass", "gradient off", "in parallel", "s/epoch"),
    ("mesh", "T", "ms", "speed-up", "how"),
]


def measure(
    data: Annotated[str | None, "Sequences with labels, such as UCI HAR.  (default: made up, as UCI HAR)"] = None,
    parts: Annotated[str | None, "Which sections, with commas.  (default: all)"] = None,
    quick: Annotated[bool, "Small networks and short sequences: all tables in under 3 minutes."] = False,
    picture: Annotated[str | None, "Draw the sections there, as a PNG file.", "FILE"] = None,
    repeats: Repeats = 7,
    seed: Seed = 0,
) -> Report:
    check(repeats, seed)
    place = check_picture(picture) if picture else None
    wanted = list(PARTS) if parts is None else [name.strip() for name in parts.split(",")]
    for name in wanted:
        if name not in PARTS:
            raise unknown("--parts: section", name, PARTS)
    order, rows = Order(data, quick, repeats, seed), []
    for name in tracked(wanted):
        rows += PARTS[name](order)
    if place:
        write_whole(place, picture_of(rows))
    return Report(
        "What does cutting time bring? Training steps of an implicit GRU, where nothing else is said",
        [keys for keys in TABLES if any(row.keys() >= set(keys) for row in rows)],
        rows,
        order.remarks,
    )
