"""Two processes for each length, which take turns: everything is kept, or only the states at some steps."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ... import cells
from ...errors import PlaitError
from ...ladder.compare import worst
from ...layers.recompute import check_checkpoint
from ...tasks.memory import check_layer
from ..core.pictures import Panel, draw, log_axes
from ..core.progress import tracked
from ..core.report import Report
from ..core.turns import Row, in_turn, ratio, spread
from ..questions import MemoryOptions

MB = 1 << 20
WAYS = ("plain", "checkpoint")
COLUMNS = ("T", "plain MB", "checkpoint MB", "of plain", "plain peak MB", "checkpoint peak MB")
TIMES = ("T", "plain s", "checkpoint s", "times as long", "low", "high", "same outputs", "gradients off")


class Contender:
    """A process that waits for its turn."""

    def __init__(self, order: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "plait.bench.memory.child", json.dumps(order)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.file = order["file"]
        self.first = self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise PlaitError(f"a process of the measurement ended with code {self.process.wait()}: see above.")
        found: dict[str, Any] = json.loads(line)
        return found

    def step(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def contenders(order: dict[str, Any], checkpoint: int | str) -> Iterator[dict[str, Contender]]:
    found: dict[str, Contender] = {}
    with TemporaryDirectory(prefix="plait-") as folder:
        try:
            for way in WAYS:
                more = {"checkpoint": None if way == "plain" else checkpoint, "file": str(Path(folder) / way)}
                found[way] = Contender(order | more)
            yield found
        finally:
            for one in found.values():
                one.end()


def compare(order: dict[str, Any], checkpoint: int | str, repeats: int) -> Row:
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with contenders(order, checkpoint) as found:
        for k in range(repeats):
            for way in in_turn(WAYS, k):
                seconds[way].append(found[way].step()["seconds"])
        a, b = (torch.load(found[way].file, weights_only=True) for way in WAYS)
    plain, other = (found[way].first for way in WAYS)
    slower = ratio(seconds["checkpoint"], seconds["plain"])
    return {
        "T": order["T"],
        **{f"{way} MB": found[way].first["kept"] / MB for way in WAYS},
        "of plain": other["kept"] / plain["kept"],
        **{f"{way} peak MB": found[way].first["peak"] for way in WAYS},
        **{f"{way} s": spread(seconds[way]).median for way in WAYS},
        **slower.row("times as long"),
        "same outputs": "yes" if plain["outputs"] == other["outputs"] else "no",
        "gradients off": worst(b, a),
    }


def curve(*ys: str) -> Any:
    def on(axis: Any, rows: list[Row]) -> None:
        for y in ys:
            axis.plot([row["T"] for row in rows], [row[y] for row in rows], "o-", ms=3, label=y.removesuffix(" MB"))
        log_axes(axis, "steps of a sequence", ys[0].removeprefix("plain ").replace("MB", "memory, MB"))

    return on


PANELS: list[Panel] = [
    ({"plain MB"}, "kept for the backward pass", curve("plain MB", "checkpoint MB")),
    ({"plain peak MB"}, "peak of a training step", curve("plain peak MB", "checkpoint peak MB")),
]


def lengths(text: str) -> list[int]:
    found = text.split(",")
    if not all(n.isascii() and n.isdigit() and 0 < int(n) < 10**7 for n in found):
        raise PlaitError(f"steps '{text}': expected whole numbers from 1 to 9999999 with commas, such as 1024,4096.")
    return [int(n) for n in found]


def measure(options: MemoryOptions) -> Report:
    o, cell = options, cells.get(options.cell)
    sizes = {"B": o.batch, "I": o.inputs, "H": o.hidden}
    is_number = o.checkpoint.isascii() and o.checkpoint.isdigit()
    checkpoint = check_checkpoint(int(o.checkpoint) if is_number else o.checkpoint)
    assert checkpoint is not None
    every = lengths(o.steps)
    check_layer(o.batch, max(every), o.inputs, o.hidden, len(cell.gates) * o.hidden)
    order = {"cell": o.cell, "threads": torch.get_num_threads(), "seed": o.seed, **sizes}
    rows = [compare(order | {"T": T}, checkpoint, o.repeats) for T in tracked(every)]
    draw(o.picture, rows, PANELS)
    return Report(
        f"What does a layer keep? A training step: {o.cell}, batch {o.batch}, {o.inputs} inputs, {o.hidden} units, "
        f"checkpoint={checkpoint!r}.",
        [COLUMNS, TIMES],
        rows,
        [
            "MB: of what is saved for the backward pass, beside the input and the weights.",
            "peak: of a step, not the first, beyond what was there before it: with the outputs and all gradients.",
            "times as long: a step with checkpoint over the same step without, turn by turn: the median and quartiles.",
            "gradients off: those of the weights, the largest relative difference.",
        ],
    )
