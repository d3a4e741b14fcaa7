"""The networks, row by row: every contender loads each, is checked, and takes its turns."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .. import about
from ..core import Report, Row, Seconds, Spread, tracked
from ..core.turns import in_turn
from ..options import chosen
from ..questions import PeersOptions
from .contenders.network import Network
from .race import SAME_CHANGE, SAME_LOSS, Failed, Process, expected
from .table import PEERS

CASES = {  # cell, then B, T, I, H, O
    "small": ("rnn", 32, 12, 1, 32, 1),
    "airline": ("lstm", 32, 12, 1, 64, 1),
    "motion": ("gru", 100, 128, 9, 100, 6),
    "lstm": ("lstm", 100, 50, 64, 128, 64),
    "rnn": ("rnn", 100, 50, 64, 128, 64),
    "n1000": ("rnn", 1000, 10, 1000, 1000, 1000),
}
US, LARGEST = "plait", "n1000"
RATE = 0.1
BLOCK, QUICK_BLOCK = 0.25, 0.05  # seconds
BIG = 1e-3  # seconds of a step: rows above it are judged, those below are profiled
NETWORKS = ("row", "cell", "B", "T", "I", "H", "O", "loss")
TIMES = ("row", "peer", "ms", "low", "high", "times", "off", "ready s")
VERDICTS = ("row", "fastest", "its ms", "plait ms", "plait is")
PROFILE = ("row", "part of plait's step", "us", "share %")


class Course:
    """One process for each contender that can run here, through all rows; what cannot run is named."""

    def __init__(self, names: Sequence[str], folder: Path, threads: int) -> None:
        self.names, self.folder, self.threads = names, folder, threads
        self.missing = {name: why for name in names if (why := PEERS[name].missing())}
        self.processes: dict[str, Process] = {}
        self.remarks = [f"{name} is missing: {why}." for name, why in self.missing.items()]

    @contextmanager
    def asking(self, name: str, row: str) -> Iterator[Process]:
        """Its process. If it fails in here, that is said, and in the next row it has a new one."""
        try:
            if name not in self.processes:
                self.processes[name] = Process(PEERS[name], self.threads, self.folder)
            yield self.processes[name]
        except Failed as e:
            self.remarks.append(f"{name} failed in row {row}: {e}.")
            self.processes.pop(name).end()

    def run(self, row: str, repeats: int, block: float, seed: int) -> list[Row]:
        """All rows of one network."""
        cell, *sizes = CASES[row]
        drawn: list[Any] = [cell, *sizes, RATE, seed]
        net = Network.drawn(*drawn)
        right, ready = expected(net), list[str]()
        for name in self.names:
            if name not in self.missing and cell in PEERS[name].cells:
                with self.asking(name, row) as process:
                    process.load(drawn, net, right)
                    process.fill(block)
                    ready.append(name)
        found = self.race(row, ready, repeats)
        rows = [dict(zip(NETWORKS, (row, cell, *sizes, right[0]), strict=True))]
        for name in self.names:
            why = "missing" if name in self.missing else "failed" if cell in PEERS[name].cells else "not written"
            rows.append({"row": row, "peer": name, **dict.fromkeys(TIMES[2:]), "ms": why})
            if name in found:
                rows[-1] |= found.spread(name).row("ms", 1e3)
                rows[-1] |= {"off": self.processes[name].off, "ready s": self.processes[name].ready}
                rows[-1]["times"] = found.faster(US, than=name).median if US in found else None
        return [*rows, *self.ours(row, found)]

    def race(self, row: str, names: Sequence[str], repeats: int) -> Seconds:
        """Seconds of a step, once per repeat, of those who do not fail."""
        found = Seconds({name: [] for name in names})
        for k in range(repeats):
            for name in in_turn(list(found), k):
                with self.asking(name, row) as process:
                    found[name].append(process.block())
                if name not in self.processes:
                    del found[name]
        return found

    def ours(self, row: str, found: Seconds) -> list[Row]:
        """What follows for plait, and where the time of a small step goes."""
        if US not in found:
            return []
        rows = [verdict(row, {name: found.spread(name) for name in found})]
        if found.median(US) < BIG:
            with self.asking(US, row) as process:
                process.block()
                spent: dict[str, float] = process.ask(do="profile", steps=process.steps)["seconds"]
                total = sum(spent.values())
                for part, s in spent.items():
                    rows.append(dict(zip(PROFILE, (row, part, s * 1e6, s / total * 100), strict=True)))
        return rows


def verdict(row: str, found: Mapping[str, Spread]) -> Row:
    """plait is within the spread of the fastest if their quartiles overlap."""
    best, t = min(found, key=lambda name: found[name].median), found[US]
    if best == US:
        said = "fastest"
    elif t.low <= found[best].high:
        said = "within the spread"
    else:
        said = f"slower by {t.median / found[best].median:.2f}"
    if t.median < BIG:
        said += f", under {BIG * 1e3:.0f} ms"
    return dict(zip(VERDICTS, (row, best, found[best].median * 1e3, t.median * 1e3, said), strict=True))


def measure(options: PeersOptions) -> Report:
    names = [US, *(name for name in chosen(options.only, list(PEERS), "--only: peer") if name != US)]
    cases = chosen(options.rows, list(CASES), "--rows: network")
    if options.quick and options.rows is None:
        cases.remove(LARGEST)
    if options.install:
        for name in names:
            PEERS[name].install()
    threads, block = torch.get_num_threads(), QUICK_BLOCK if options.quick else BLOCK
    with tempfile.TemporaryDirectory(prefix="plait-", ignore_cleanup_errors=True) as folder:
        course = Course(names, Path(folder), threads)
        try:
            rows = [row for case in tracked(cases) for row in course.run(case, options.repeats, block, options.seed)]
        finally:
            for process in course.processes.values():
                process.end()
    return Report(
        about("peers"),
        [NETWORKS, TIMES, VERDICTS, PROFILE],
        rows,
        [
            f"float32, {threads} threads, processes in turns. ms: median and quartiles of {options.repeats} blocks.",
            "times: how many times plait's time, median of the turns. ready s: import, compile and the first step.",
            f"off: largest deviation of a weight's change in one step from float64's, of at most {SAME_CHANGE:.0e}; "
            f"the loss is the same to {SAME_LOSS:.0e}.",
            *course.remarks,
        ],
    )
