"""A schedule as it ran, simulated or measured: time to the right, one row for each place."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import PlaitError
from ..tasks.pictures import png
from .schedule import KINDS, Span, Timeline

COLORS = {
    "F": "#4c78a8",
    "D": "#b279a2",
    "I": "#f58518",
    "W": "#54a24b",
    "V": "#a5d68f",
    "R": "#e45756",
    "U": "#4d4d4d",
    "G": "#9d755d",
    "A": "#9ecae9",
    "B": "#ffbf79",
    "S": "#72b7b2",
    "C": "#d67195",
}
LIGHT = "VABS"  # the numbers on these are black
NARROW = 0.018  # of the whole width: a bar below it has no number
ROWS = 24  # with more of them than this, bars have no numbers, and only some rows a name


def gantt(rows: Mapping[str, Sequence[Span]], names: Sequence[str] | None = None) -> bytes:
    """One panel for each entry of `rows`, all with the same scale of time, as a PNG file.

    names: of the places, from the first on. Where a place has several bars of a kind and there is room, each has the
    number of its chunk; 1.3 is chunk 3 of micro-batch 1.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch

    if not rows:
        raise PlaitError("a picture of nothing: expected at least one timeline.")
    timelines = {title: Timeline(tuple(spans)) for title, spans in rows.items()}
    most = max(timeline.places for timeline in timelines.values())
    names = [f"rank {place}" for place in range(most)] if names is None else names
    if len(names) < most:
        raise PlaitError(f"{len(names)} names for {most} places: give one for each.")
    total = max(timeline.total for timeline in timelines.values())

    heights = [0.5 + min(timeline.places, ROWS) * 0.38 for timeline in timelines.values()]
    figure = Figure(figsize=(11, 1.0 + sum(heights)), layout=ConstrainedLayoutEngine(hspace=0.05))
    panels: Any = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, timeline) in zip(panels, timelines.items(), strict=True):
        draw(axes, timeline, total)
        every = -(-timeline.places // ROWS)
        shown = range(0, timeline.places, every)
        axes.set_yticks(shown, [names[place] for place in shown])
        axes.set_ylim(timeline.places - 0.5, -0.5)
        axes.set_title(f"{title}: {1e3 * timeline.total:,.4g} ms, {timeline.bubble:.0%} idle", loc="left", fontsize=11)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[-1].set_xlim(0, 1.01e3 * total or 1)
    panels[-1].set_xlabel("ms")
    kinds = {span.op.kind for timeline in timelines.values() for span in timeline.spans}
    patches = [Patch(color=COLORS[kind], label=KINDS[kind]) for kind in KINDS if kind in kinds]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False, fontsize=9)
    return png(figure)


def draw(axes: Any, timeline: Timeline, total: float) -> None:
    """The bars of one panel, on grey where nothing runs."""
    begin = min(span.start for span in timeline.spans)
    several = len({span.op.micro for span in timeline.spans}) > 1
    bars: dict[tuple[int, str], list[tuple[float, float]]] = {}  # place and kind -> start and width, in ms
    numbers: dict[tuple[int, str], list[str]] = {}
    for op, start, end in timeline.spans:
        bars.setdefault((op.place, op.kind), []).append((1e3 * (start - begin), 1e3 * (end - start)))
        numbers.setdefault((op.place, op.kind), []).append(f"{op.micro}.{op.chunk}" if several else str(op.chunk))
    for place in range(timeline.places):
        axes.broken_barh([(0, 1e3 * timeline.total)], (place - 0.4, 0.8), color="0.94")
    crowded = timeline.places > ROWS
    edge = {"linewidth": 0} if crowded else {"edgecolor": "white", "linewidth": 0.6}
    for (place, kind), found in bars.items():
        axes.broken_barh(found, (place - 0.4, 0.8), facecolor=COLORS[kind], **edge)
        if not crowded and len(found) > 1:
            for (left, width), number in zip(found, numbers[place, kind], strict=True):
                if width > NARROW * 1e3 * total:
                    color = "black" if kind in LIGHT else "white"
                    axes.text(left + width / 2, place, number, ha="center", va="center", fontsize=7, color=color)
