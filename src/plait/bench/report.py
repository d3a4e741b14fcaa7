"""What every benchmark prints and writes: its question, its environment, its rows."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch

from .. import __version__


@dataclass(frozen=True)
class Report:
    question: str
    columns: Sequence[str]  # keys of a row, as they are printed
    rows: Sequence[Mapping[str, Any]]
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Timing:
    """The median and the quartiles of the repeats."""

    median: float
    low: float
    high: float


class Printer(Protocol):
    def line(self, text: str = "") -> None: ...
    def table(self, header: list[str], rows: list[list[str]]) -> None: ...
    def result(self, value: dict[str, Any]) -> None: ...


def timing(values: Sequence[float]) -> Timing:
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return Timing(median(ordered), ordered[quarter], ordered[-1 - quarter])


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


def show(report: Report, output: Printer) -> None:
    where = environment()
    output.line(report.question)
    output.line(", ".join(f"{k} {v}" for k, v in where.items()))
    output.table(list(report.columns), [[text(row[c]) for c in report.columns] for row in report.rows])
    for remark in report.remarks:
        output.line(remark)
    output.result({"environment": where, **asdict(report)})


def text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
