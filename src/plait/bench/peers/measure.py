"""The networks, row by row: every contender loads each, is checked, and takes its turns."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..core.options import chosen
from ..core.report import Report, tracked
from ..core.turns import Row, Seconds, Spread
from . import Options
from .contenders.network import Network
from .race import SAME_CHANGE, SAME_LOSS, Failed, Process, Runner, expected, load, race
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
MISSING, UNWRITTEN, FAILED = "missing", "not written", "failed"


class Course:
    """One process for each contender that can run here, through all rows; what cannot run is named."""

    def __init__(self, names: Sequence[str], folder: Path, threads: int) -> None:
        self.names, self.folder, self.threads = names, folder, threads
        self.missing = {name: why for name in names if (why := PEERS[name].missing())}
        self.processes: dict[str, Process] = {}
        self.remarks = [f"{name} is missing: {why}." for name, why in self.missing.items()]

    def process(self, name: str) -> Process:
        if name not in self.processes:
            self.processes[name] = Process(PEERS[name], self.threads, self.folder)
        return self.processes[name]

    def failed(self, row: str, name: str, why: str) -> None:
        """It is named, and begins anew in the next row."""
        self.remarks.append(f"{name} failed in row {row}: {why}.")
        self.processes.pop(name).end()

    def end(self) -> None:
        for process in self.processes.values():
            process.end()

    def run(self, row: str, repeats: int, block: float, seed: int) -> list[Row]:
        """All rows of one network."""
        cell, *sizes = CASES[row]
        net = Network.drawn(cell, *sizes, rate=RATE, seed=seed)
        net.save(self.folder / "network.npz")
        right = expected(net)
        runners: dict[str, Runner] = {}
        state = dict.fromkeys(self.missing, MISSING)
        for name in self.names:
            if name not in state and cell not in PEERS[name].cells:
                state[name] = UNWRITTEN
            elif name not in state:
                try:
                    runner = load(self.process(name), net, self.folder, right)
                    runner.fill(block)
                    runners[name] = runner
                except Failed as e:
                    self.failed(row, name, str(e))
        found, failed = race(runners, repeats)
        for name, why in failed.items():
            self.failed(row, name, str(why))
        rows = [dict(zip(NETWORKS, (row, cell, *sizes, right[0]), strict=True))]
        for name in self.names:
            rows.append({"row": row, "peer": name})
            if name in found:
                times = {**found.spread(name).row("ms", 1e3), "off": runners[name].off, "ready s": runners[name].ready}
                rows[-1] |= {**times, "times": found.faster(US, than=name).median if US in found else None}
            else:
                rows[-1] |= {**dict.fromkeys(TIMES[3:]), "ms": state.get(name, FAILED)}
        return [*rows, *self.ours(row, found, runners)]

    def ours(self, row: str, found: Seconds, runners: Mapping[str, Runner]) -> list[Row]:
        """What follows for plait, and where the time of a small step goes."""
        if US not in found:
            return []
        rows = [verdict(row, {name: found.spread(name) for name in found})]
        if found.median(US) < BIG:
            try:
                rows += profile(row, runners[US])
            except Failed as e:
                self.failed(row, US, f"while it was profiled: {e}")
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


def profile(row: str, runner: Runner) -> list[Row]:
    """Where the time of a small step goes."""
    runner.block()
    spent: dict[str, float] = runner.process.ask(do="profile", steps=runner.steps)["seconds"]
    total = sum(spent.values())
    return [dict(zip(PROFILE, (row, part, s * 1e6, s / total * 100), strict=True)) for part, s in spent.items()]


def measure(options: Options) -> Report:
    names = [US, *(name for name in chosen(options.only, list(PEERS), "--only: peer") if name != US)]
    cases = chosen(options.rows, list(CASES), "--rows: network")
    if options.quick and options.rows is None:
        cases.remove(LARGEST)
    if options.install:
        for name in names:
            PEERS[name].install()
    threads, found = torch.get_num_threads(), []
    with tempfile.TemporaryDirectory(prefix="plait-", ignore_cleanup_errors=True) as folder:
        course = Course(names, Path(folder), threads)
        try:
            for row in tracked(cases):
                found += course.run(row, options.repeats, QUICK_BLOCK if options.quick else BLOCK, options.seed)
        finally:
            course.end()
    return Report(
        "How fast is the same training step (layer, linear head, squared error, backward, SGD) in each library?",
        [NETWORKS, TIMES, VERDICTS, PROFILE],
        found,
        [
            f"float32, {threads} threads, processes in turns. ms: median and quartiles of {options.repeats} blocks.",
            "times: how many times plait's time, median of the turns. ready s: import, compile and the first step.",
            f"off: largest deviation of a weight's change in one step from float64's, of at most {SAME_CHANGE:.0e}; "
            f"the loss is the same to {SAME_LOSS:.0e}.",
            *course.remarks,
        ],
    )
