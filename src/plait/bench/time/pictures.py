"""The sections of `bench time` as one picture."""

from collections.abc import Sequence
from typing import Any

from ..core.pictures import COLORS, Panel, log_axes, plain, whiskers
from ..core.turns import Row


def lengths(axis: Any, rows: Sequence[Row]) -> None:
    for color, name in zip(COLORS, ("torch", "serial", "shooting", "multigrid"), strict=False):
        label = {"serial": "one walk", "torch": "torch.nn.GRU"}.get(name, name)
        axis.plot([r["T"] for r in rows], [r[f"{name} ms"] for r in rows], "o-", ms=3, color=color, label=label)
    log_axes(axis, "steps", "ms")


def advantage(axis: Any, rows: Sequence[Row]) -> None:
    names = dict.fromkeys((r["network"], r["H"]) for r in rows)
    for color, (network, H) in zip(COLORS, names, strict=False):
        mine = [r for r in rows if (r["network"], r["H"]) == (network, H)]
        x, y, off = [r["T"] for r in mine], [r["faster"] for r in mine], whiskers(mine, "faster")
        axis.errorbar(x, y, yerr=off, fmt="o-", ms=3, capsize=2, color=color, label=f"{network}, {H} units")
    axis.axhline(1, color="0.6", lw=0.8)
    axis.set_xscale("log", base=2)
    plain(axis.xaxis)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("steps")
    axis.set_ylabel("times one walk")


def errors(axis: Any, rows: Sequence[Row]) -> None:
    kinds = dict.fromkeys((r["network"], r["solver"].split(",")[0]) for r in rows)
    for color, (network, solver) in zip(COLORS, kinds, strict=False):
        mine = [r for r in rows if r["network"] == network and r["solver"].startswith(solver)]
        x, y = [r["work forward"] + r["work backward"] for r in mine], [max(1e-7, r["gradient off"]) for r in mine]
        axis.plot(x, y, "o", ms=4, color=color, label=f"{solver}, {network}")
    axis.axhline(0.01, color="0.6", lw=0.8)
    log_axes(axis, "steps taken for each step, both passes", "error of the gradient")


def residuals(axis: Any, rows: Sequence[Row]) -> None:
    for color, cell in zip(COLORS, dict.fromkeys(r["cell"] for r in rows), strict=False):
        for style, network in (("-", "fresh"), ("--", rows[-1]["network"])):
            for row in rows:
                if (row["cell"], row["network"], row["coarse step"]) == (cell, network, 4):
                    y = [row[str(n)] for n in range(1, 6)]
                    axis.plot(range(1, 6), y, style, color=color, label=f"{cell}, {network}")
    axis.set_yscale("log")
    plain(axis.yaxis)
    axis.set_xticks(range(1, 6))
    axis.set_xlabel("iteration, on coarse steps of 4")
    axis.set_ylabel("largest gap")


def curves(axis: Any, rows: Sequence[Row]) -> None:
    for color, name in zip(COLORS, dict.fromkeys(r["trained with"] for r in rows), strict=False):
        mine = [r for r in rows if r["trained with"] == name]
        axis.plot([r["epoch"] for r in mine], [r["accuracy"] for r in mine], "o-", ms=3, color=color, label=name)
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("epoch")
    axis.set_ylabel("accuracy on the test part")


def scaling(axis: Any, rows: Sequence[Row]) -> None:
    for color, name in zip(COLORS, dict.fromkeys(r["series"] for r in rows), strict=False):
        mine = [r for r in rows if r["series"] == name]
        guess = [r for r in mine if r["how"] == "predicted"]
        axis.plot([r["ranks"] for r in guess], [r["speed-up"] for r in guess], "--", lw=1, color=color, label=name)
        known = [r for r in mine if r["how"] == "measured"]
        axis.plot([r["ranks"] for r in known], [r["speed-up"] for r in known], "o", color=color)
    log_axes(axis, "time ranks (dots: measured; lines: predicted)", "times one walk")


PANELS: list[Panel] = [
    ({"T", "torch ms"}, "one sequence, a step of training", lengths),
    ({"network", "faster", "T"}, "networks that remember: shooting", advantage),
    ({"gradient off", "work forward"}, "the price of an exact gradient", errors),
    ({"cell", "coarse step"}, "multigrid: does it converge?", residuals),
    ({"trained with", "accuracy"}, "trained with time in pieces", curves),
    ({"series", "speed-up"}, "time over ranks", scaling),
]
