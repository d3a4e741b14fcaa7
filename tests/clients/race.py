"""A case of a client, plain against accelerated: two processes of its environment, which take turns."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np

from plait.bench.core.turns import Seconds, Spread, in_turn

WORKER = Path(__file__).with_name("worker.py")
PATIENCE = 300.0  # seconds until an answer; the first step compiles kernels
STEPS = 20  # after which losses are compared
SAME = {"float32": 1e-5, "float64": 1e-10}  # largest relative difference of losses and outputs
LAYERS = {"LSTM": 1.5, "GRU": 2.5, "RNN": 2.5}  # how much faster layers are expected to be
REST = 0.03  # seconds before a measurement, for the other process's threads to fall asleep
KINDS = ("training", "inference")
CONTENDERS = ("plain", "plait")


class Failed(Exception):
    """A case cannot be measured, and why."""


@dataclass(frozen=True)
class Timing:
    threads: int
    repeats: int
    least: float  # seconds of a measurement
    cpu: bool  # CPU time instead of time: for one thread, on a machine that is busy


@dataclass(frozen=True)
class Case:
    client: str
    name: str
    python: Path

    @property
    def module(self) -> str:
        return f"with_{self.client.replace('-', '_')}"


class Process:
    def __init__(self, case: Case, contender: str, dtype: str, folder: Path) -> None:
        self.name, self.said = contender, folder / f"{contender}.txt"
        with self.said.open("w") as errors:
            self.process = subprocess.Popen(
                [str(case.python), str(WORKER), case.module, case.name, contender, dtype],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONHASHSEED": "0"},
                cwd=folder,
                text=True,
            )

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        self.tell(do, **order)
        return self.answer()

    def tell(self, do: str, **order: Any) -> None:
        assert self.process.stdin is not None
        try:
            print(json.dumps({"do": do, **order}), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        timer = Timer(PATIENCE, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            said = self.said.read_text(errors="replace").strip().splitlines()
            raise Failed(f"{self.name}: {said[-1] if said else f'ended with code {self.process.wait()}'}")
        return json.loads(line)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def pair(case: Case, dtype: str = "float32") -> Iterator[list[Process]]:
    with tempfile.TemporaryDirectory(prefix="plait-") as folder:
        processes = [Process(case, contender, dtype, Path(folder)) for contender in CONTENDERS]
        try:
            yield processes
        finally:
            for process in processes:
                process.end()


def together(processes: Sequence[Process], do: str, **order: Any) -> list[dict[str, Any]]:
    for process in processes:
        process.tell(do, **order)
    return [process.answer() for process in processes]


def difference(processes: Sequence[Process]) -> float:
    """The largest one of losses and outputs, relative to the largest value of each kind."""
    theirs, ours = together(processes, "results", steps=STEPS)
    worst = 0.0
    for kind, expected in theirs.items():
        a, b = np.array(ours[kind]), np.array(expected)
        if a.shape != b.shape or not np.isfinite(b).all():
            raise Failed(f"{kind}: {a.shape} values beside {b.shape}, or some that are not finite")
        worst = max(worst, float(np.abs(a - b).max() / np.abs(b).max()))
    return worst


def timed(processes: Sequence[Process], what: str, timing: Timing) -> Seconds:
    """Seconds of a call of each contender, and of its recurrent layers alone, in turns."""
    contenders = {f"{p.name}{part}": (p, f"{what}{part}") for part in ("", " layers") for p in processes}
    calls = {}
    for name, (process, call) in contenders.items():
        once = process.ask("run", what=call, threads=timing.threads, calls=1, cpu=timing.cpu)["seconds"]
        calls[name] = max(1, round(timing.least / once))
    seconds = Seconds({name: [] for name in contenders})
    for k in range(timing.repeats):
        for name in in_turn(list(contenders), k):
            process, call = contenders[name]
            time.sleep(REST)
            answer = process.ask("run", what=call, threads=timing.threads, calls=calls[name], cpu=timing.cpu)
            seconds[name].append(answer["seconds"])
    return seconds


def expected(share: float, layers: float) -> float:
    """How much faster the whole is if its layers, which take that share, are so much faster."""
    return 1 / (1 - share + share / layers)


def judged(seconds: Seconds, layers: float) -> dict[str, Any]:
    faster: Spread = seconds.faster("plait", "plain")
    share = min(1.0, seconds.median("plain layers") / seconds.median("plain"))
    return {
        "ms": seconds.median("plain") * 1e3,
        "faster": faster.median,
        "low": faster.low,
        "high": faster.high,
        "share": share,
        "layers faster": seconds.faster("plait layers", "plain layers").median,
        "reached": faster.median / expected(share, layers),
        "slower": faster.high < 1,
        "seconds": dict(seconds),
    }


def compared(case: Case, timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """A row for each number of threads."""
    with pair(case) as processes:
        about = together(processes, "about", package=case.client)[1]
        if len(about["kinds"]) != 1:
            raise Failed(f"its layers are {about['kinds']}: expected those of one kind")
        row: dict[str, Any] = {"client": case.client, "case": case.name, **about}
        row["float32"] = difference(processes)
        if row["float32"] > SAME["float32"]:
            with pair(case, "float64") as doubles:
                row["float64"] = difference(doubles)
        together(processes, "alone")
        rows = []
        for timing in timings:
            found = {k: judged(timed(processes, k, timing), LAYERS[about["kinds"][0]]) for k in KINDS}
            rows.append(row | {"threads": timing.threads, "cpu": timing.cpu} | found)
    return rows


def is_exact(row: dict[str, Any]) -> bool:
    return row["float32"] <= SAME["float32"] or row["float64"] <= SAME["float64"]
