"""What every question prints and writes: the question, its environment, its tables and its remarks."""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from rich import progress as rich
from rich.console import Console

from ... import __version__

Item = TypeVar("Item")


@dataclass(frozen=True)
class Report:
    question: str
    tables: Sequence[Sequence[str]]  # the columns of each; its rows are those that have all of them
    rows: Sequence[Mapping[str, Any]]
    remarks: Sequence[str] = ()
    printed: int | None = None  # rows of a table that are printed, None: all; the JSON always has all

    def rows_of(self, columns: Sequence[str]) -> list[Mapping[str, Any]]:
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
            output.table(list(columns), [[text(row[c]) for c in columns] for row in rows])
            output.line()
    for remark in report.remarks:
        output.line(remark)
    output.result({"environment": where, **asdict(report)})


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


def tracked(items: Sequence[Item]) -> Iterator[Item]:
    """The items, and a progress bar on a terminal. It moves between two of them, not while one is measured."""
    console = Console(stderr=True)
    bar = rich.Progress(console=console, auto_refresh=False, transient=True, disable=not console.is_terminal)
    with bar:
        yield from bar.track(items, description="measuring")
