"""Runs the sections of `bench time`."""

from ..core.options import chosen
from ..core.pictures import draw
from ..core.report import Report
from ..core.sections import measure_sections
from . import Options
from .pictures import PANELS
from .ranks import ranks
from .sections import error, features, learning, length, long, residual, where

SECTIONS = (long, length, error, residual, where, features, learning, ranks)
PARTS = {section.__name__: section for section in SECTIONS}
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
    rows = measure_sections(PARTS, options.parts, options)
    draw(options.picture, rows, PANELS)
    asked = chosen(options.parts, list(PARTS), "section")
    remarks = [f"{name}: {' '.join((PARTS[name].__doc__ or '').split())}" for name in asked]
    question = "What does cutting time bring? Training steps of an implicit GRU, where nothing else is said"
    return Report(question, TABLES, rows, remarks)
