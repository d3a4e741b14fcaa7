"""What a task draws."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.series import Series, Values
from ..errors import PlaitError
from ..training.files import check_target

MOST = 1e100  # perplexity that is drawn: axes overflow far above


def one_panel(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes: Any = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def forecast_picture(
    data: Series, lines: Sequence[tuple[str, Values, str]], start: int, labels: Sequence[str], season: int
) -> bytes:
    """History, and from `start` on the lines (name, values, style)."""
    figure, axes = one_panel(9, 4.5)
    shown = max(0, start - 10 * max(len(values) for _, values, _ in lines))
    history = data.values[shown:start]
    axes.plot(range(shown, start), history, color="0.35", linewidth=1.2, label="history")
    for name, values, style in lines:
        color, line = style.split()
        joined = np.concatenate([data.values[start - 1 : start], values])
        axes.plot(range(start - 1, start + len(values)), joined, color=color, linestyle=line, linewidth=1.6, label=name)
    axes.axvspan(start - 0.5, start - 0.5 + len(lines[0][1]), color="0.93", zorder=0)
    every = max(1, (len(labels) - shown) // 8)
    every += -every % season  # ticks a whole number of seasons apart
    ticks = range(shown + -shown % season, len(labels), every)
    axes.set_xticks(ticks, [labels[t] for t in ticks])
    axes.set_title(f"{data.name}: {lines[-1][0]}", loc="left", fontsize=11)
    axes.legend(frameon=False, loc="upper left")
    return png(figure)


def perplexity_picture(name: str, history: Sequence[dict[str, Any]], test: float) -> bytes:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    figure, axes = one_panel(7, 4.2)
    axes.set_yscale("log")
    axes.set_autoscaley_on(False)
    epochs, values = [row["epoch"] for row in history], [min(test, MOST)]
    for key, label, color in (("loss", "training", "tab:orange"), ("validation", "validation", "tab:blue")):
        perplexity = np.exp(np.minimum([row[key] for row in history], math.log(MOST)))
        axes.plot(epochs, perplexity, color=color, marker="o", markersize=3, label=label)
        values += perplexity.tolist()
    axes.axhline(values[0], color="0.35", linestyle=":", label=f"test, best weights: {test:,.4g}")
    # at least a factor of 2, so that a few round numbers stand beside the axis
    middle, half = math.sqrt(min(values)) * math.sqrt(max(values)), math.sqrt(max(2.0, 1.2 * max(values) / min(values)))
    low, high = middle / half, middle * half
    axes.set_ylim(low, high)
    several = LogLocator(subs=(1.0, 2.0, 5.0)) if high < 1000 * low else LogLocator(numticks=8)
    axes.yaxis.set_major_locator(MaxNLocator(7) if high < 10 * low else several)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:,.4g}")
    axes.set_xlim(epochs[0] - 0.5, epochs[-1] + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    axes.set_title(f"{name}: perplexity", loc="left", fontsize=11)
    axes.legend(frameon=False)
    return png(figure)


def confusion_picture(name: str, matrix: Sequence[Sequence[int]], classes: Sequence[str], accuracy: float) -> bytes:
    counts = np.array(matrix, float)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    C = len(classes)
    side = min(3.2 + 0.42 * C, 16)
    figure, axes = one_panel(side + 0.6, side)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    size = max(4.0, min(9.0, 150 / C))
    if C <= 30:
        for i, j in np.ndindex(C, C):
            if counts[i, j]:
                color = "white" if shares[i, j] > 0.6 else "0.15"
                axes.text(j, i, f"{counts[i, j]:.0f}", ha="center", va="center", color=color, fontsize=size)
    words = [c if len(c) <= 20 else c[:19] + "\u2026" for c in classes]
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if max(map(len, words)) > 3 else {}
    axes.set_xticks(range(C), words, fontsize=size, **turned)
    axes.set_yticks(range(C), words, fontsize=size)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(f"{name}: accuracy {100 * accuracy:.1f} %", loc="left", fontsize=11)
    axes.spines[:].set_visible(False)
    return png(figure)


def curves_picture(name: str, history: Sequence[dict[str, Any]], what: str = "loss") -> bytes:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    rows = [row for row in history if "accuracy" in row]
    figure = Figure(figsize=(9 if rows else 6, 4), layout="constrained")
    left, *right = figure.subplots(1, 2 if rows else 1, squeeze=False)[0]
    epochs = [row["epoch"] for row in history]
    for key, label, color in (("loss", "training", "tab:orange"), ("validation", "validation", "tab:blue")):
        if history[0][key] is not None:
            left.plot(epochs, [row[key] for row in history], color=color, label=label)
    left.set_ylim(bottom=0)
    left.set_title(f"{name}: {what}", loc="left", fontsize=11)
    for axes in right:
        axes.plot([row["epoch"] for row in rows], [row["accuracy"] for row in rows], color="tab:blue")
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_title("validation: accuracy", loc="left", fontsize=11)
    for axes in (left, *right):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    return png(figure)


def turning_picture(title: str, rows: Mapping[str, NDArray[np.float32]], degrees: float) -> bytes:
    """Images over time. rows: by name, (T, height, width); NaN is left blank"""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    T = len(next(iter(rows.values())))
    shown = sorted({round(k) for k in np.linspace(0, T - 1, min(T, 10))})  # of many steps, ten
    figure = Figure(figsize=(1.1 + 0.9 * len(shown), 0.55 + 0.97 * len(rows)), layout="constrained")
    every = figure.subplots(len(rows), len(shown), squeeze=False)
    grey = colormaps["gray"].with_extremes(bad="lavender")
    for (name, images), across in zip(rows.items(), every, strict=True):
        for t, axes in zip(shown, across, strict=True):
            axes.imshow(images[t], cmap=grey, vmin=0, vmax=1, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        across[0].set_ylabel(name, fontsize=10)
    for t, axes in zip(shown, every[0], strict=True):
        axes.set_title(f"{t * degrees:g}\u00b0 to {(t + 1) * degrees:g}\u00b0", fontsize=8)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return png(figure)


def check_picture(path: str) -> Path:
    place = Path(path)
    if place.suffix.lower() != ".png":
        raise PlaitError(f"--picture {path}: expected the name of a PNG file, such as future.png.")
    check_target(place, f"--picture {path}")
    return place


def png(figure: Any) -> bytes:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a name with $ in it is no formula
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()
