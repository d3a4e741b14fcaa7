"""Runs the sections of `bench time`."""

from collections.abc import Callable

from ..core.pictures import draw
from ..core.report import Report
from ..core.sections import measure_sections
from ..core.turns import Row
from . import Options
from .learning import features, learning
from .long import long
from .nets import Order
from .pictures import PANELS
from .ranks import ranks
from .sizes import error, length, residual, where

PARTS: dict[str, Callable[[Order], list[Row]]] = {
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
    ("network", "solver", "gradient off", "work forward", "work backward"),
    ("network", "cell", "coarse step", "1", "2", "3", "4", "5"),
    ("B", "H", "T", "pieces", "shooting", "low", "high", "faster is"),
    ("inputs", "gru ms", "implicit ms", "multigrid ms", "shooting ms"),
    ("trained with", "epoch", "accuracy", "by its own pass", "gradient off", "in parallel", "s/epoch"),
    ("mesh", "T", "ms", "speed-up", "how"),
]


def measure(options: Options) -> Report:
    order = Order(**vars(options))
    rows = measure_sections(PARTS, options.parts, order)
    draw(options.picture, rows, PANELS)
    question = "What does cutting time bring? Training steps of an implicit GRU, where nothing else is said"
    return Report(question, TABLES, rows, order.remarks)
