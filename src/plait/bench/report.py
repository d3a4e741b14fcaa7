"""What every benchmark prints and writes: its question, its environment, its rows."""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch

from .. import __version__
from ..errors import at_least


@dataclass(frozen=True)
class Report:
    question: str
    columns: Sequence[str]  # keys of a row, as they are printed
    rows: Sequence[Mapping[str, Any]]
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Timing:
    """Seconds: the median and the quartiles of the repeats."""

    median: float
    low: float
    high: float


class Printer(Protocol):
    def line(self, text: str = "") -> None: ...
    def table(self, header: list[str], rows: list[list[str]]) -> None: ...
    def result(self, value: dict[str, Any]) -> None: ...


def interleaved(contenders: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Timing]:
    """Times all of them in turn, so that a busy neighbour disturbs each alike."""
    at_least("repeats", repeats, 5)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for name in contenders:
        contenders[name]()  # warm
    for _ in range(repeats):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: timing(values) for name, values in seconds.items()}


def timing(seconds: Sequence[float]) -> Timing:
    ordered = sorted(seconds)
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
