"""What every question prints and writes: the question, its environment, its tables and its remarks."""

import os
import platform
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from ... import __version__

WIDTH = 100  # columns of a terminal that a table fits into


@dataclass(frozen=True)
class Report:
    question: str
    tables: Sequence[Sequence[str]]  # the columns of each; its rows are those that have all of them
    rows: Sequence[dict[str, Any]]
    remarks: Sequence[str] = ()
    printed: int | None = None  # rows of a table that are printed, None: all; the JSON always has all

    def rows_of(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        return [row for row in self.rows if row.keys() >= set(columns)]


class Printer(Protocol):
    def line(self, text: str = "") -> None: ...
    def table(self, header: list[str], rows: list[list[str]]) -> None: ...
    def result(self, value: dict[str, Any]) -> None: ...


def show(report: Report, output: Printer) -> None:
    """A table without rows is left out."""
    where = environment()
    output.line(report.question)
    output.line(", ".join(f"{k} {v}" for k, v in where.items()))
    for columns in report.tables:
        if rows := report.rows_of(columns)[: report.printed]:
            for header, *below in fitted([list(columns), *([text(row[c]) for c in columns] for row in rows)]):
                output.table(header, below)
                output.line()
    for remark in report.remarks:
        output.line(remark)
    output.result({"environment": where, **asdict(report)})


def fitted(rows: list[list[str]]) -> list[list[list[str]]]:
    """As it is, if it fits; else with names in several lines; else as several tables."""
    if width_of(rows) <= WIDTH:
        return [rows]
    names, *below = rows
    widest = [max((len(row[k]) for row in below), default=0) for k in range(len(names))]
    widths = [max([1, w, *map(len, name.split())]) for name, w in zip(names, widest, strict=True)]
    wrapped = [textwrap.wrap(name, w) or [""] for name, w in zip(names, widths, strict=True)]
    last = len(names)
    while last > 2 and width_of([*stacked(wrapped[:last]), *(row[:last] for row in below)]) > WIDTH:
        last -= 1
    first = [*stacked(wrapped[:last]), *(row[:last] for row in below)]
    return [first] if last == len(names) else [first, *fitted([[row[0], *row[last:]] for row in rows])]


def stacked(names: list[list[str]]) -> list[list[str]]:
    """The lines of a header, from the lines of each name; they end in the same line."""
    most = max(map(len, names))
    return [list(line) for line in zip(*([""] * (most - len(some)) + some for some in names), strict=True)]


def width_of(rows: list[list[str]]) -> int:
    """As it is printed, with two spaces between columns."""
    columns = list(zip(*rows, strict=True))
    return sum(max(map(len, column)) for column in columns) + 2 * (len(columns) - 1)


def environment() -> dict[str, Any]:
    return {
        "plait": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def text(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if 0 < size < 1e-3 or size >= 1e7:
        return f"{value:.2e}"
    return f"{value:.4f}" if 0 < size < 1 else f"{value:.0f}" if size >= 1e4 else f"{value:.4g}"
