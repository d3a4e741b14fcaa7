"""A question that has several parts, as --parts names them."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from .options import chosen
from .progress import tracked
from .turns import Row

Asked = TypeVar("Asked")


def measure_sections(
    sections: Mapping[str, Callable[[Asked], list[Row]]], parts: str | None, asked: Asked
) -> list[Row]:
    """The rows of those sections that --parts names, one after another."""
    rows: list[Row] = []
    for name in tracked(chosen(parts, list(sections), "--parts: section")):
        rows += sections[name](asked)
    return rows
