"""A step of a pipeline, measured above simulated: time to the right, one line for each rank."""

from collections.abc import Sequence
from typing import Any

from ...ranks.schedule import KINDS
from ..core import Row
from .parts import spans_of

COLORS = {"F": "#4c78a8", "D": "#b279a2", "I": "#f58518", "W": "#54a24b", "V": "#a5d68f"}
LIGHT = "V"  # numbers on these are black
NARROW = 0.018  # of the whole width: a bar below it has no number


def gantt(axis: Any, rows: Sequence[Row]) -> None:
    names, widest = list[str](), max(row["ms"] for row in rows)
    for row in rows:
        places = draw(axis, row, len(names), NARROW * widest)
        names += [f"{row['wavefront']}, rank {place}" for place in range(places)]
    for kind, color in COLORS.items():
        axis.bar(0, 0, color=color, label=KINDS[kind])  # for the legend
    axis.set_xlim(0, 1.01 * widest)
    axis.set_ylim(len(names) + 1.5, -0.5)  # with room for the legend
    axis.set_yticks(range(len(names)), names)
    found = (f"{row['wavefront']} {row['ms']:,.4g}, {row['idle %']:.0f} % idle" for row in rows)
    axis.set_xlabel(f"ms: {'; '.join(found)}")


def draw(axis: Any, row: Row, top: int, narrow: float) -> int:
    """Bars on grey where nothing runs. A number is that of a chunk; 1.3 is chunk 3 of micro-batch 1.

    top: where the first rank is. narrow: shorter bars (ms) have no number -> how many ranks
    """
    spans = spans_of([row])
    begin = min(span.start for span in spans)
    several = len({span.op.micro for span in spans}) > 1
    places = 1 + max(span.op.place for span in spans)
    for place in range(places):
        axis.broken_barh([(0, row["ms"])], (top + place - 0.4, 0.8), color="0.94")
    for op, start, end in spans:
        left, width, y = 1e3 * (start - begin), 1e3 * (end - start), top + op.place
        bar = {"facecolor": COLORS[op.kind], "edgecolor": "white", "linewidth": 0.6}
        axis.broken_barh([(left, width)], (y - 0.4, 0.8), **bar)
        if width > narrow:
            number = f"{op.micro}.{op.chunk}" if several else str(op.chunk)
            color = "black" if op.kind in LIGHT else "white"
            axis.text(left + width / 2, y, number, ha="center", va="center", fontsize=7, color=color)
    return places
