"""What `plait bench` measures: one folder for each question, and `core` for what they share.

A folder's __init__ says what is asked (its docstring, whose first paragraph is for --help) and which options there are
(`Options`). Its measure.py has `measure(options) -> Report`. Only measure.py and what it imports need torch, which
takes seconds: --help imports the folders and nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.progress import lines

if TYPE_CHECKING:
    from .core.options import Options
    from .core.report import Report

QUESTIONS = (
    *("loop", "layers", "batch", "phases", "schedule", "functions", "ragged", "bucketing", "language", "ranks"),
    *("classify", "time", "ladder", "peers", "public", "busy", "memory", "cuda"),
)


def about(name: str) -> str:
    """What a question asks, for --help."""
    return (import_module(f".{name}", __name__).__doc__ or "").split("\n\n")[0]


def options_of(name: str) -> "type[Options]":
    kind: type[Options] = import_module(f".{name}", __name__).Options
    return kind


def measure(name: str, **given: Any) -> "Report":
    options = options_of(name)(**given)
    with lines():
        report: Report = import_module(f".{name}.measure", __name__).measure(options)
    return report
