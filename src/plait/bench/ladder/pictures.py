"""The sections of `bench ladder` as one picture."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ..core import Row
from ..core.pictures import COLORS, Panel, factor, log_axes, plain, whiskers

ERROR_BARS = {"lw": 0.8, "capsize": 2}


def times(axis: Any, rows: Sequence[Row]) -> None:
    names = [r["rung"] for r in rows]
    colors = [COLORS[name == "fused"] for name in names]
    axis.barh(names, [r["s"] for r in rows], xerr=whiskers(rows, "s"), color=colors, error_kw=ERROR_BARS)
    for k, row in enumerate(rows):
        axis.text(row["high"] * 1.15, k, factor(row["vs python"]), va="center", fontsize=8)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlim(right=max(r["high"] for r in rows) * 6)
    plain(axis.xaxis)
    axis.tick_params(axis="y", labelsize=8)
    axis.set_xlabel("seconds, and how many times as fast as python")


def growth(axis: Any, rows: Sequence[Row]) -> None:
    for color, row in zip(COLORS, rows, strict=False):
        y = [row[f"{times}x ms"] for times in row["sizes"]]
        label = f"{row['trained by']}, {row['batch']} batch: {row['exponent']:.2f}"
        axis.plot(row["sizes"], y, "o-", ms=3, lw=1.2, color=color, label=label)
    log_axes(axis, "times the airline series (in the legend: exponents)", "ms an epoch")
    axis.set_ylim(top=60 * max(row[f"{row['sizes'][-1]}x ms"] for row in rows))  # room for the legend


def losses(axis: Any, rows: Sequence[Row]) -> None:
    for color, row in zip(COLORS, rows, strict=False):
        x, label = list(accumulate(row["seconds"])), row["descent"]
        axis.plot(x, row["by epoch"], "o-", ms=2, lw=1, color=color, label=label)
    log_axes(axis, "seconds (a dot: an epoch)", "mean squared error", base=10)


def directions(axis: Any, rows: Sequence[Row]) -> None:
    for k, when in enumerate(("start", "end")):
        middle = f"angle, {when}"
        places, y = [n + 0.36 * (k - 0.5) for n in range(len(rows))], [r[middle] for r in rows]
        off = whiskers(rows, middle, f"{when} low", f"{when} high")
        label = f"at the {when} of training"
        axis.bar(places, y, 0.34, yerr=off, color=COLORS[k], label=label, error_kw=ERROR_BARS)
    axis.axhline(90, color="0.6", lw=0.8)
    axis.set_xticks(range(len(rows)), [f"{r['descent']}\n(batch {r['batch']})" for r in rows])
    axis.set_ylabel("degrees to the gradient of all samples")


PANELS: list[Panel] = [
    ({"rung", "vs python"}, "one training, rung by rung", times),
    ({"trained by", "exponent"}, "training time against size of the dataset", growth),
    ({"descent", "by epoch"}, "three kinds of descent", losses),
    ({"descent", "angle, end"}, "rough and good gradients", directions),
]
