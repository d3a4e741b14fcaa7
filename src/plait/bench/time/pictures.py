"""The sections of `bench time` as one picture. Axes have the names of the tables' columns."""

from collections.abc import Callable, Sequence
from typing import Any

from ..core import Row
from ..core.pictures import Panel, log_axes

Draw = Callable[[Any, Sequence[Row]], None]
MS = ("serial ms", "shooting ms", "multigrid ms", "torch ms")


def lines(by: Sequence[str], x: str, *ys: str, style: str = "o-", log: bool = True) -> Draw:
    """A line for all rows with the same values in the columns `by`, and for each y."""

    def draw(axis: Any, rows: Sequence[Row]) -> None:
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(", ".join(str(row[column]) for column in by), []).append(row)
        for name, some in groups.items():
            for y in ys:
                axis.plot([r[x] for r in some], [r[y] for r in some], style, ms=3, label=name or y)
        names = x, ys[0] if by else "ms"
        if log:
            log_axes(axis, *names)
        else:
            axis.set(xlabel=names[0], ylabel=names[1])

    return draw


def residuals(axis: Any, rows: Sequence[Row]) -> None:
    some = [row for row in rows if row["coarse step"] == 4]
    gaps = [{**row, "iteration": n, "gap": row[str(n)]} for row in some for n in range(1, 6)]
    lines(["cell", "network"], "iteration", "gap")(axis, gaps)


errors = lines(["method", "network"], "work forward", "gradient off", style="o")
accuracies = lines(["trained with"], "epoch", "accuracy", log=False)
PANELS: list[Panel] = [
    ({"T", "torch ms"}, "one sequence, a step of training", lines([], "T", *MS)),
    ({"network", "faster"}, "networks that remember: shooting", lines(["network", "H"], "T", "faster")),
    ({"method", "gradient off"}, "the price of an exact gradient", errors),
    ({"cell", "coarse step"}, "multigrid, coarse steps of 4: does it converge?", residuals),
    ({"trained with", "accuracy"}, "trained with time in pieces", accuracies),
    ({"series", "speed-up"}, "time over ranks", lines(["series", "how"], "ranks", "speed-up")),
]
