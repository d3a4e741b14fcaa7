"""How fast is the same training step in plait, NumPy, torch, torch.compile, JAX, PyTensor and Halide?

The network is a layer, a linear head on its last state, the mean squared error and plain gradient descent, in float32.
Each contender has a process of its own; they take turns, a block of steps each. docs/peers.md says how each is written.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch

from .contenders.network import Network
from .options import Repeats, Seed
from .peers_race import SAME_CHANGE, SAME_LOSS, Dropped, Failed, Process, Runner, expected, load, race
from .peers_table import PEERS, chosen
from .report import Report, Timing, check, ratio, timing, tracked

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
Row = dict[str, Any]


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
            if name in state:
                continue
            if cell not in PEERS[name].cells:
                state[name] = UNWRITTEN
                continue
            try:
                runners[name] = load(self.process(name), net, self.folder, right)
                runners[name].fill(block)
            except Failed as e:
                runners.pop(name, None)
                state[name] = FAILED
                self.failed(row, name, str(e))
        found: dict[str, list[float]] = {}
        while runners and not found:
            try:
                found = race(runners, repeats)
            except Dropped as e:
                del runners[e.name]
                state[e.name] = FAILED
                self.failed(row, e.name, str(e))
        about = dict(zip(NETWORKS, (row, cell, *sizes, right[0]), strict=True))
        rows = [about, *self.lines(row, runners, found, state), *ours(row, found)]
        if US in found and timing(found[US]).median < BIG:
            try:
                rows += profile(row, runners[US])
            except Failed as e:
                self.failed(row, US, f"while it was profiled: {e}")
        return rows

    def lines(
        self, row: str, runners: Mapping[str, Runner], found: Mapping[str, list[float]], state: Mapping[str, str]
    ) -> list[Row]:
        lines = []
        for name in self.names:
            if name in state:
                figures: list[Any] = [state[name], *[None] * 5]
            else:
                t, times = timing(found[name]), ratio(found[name], found[US]).median if US in found else None
                figures = [t.median * 1e3, t.low * 1e3, t.high * 1e3, times, runners[name].off, runners[name].ready]
            lines.append(dict(zip(TIMES, (row, name, *figures), strict=True)))
        return lines


def ours(row: str, found: Mapping[str, list[float]]) -> list[Row]:
    """What follows for plait."""
    return [verdict(row, {name: timing(values) for name, values in found.items()})] if US in found else []


def verdict(row: str, found: Mapping[str, Timing]) -> Row:
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


def measure(
    only: Annotated[str | None, "Which peers beside plait, with commas.  (default: all)"] = None,
    rows: Annotated[str | None, "Which networks, with commas.  (default: all)"] = None,
    quick: Annotated[bool, "Short blocks of steps, and not the largest network."] = False,
    install: Annotated[bool, "Make an environment for PyTensor, which needs an older numba, if there is none."] = False,
    repeats: Repeats = 7,
    seed: Seed = 0,
) -> Report:
    check(repeats, seed)
    names = [US, *(name for name in chosen(only, list(PEERS), "--only: peer") if name != US)]
    cases = chosen(rows, list(CASES), "--rows: network")
    if quick and rows is None:
        cases.remove(LARGEST)
    if install:
        for name in names:
            PEERS[name].install()
    threads, found = torch.get_num_threads(), []
    with tempfile.TemporaryDirectory(prefix="plait-", ignore_cleanup_errors=True) as folder:
        course = Course(names, Path(folder), threads)
        try:
            for row in tracked(cases):
                found += course.run(row, repeats, QUICK_BLOCK if quick else BLOCK, seed)
        finally:
            course.end()
    return Report(
        "How fast is the same training step (layer, linear head, squared error, backward, SGD) in each library?",
        [keys for keys in (NETWORKS, TIMES, VERDICTS, PROFILE) if any(row.keys() >= set(keys) for row in found)],
        found,
        [
            f"float32, {threads} threads, a process each, taking turns; ms: median and quartiles of {repeats} blocks.",
            "times: how many times plait's time, median of the turns. ready s: import, compile and the first step.",
            f"off: largest deviation of a weight's change in one step from float64's, of at most {SAME_CHANGE:.0e}; "
            f"the loss is the same to {SAME_LOSS:.0e}.",
            *course.remarks,
        ],
    )
