"""Runs the sections of `bench time`."""

from ..core import Report
from ..core.sections import measure_sections
from ..questions import TimeOptions
from .pictures import PANELS
from .ranks import ranks
from .sections import error, features, learning, length, long, residual, where

SECTIONS = (long, length, error, residual, where, features, learning, ranks)
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
QUESTION = "What does cutting time bring? Training steps of an implicit GRU, where nothing else is said"


def measure(options: TimeOptions) -> Report:
    return measure_sections(QUESTION, SECTIONS, TABLES, PANELS, options)
