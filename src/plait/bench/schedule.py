"""What does each decision about the loops buy? With the default sizes it takes 20 to 30 minutes.

One training step with everything on, off, and in between.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
from torch import Tensor

from .. import cells, engines
from ..cells import Cell
from ..engines import Engine, Layout, Needs, Weights
from ..engines.fused import FusedEngine
from ..errors import between
from ..kernels.schedule import DEFAULT, OFF, Schedule
from ..ladder.compare import worst
from ..tasks.memory import check_layer
from ..tasks.settings import WIDEST
from .options import Repeats, Seed
from .report import Report, check, interleaved, ratio, timing

BASELINE = "tile off, vectorise off, parallel off"
ON = replace(DEFAULT, fold=False, torch_mm=False)
OTHERS = {
    "all on, tile 64 x 16": replace(ON, tile=(64, 16)),
    "all on, fused with the walk": replace(ON, fuse=True),
    "all on, W x in the sums of a step": replace(ON, fold=True),
    "all on, element-wise apart": replace(ON, elementwise="apart"),
    "all on, an array a step": replace(ON, states="per step"),
    "all on, and torch.mm: the engine": DEFAULT,
}


class Network:
    """One layer, its data and its loss's gradient: what every contender computes."""

    def __init__(self, cell: str, B: int, T: int, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.cell: type[Cell] = cells.get(cell)
        self.layout, rows = Layout(T, B), len(self.cell.gates) * n
        check_layer(B, T, n, n, rows)
        bound = n**-0.5
        shapes = ((rows, n), (rows, n), (rows,), (rows,))
        drawn = [torch.empty(s).uniform_(-bound, bound, generator=generator) for s in shapes]
        self.w = Weights(drawn[0], drawn[1], drawn[2], drawn[3], None)
        self.x = torch.randn(T * B, n, generator=generator)
        self.d_y = torch.randn(T * B, n, generator=generator)

    def step(self, engine: Engine) -> list[Tensor]:
        """-> outputs, d_x, d_ of the weights"""
        ps = [engine.prepare(self.cell, self.w, lasting=False)]
        rows, final, kept = engine.forward(ps, self.x, None, self.layout)
        nothing = [None] * len(final)
        needs = Needs(True, [False] * len(final), [[True] * 4])
        back = engine.backward(ps, self.x, kept, self.d_y, nothing, self.layout, needs=needs, spend=True)
        return [rows, *present([back.x, *back.weights[0]])]

    def step_by_step(self, engine: Engine) -> list[Tensor]:
        """The same with an array, and a call, for each step."""
        one, B = Layout(1, self.layout.B), self.layout.B
        state, taken, ps = None, [], [engine.prepare(self.cell, self.w, lasting=False)]
        for t in range(self.layout.T):
            x = self.x[t * B : (t + 1) * B]
            rows, final, kept = engine.forward(ps, x, state, one)
            taken.append((x, rows, kept))
            state = final
        needs = Needs.all(ps)
        d_final: Sequence[Tensor | None] = [None] * len(self.cell.states)
        d_x: list[Tensor] = []
        total: list[Tensor] = []
        for t in range(self.layout.T - 1, -1, -1):
            x, _, kept = taken[t]
            d_y = self.d_y[t * B : (t + 1) * B]
            back = engine.backward(ps, x, kept, d_y, d_final, one, needs=needs, spend=True)
            d_final, d_w = back.states, present(back.weights[0])
            d_x += present([back.x])
            total = [a.add_(b) for a, b in zip(total, d_w, strict=True)] if total else d_w
        return [torch.cat([rows for _, rows, _ in taken]), torch.cat(d_x[::-1]), *total]


def present(values: Sequence[Tensor | None]) -> list[Tensor]:
    return [v for v in values if v is not None]


def schedules() -> dict[str, Schedule]:
    """Tile, vectorise and parallel, each off and on; then the others, one at a time."""
    names = ("off", "on")
    cube = {
        f"tile {names[tile]}, vectorise {names[vectorise]}, parallel {names[parallel]}": replace(
            OFF if not tile else ON, vectorise=bool(vectorise), parallel=bool(parallel)
        )
        for tile, vectorise, parallel in itertools.product((0, 1), repeat=3)
    }
    return {**cube, **OTHERS}


def measure(
    cell: Annotated[str, "rnn, rnn_relu, lstm, gru or implicit_gru."] = "rnn",
    batch: Annotated[int, "Sequences."] = 1000,
    size: Annotated[int, "Inputs, and units."] = 1000,
    steps: Annotated[int, "Steps of a sequence."] = 10,
    repeats: Repeats = 5,
    seed: Seed = 0,
) -> Report:
    for name, value in (("batch", batch), ("size", size), ("steps", steps)):
        between(name, value, 1, WIDEST)
    check(repeats, seed)
    network = Network(cell, batch, steps, size, seed)
    reference = network.step(engines.get("numpy"))
    contenders: dict[str, Callable[[], None]] = {}
    deviation: dict[str, float] = {}

    def contender(name: str, run: Callable[[Engine], list[Tensor]], engine: Engine) -> None:
        def call() -> None:
            result = run(engine)
            if name not in deviation:  # the first call is not measured
                deviation[name] = worst(result, reference)

        contenders[name] = call

    for name, schedule in schedules().items():
        contender(
            name, network.step if schedule.states == "one buffer" else network.step_by_step, FusedEngine(schedule)
        )
    contender("numpy", network.step, engines.get("numpy"))
    seconds = interleaved(contenders, repeats, warm=False)
    rows = []
    for name in contenders:
        found, gain = timing(seconds[name]), ratio(seconds[BASELINE], seconds[name])
        row: dict[str, Any] = {"schedule": name, "ms": found.median * 1e3, "low": found.low * 1e3}
        row |= {"high": found.high * 1e3, "faster": gain.median, "deviation": deviation[name]}
        rows.append(row)
    ready = first_use(cell)
    return Report(
        f"What does each decision buy? A training step: {cell}, batch {batch}, {size} inputs and units, {steps} steps.",
        [("schedule", "ms", "low", "high", "faster", "deviation"), ("code", "seconds")],
        [*rows, *({"code": name, "seconds": value} for name, value in ready.items())],
        [
            f"faster: how many times faster than '{BASELINE}', which is plain scalar loops.",
            "deviation: largest relative difference of outputs and gradients from engine numpy.",
        ],
    )


def first_use(cell: str) -> dict[str, float]:
    """Seconds of a first small step: in a process that compiles, in one that finds the code compiled, and once more."""
    text = (
        "import time, torch\n"
        "from plait import layers\n"
        f"layer, x = layers.layer({cell!r}, 8, 8, engine='fused'), torch.randn(4, 2, 8)\n"
        "for _ in range(2):\n"
        "    start = time.perf_counter()\n"
        "    layer(x)[0].sum().backward()\n"
        "    print(time.perf_counter() - start)\n"
    )
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "PLAIT_CACHE": folder}
        found = []
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True
            )
            found.append([float(line) for line in done.stdout.split()])
    return {"compiled at first use": found[0][0], "compiled before, loaded": found[1][0], "in memory": found[1][1]}
