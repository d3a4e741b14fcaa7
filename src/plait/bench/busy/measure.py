"""The layers in turns, beside busy processes."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ... import system
from ...errors import PlaitError
from ..core import Report, Row, take_turns, tracked
from ..core.steps import Case, contenders, parse_shapes
from ..questions import BusyOptions

BUSY = """
import sys, threading
threading.Thread(target=sys.stdin.read).start()
while threading.active_count() > 1: pass
"""
LEAST, QUICK = 0.7, 0.3  # seconds of a measurement: far more than the time for which a process keeps its core


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """They end with this process, too: each reads from a pipe that then closes."""
    found = [subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield
    finally:
        for process in found:
            process.kill()
            process.communicate()


def on(threads: int, step: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        step()

    return run


def compare(case: Case, options: BusyOptions, threads: int) -> Row:
    """The best of the others is what a user could have had."""
    pair = contenders(case, options.engine).items()
    steps = {f"{name} {n}": on(n, step) for name, step in pair for n in (1, threads)}
    try:
        seconds = take_turns(steps, options.repeats, least=QUICK if options.quick else LEAST)
    finally:
        torch.set_num_threads(threads)
    ours = f"plait {threads}"
    best = min(seconds.median(name) for name in steps if name != ours)
    row: Row = {"cell": case.cell, "shape": case.shape, **seconds.ms(), "of best": seconds.median(ours) / best}
    for name in steps:
        found = seconds.spread(name)
        row[name] = f"{found.median * 1e3:.3g} ±{(found.high - found.low) / 2 * 1e3:.2g}"
    return row


def measure(options: BusyOptions) -> Report:
    threads = torch.get_num_threads()
    if not re.fullmatch(r"[0-9]{1,2}(,[0-9]{1,2})*", options.busy):
        raise PlaitError(f"busy '{options.busy}': expected numbers of processes, 0 to 99, such as 0,2,4.")
    counts = [int(text) for text in options.busy.split(",")]
    cases = parse_shapes(options.shapes, options.cells.split(","))
    rows = []
    for count, case in tracked([(count, case) for count in counts for case in cases]):
        with busy_processes(count):
            rows.append({"busy": count, **compare(case, options, threads)})
    columns = ["busy", "cell", "shape", *(key for key in rows[0] if key[-1].isdigit()), "of best"]
    return Report(
        f"What does a training step take beside busy processes, on 1 thread and on {threads}?",
        [columns],
        rows,
        [
            "ms of a step: the median, and half of the distance between the quartiles. shape: B,T,I,H,layers.",
            f"of best: plait on {threads} over the best of the other columns. CPUs of this process: {system.cpus()}.",
        ],
    )
