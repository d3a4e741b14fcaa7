"""A question that has several sections, as --parts names them, and their picture."""

from collections.abc import Callable, Sequence
from typing import Any

from ...tasks.pictures import check_picture, png
from ...training.files import write_whole
from ..options import chosen
from .progress import tracked
from .report import Report
from .turns import Row

Panel = tuple[set[str], str, Callable[[Any, Any], None]]  # columns that its rows have, title, what draws them
COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")


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


def draw(picture: str | None, rows: Sequence[Row], panels: Sequence[Panel]) -> None:
    """Writes the PNG file, if one was asked for."""
    if picture is not None:
        write_whole(check_picture(picture), drawn(rows, panels))


def drawn(rows: Sequence[Row], panels: Sequence[Panel]) -> bytes:
    """A panel for every section that has rows, as a PNG file."""
    from matplotlib.figure import Figure

    shown = [panel for panel in panels if any(panel[0] <= row.keys() for row in rows)]
    across = 1 if len(shown) == 1 else 2
    down = max(1, -(-len(shown) // across))
    figure = Figure(figsize=(6.2 * across, 4.0 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for (columns, title, draw), axis in zip(shown, axes, strict=False):
        draw(axis, [row for row in rows if columns <= row.keys()])
        axis.set_title(title, loc="left", fontsize=11)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8)
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    return png(figure)


def whiskers(rows: Sequence[Row], middle: str, low: str = "low", high: str = "high") -> list[list[float]]:
    """From the median down to the lower quartile, and up to the upper one: matplotlib's xerr or yerr."""
    return [[row[middle] - row[low] for row in rows], [row[high] - row[middle] for row in rows]]


def plain(*axes: Any) -> None:
    """Numbers as they are: powers of ten would be set as formulas."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def log_axes(axis: Any, x: str, y: str, *, base: int = 2) -> None:
    """Both axes logarithmic, with these labels. base: of the horizontal one."""
    axis.set_xscale("log", base=base)
    axis.set_yscale("log")
    plain(axis.xaxis, axis.yaxis)
    axis.set_xlabel(x)
    axis.set_ylabel(y)


def factor(value: float) -> str:
    """0.31x, 7.19x, 719x"""
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}x"
