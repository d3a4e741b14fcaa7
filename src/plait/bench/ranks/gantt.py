"""A step of a pipeline as it ran, measured or simulated: time to the right, one row for each rank."""

from collections.abc import Mapping
from typing import Any

from ...ranks.schedule import KINDS, Timeline
from ...tasks.pictures import png

COLORS = {"F": "#4c78a8", "D": "#b279a2", "I": "#f58518", "W": "#54a24b", "V": "#a5d68f"}
LIGHT = "V"  # numbers on these are black
NARROW = 0.018  # of the whole width: a bar below it has no number


def gantt(timelines: Mapping[str, Timeline]) -> bytes:
    """One panel for each timeline, all with the same scale of time, as a PNG file.

    Where there is room, a bar has the number of its chunk; 1.3 is chunk 3 of micro-batch 1.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch

    total = max(timeline.total for timeline in timelines.values())
    heights = [0.5 + timeline.places * 0.38 for timeline in timelines.values()]
    figure = Figure(figsize=(11, 1.0 + sum(heights)), layout=ConstrainedLayoutEngine(hspace=0.05))
    panels: Any = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, timeline) in zip(panels, timelines.items(), strict=True):
        draw(axes, timeline, NARROW * total)
        axes.set_yticks(range(timeline.places), [f"rank {place}" for place in range(timeline.places)])
        axes.set_ylim(timeline.places - 0.5, -0.5)
        axes.set_title(f"{title}: {1e3 * timeline.total:,.4g} ms, {timeline.bubble:.0%} idle", loc="left", fontsize=11)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[-1].set_xlim(0, 1.01e3 * total)
    panels[-1].set_xlabel("ms")
    patches = [Patch(color=color, label=KINDS[kind]) for kind, color in COLORS.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False, fontsize=9)
    return png(figure)


def draw(axes: Any, timeline: Timeline, narrow: float) -> None:
    """The bars of one panel, on grey where nothing runs. narrow: shorter bars (seconds) have no number"""
    begin = min(span.start for span in timeline.spans)
    several = len({span.op.micro for span in timeline.spans}) > 1
    for place in range(timeline.places):
        axes.broken_barh([(0, 1e3 * timeline.total)], (place - 0.4, 0.8), color="0.94")
    for op, start, end in timeline.spans:
        left, width = 1e3 * (start - begin), 1e3 * (end - start)
        bar = {"facecolor": COLORS[op.kind], "edgecolor": "white", "linewidth": 0.6}
        axes.broken_barh([(left, width)], (op.place - 0.4, 0.8), **bar)
        if end - start > narrow:
            number = f"{op.micro}.{op.chunk}" if several else str(op.chunk)
            color = "black" if op.kind in LIGHT else "white"
            axes.text(left + width / 2, op.place, number, ha="center", va="center", fontsize=7, color=color)
