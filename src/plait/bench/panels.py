"""Sections of a benchmark as panels of one picture."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..tasks.pictures import png

Row = Mapping[str, Any]
Panel = tuple[set[str], str, Callable[[Any, Any], None]]  # keys of its rows, title, what draws them on an axis
COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")


def drawn(rows: Sequence[Row], panels: Sequence[Panel]) -> bytes:
    """A panel for every section that has rows, as a PNG file."""
    from matplotlib.figure import Figure

    shown = [panel for panel in panels if any(panel[0] <= row.keys() for row in rows)]
    across = 1 if len(shown) == 1 else 2
    down = max(1, -(-len(shown) // across))
    figure = Figure(figsize=(6.2 * across, 4.0 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for (keys, title, draw), axis in zip(shown, axes, strict=False):
        draw(axis, [row for row in rows if keys <= row.keys()])
        axis.set_title(title, loc="left", fontsize=11)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8)
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    return png(figure)


def plain(*axes: Any) -> None:
    """Numbers as they are: no powers of ten, which would be set as formulas."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def both(axis: Any, x: str, y: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    plain(axis.xaxis, axis.yaxis)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
