"""A question that has several parts, as --parts names them."""

from collections.abc import Callable, Sequence
from typing import Any

from ..options import chosen
from .pictures import Panel, draw
from .progress import tracked
from .report import Report
from .turns import Row


def measure_sections(
    question: str,
    sections: Sequence[Callable[[Any], list[Row]]],
    tables: Sequence[Sequence[str]],
    panels: Sequence[Panel],
    options: Any,
) -> Report:
    """Those that were asked for, one after another. Their docstrings are the remarks."""
    named = {section.__name__: section for section in sections}
    asked = {name: named[name] for name in chosen(options.parts, list(named), "--parts: section")}
    rows = [row for name in tracked(list(asked)) for row in asked[name](options)]
    draw(options.picture, rows, panels)
    remarks = [f"{name}: {' '.join((section.__doc__ or '').split())}" for name, section in asked.items()]
    return Report(question, tables, rows, remarks)
