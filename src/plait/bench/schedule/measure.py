"""Tile, vectorise and parallel, each off and on; then the other decisions, one at a time."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from ... import cells, engines
from ...cells import Cell
from ...engines import Engine, Layout, Needs, Weights
from ...engines.fused import FusedEngine
from ...errors import between
from ...kernels.launch.schedule import DEFAULT, OFF, Schedule
from ...ladder.compare import worst
from ...tasks.memory import check_layer
from ...tasks.settings import WIDEST
from ..core.report import Report
from ..core.turns import Row, take_turns
from . import Options

BASELINE = "tile off, vectorise off, parallel off"
ON = replace(DEFAULT, fold=False, torch_mm=False)
OTHERS = {
    "all on, tile 64 x 16": replace(ON, tile=(64, 16)),
    "all on, products inside the recurrence": replace(ON, fuse=True),
    "all on, W x in the sums of a step": replace(ON, fold=True),
    "all on, element-wise apart": replace(ON, elementwise="apart"),
    "all on, an array a step": replace(ON, states="per step"),
    "all on, and torch.mm: the engine": DEFAULT,
}
FIRST_USE = """
import time, torch
from plait import layers
layer, x = layers.layer("{}", 8, 8, engine="fused"), torch.randn(4, 2, 8)
for _ in range(2):
    start = time.perf_counter()
    layer(x)[0].sum().backward()
    print(time.perf_counter() - start)
"""


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
    found = {}
    for tile, vectorise, parallel in itertools.product(("off", "on"), repeat=3):
        schedule = replace(ON if tile == "on" else OFF, vectorise=vectorise == "on", parallel=parallel == "on")
        found[f"tile {tile}, vectorise {vectorise}, parallel {parallel}"] = schedule
    return {**found, **OTHERS}


def measure(options: Options) -> Report:
    cell, batch, size, steps = options.cell, options.batch, options.size, options.steps
    for name, value in (("batch", batch), ("size", size), ("steps", steps)):
        between(name, value, 1, WIDEST)
    network = Network(cell, batch, steps, size, options.seed)
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
        run = network.step if schedule.states == "one buffer" else network.step_by_step
        contender(name, run, FusedEngine(schedule))
    contender("numpy", network.step, engines.get("numpy"))
    seconds = take_turns(contenders, options.repeats, warm=False)
    rows: list[Row] = []
    for name in contenders:
        more = {"faster": seconds.faster(name, than=BASELINE).median, "deviation": deviation[name]}
        rows.append({"schedule": name, **seconds.spread(name).row("ms", 1e3), **more})
    rows += ({"code": name, "seconds": value} for name, value in first_use(cell).items())
    return Report(
        f"What does each decision buy? A training step: {cell}, batch {batch}, {size} inputs and units, {steps} steps.",
        [("schedule", "ms", "low", "high", "faster", "deviation"), ("code", "seconds")],
        rows,
        [
            f"faster: how many times faster than '{BASELINE}', which is plain scalar loops.",
            "deviation: largest relative difference of outputs and gradients from engine numpy.",
        ],
    )


def first_use(cell: str) -> dict[str, float]:
    """Seconds of a first small step: in a process that compiles, in one that finds the code compiled, and once more."""
    with TemporaryDirectory() as folder:
        env, found = {**os.environ, "PLAIT_CACHE": folder}, []
        for _ in range(2):
            command = [sys.executable, "-c", FIRST_USE.format(cell)]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
            found.append([float(line) for line in done.stdout.split()])
    return {"compiled at first use": found[0][0], "compiled before, loaded": found[1][0], "in memory": found[1][1]}
