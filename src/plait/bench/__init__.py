"""What `plait bench` measures: a folder for each question, `core` for what they share, and what can be asked.

A question is a class of options (questions.py), and `measure(options) -> Report` in the measure.py of its folder. Only
that and what it imports need torch, which takes seconds: --help does without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import questions as questions
from .options import Options

if TYPE_CHECKING:
    from .core.report import Report

# in their order in questions.py, by the name of their folders
QUESTIONS = {kind.__name__.removesuffix("Options").lower(): kind for kind in Options.__subclasses__()}


def about(name: str) -> str:
    """What a question asks, for --help."""
    return (QUESTIONS[name].__doc__ or "").split("\n\n")[0]


def measure(name: str, **given: Any) -> "Report":
    import torch

    from .core.progress import lines

    options = QUESTIONS[name](**given)
    torch.manual_seed(options.seed)
    with lines():
        report: Report = import_module(f".{name}.measure", __name__).measure(options)
    return report
