"""How every benchmark takes its times, and what it prints and writes: its question, its environment, its rows."""

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

import torch
from rich import progress as rich
from rich.console import Console

from .. import __version__
from ..errors import between
from ..training.settings import check_seed

Item = TypeVar("Item")


@dataclass(frozen=True)
class Report:
    question: str
    tables: Sequence[Sequence[str]]  # each the keys it prints, of those rows that have them
    rows: Sequence[Mapping[str, Any]]
    remarks: Sequence[str] = ()
    printed: int | None = None  # how many rows of a table are printed, None: all; the JSON has all of them


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


def check(repeats: int, seed: int) -> None:
    """Refuses repeats and a seed that no benchmark can use."""
    between("repeats", repeats, 5, 10_000)
    check_seed(seed)


def interleaved(
    contenders: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    warm: bool = True,
    least: float = 0.05,
    clock: Callable[[], float] = time.perf_counter,
    rest: float = 0.0,
) -> dict[str, list[float]]:
    """Seconds that a call takes, once per repeat, measured over at least about `least` seconds.

    The contenders take turns, there and back (A B C, C B A), so that what disturbs one of them disturbs its neighbours.
    `warm`: each is called once before anything is measured, for that call compiles, or fills caches.
    `rest`: seconds until the next one begins, with a call that does not count: the threads of some libraries stay awake
    for a while, and would take a core from it.
    """
    calls = {}
    for name, call in contenders.items():
        if warm:
            call()
        calls[name] = enough(call, least, clock)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for k in range(repeats):
        for name in list(contenders)[:: -1 if k % 2 else 1]:
            call = contenders[name]
            if rest:
                time.sleep(rest)
                call()  # and its own threads are awake
            start = clock()
            for _ in range(calls[name]):
                call()
            seconds[name].append((clock() - start) / calls[name])
    return seconds


def enough(call: Callable[[], Any], least: float, clock: Callable[[], float]) -> int:
    """How many calls take at least that long. With `least` 0 it is one, and nothing is called to find out."""
    count, start = 0, clock()
    while clock() - start < least:
        call()
        count += 1
    return max(1, count)


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Timing:
    """How many times faster ours is: the median and the quartiles of the ratios, pair by pair."""
    return timing([a / b for a, b in zip(theirs, ours, strict=True)])


def tracked(items: Sequence[Item]) -> Iterator[Item]:
    """The items, and a bar on a terminal; it moves between two of them only, not while one is measured."""
    console = Console(stderr=True)
    bar = rich.Progress(console=console, auto_refresh=False, transient=True, disable=not console.is_terminal)
    with bar:
        yield from bar.track(items, description="measuring")


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
    for columns in report.tables:
        rows = [row for row in report.rows if row.keys() >= set(columns)][: report.printed]
        output.table(list(columns), [[text(row[c]) for c in columns] for row in rows])
        output.line()
    for remark in report.remarks:
        output.line(remark)
    output.result({"environment": where, **asdict(report)})


def text(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if 0 < size < 1e-3 or size >= 1e7:
        return f"{value:.2e}"
    return f"{value:.4f}" if 0 < size < 1 else f"{value:.0f}" if size >= 1e4 else f"{value:.4g}"
