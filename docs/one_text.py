"""Draws one_text.svg: what becomes of the text of a step. Run it in this folder: python one_text.py"""

import sys
from inspect import getsource
from textwrap import dedent

from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import plait
from plait.cells.trace import trace

INK, LINE, YOURS, TEXT, RUNS = "#222222", "#777777", "#fff3cf", "#e4eef9", "#e6f4e4"
GRAPH = """Each operation is a node. The rules of
derivatives, backwards through the graph, add
the nodes of the gradients. The smallest cut
between the two says what is kept in memory."""
UNTRACED = """The check of all the others; second derivatives;
a step that cannot be traced (engine torch)."""
ENGINES = [  # what a text is run on, and where
    ("floats", "engine python: plain loops"),
    ("NumPy arrays", "engine numpy"),
    ("torch tensors", "engines torch, torch:steps"),
    ("vector registers", "engine fused: machine code,\nforward and backward"),
]


class MGU(plait.Cell):
    gates, states = ("f", "n"), ("h",)

    def step(wx, rh, state, ops):
        (h,) = state
        f = ops.sigmoid(wx[0] + rh[0])
        n = ops.tanh(wx[1] + f * rh[1])
        return h + f * (n - h)


def draw(path: str) -> None:
    rcParams["svg.hashsalt"] = "one text"  # the same file each time
    figure = Figure(figsize=(12, 5.85))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 120), ylim=(0, 58.5))
    axes.axis("off")

    def box(x: float, y: float, width: float, height: float, title: str, text: str, color: str, mono: bool) -> None:
        shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=1", fc=color, ec=LINE)
        axes.add_patch(shape)
        axes.text(x + 1.2, y + height - 1.2, title, va="top", color=INK, fontsize=11, weight="bold")
        family = "DejaVu Sans Mono" if mono else "DejaVu Sans"
        axes.text(x + 1.2, y + height - 4.2, text, va="top", color=INK, fontsize=9, family=family, linespacing=1.25)

    def line(x: list[float], y: list[float]) -> None:
        axes.plot(x, y, color=LINE, lw=1.6, solid_capstyle="round")

    def arrow(start: tuple[float, float], end: tuple[float, float], text: str, at: tuple[float, float]) -> None:
        axes.annotate(
            "", end, start, arrowprops={"arrowstyle": "-|>", "color": LINE, "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
        )
        axes.text(*at, text, va="center", color=INK, fontsize=9, style="italic", linespacing=1.2)

    traced = trace(MGU)
    box(1, 46, 38, 11.5, "torch tensors, under autograd", UNTRACED, RUNS, False)
    box(1, 23.5, 38, 15, "Your step: the one text", dedent(getsource(MGU.step)).rstrip(), YOURS, True)
    box(1, 1, 38, 15, "A graph", GRAPH, TEXT, False)
    box(46, 36, 39, 21.5, "The step, and what is kept", traced.step.rstrip(), TEXT, True)
    box(46, 1, 39, 32, "Its derivative", traced.vjp.rstrip(), TEXT, True)
    arrow((20, 38.7), (20, 45.8), "run as it is", (21, 42.2))
    arrow((20, 23.3), (20, 16.2), "run once, on nodes that\nwrite down what is done", (21, 19.8))
    line([39.2, 42.5], [8.5, 8.5])
    line([42.5, 42.5], [8.5, 46.7])
    arrow((42.5, 46.7), (45.8, 46.7), "", (0, 0))
    arrow((42.5, 17), (45.8, 17), "", (0, 0))
    axes.text(41.4, 28, "written out as Python", rotation=90, va="center", ha="center", fontsize=9, style="italic")
    line([85.2, 89], [46.7, 46.7])
    line([85.2, 89], [17, 17])
    heights = [47.5 - 15.5 * k for k in range(4)]
    line([89, 89], [heights[0] + 5, heights[-1] + 5])
    for y, (title, text) in zip(heights, ENGINES, strict=True):
        box(92.5, y, 26.5, 10, title, text, RUNS, False)
        arrow((89, y + 5), (92.3, y + 5), "", (0, 0))
    figure.savefig(path, metadata={"Date": None} if path.endswith("svg") else None, dpi=110)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else "one_text.svg")
