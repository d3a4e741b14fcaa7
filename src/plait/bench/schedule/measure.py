"""Tile, vectorise and parallel, each off and on; then the other decisions, one at a time."""

import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from ... import cells, engines, layers
from ...engines import Engine, Layout, Needs, Weights
from ...engines.fused import FusedEngine
from ...kernels.launch.schedule import DEFAULT, OFF, Schedule
from ...ladder.compare import worst
from ...tasks.memory import check_layer
from ..core import Report, Row, take_turns
from ..questions import ScheduleOptions

BASELINE = "tile off, vectorise off, parallel off"
ON = replace(DEFAULT, fold=False, torch_mm=False)
BY_STEP = "all on, an array a step"
OTHERS = {
    "all on, tile 64 x 16": replace(ON, tile=(64, 16)),
    "all on, products inside the recurrence": replace(ON, fuse=True),
    "all on, W x in the sums of a step": replace(ON, fold=True),
    "all on, element-wise apart": replace(ON, apart=True),
    BY_STEP: ON,
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
        self.T, self.B, self.cell = T, B, cells.get(cell)
        check_layer(B, T, n, n, len(self.cell.gates) * n)
        torch.manual_seed(seed)
        w_ih, w_hh, b_ih, b_hh = (p.detach() for p in layers.layer(cell, n, n).parameters())
        self.w = Weights(w_ih, w_hh, b_ih, b_hh, None)
        self.x, self.d_y = torch.randn(2, T * B, n)

    def step(self, engine: Engine, calls: int = 1) -> list[list[Tensor]]:
        """calls: each has arrays of its own -> outputs, d_x, d_ of the weights"""
        ps = [engine.prepare(self.cell, self.w, lasting=False)]
        layout = Layout(self.T // calls, self.B)
        state, taken, d_x, d_w = None, [], list[Tensor](), list[Tensor]()
        for x, d_y in zip(self.x.chunk(calls), self.d_y.chunk(calls), strict=True):
            rows, state, kept = engine.forward(ps, x, state, layout)
            taken.append((x, d_y, rows, kept))
        d_state: Sequence[Tensor | None] = [None] * len(self.cell.states)
        needs = Needs(True, [calls > 1] * len(d_state), [[True] * 4])
        for x, d_y, _, kept in reversed(taken):
            back = engine.backward(ps, x, kept, d_y, d_state, layout, needs=needs, spend=True)
            found, d_state = [d for d in (back.x, *back.weights[0]) if d is not None], back.states
            d_x.insert(0, found[0])
            d_w = [a.add_(b) for a, b in zip(d_w, found[1:], strict=True)] if d_w else found[1:]
        return [[rows for _, _, rows, _ in taken], d_x, *([d] for d in d_w)]


def schedules() -> dict[str, Schedule]:
    """Tile, vectorise and parallel, each off and on; then the others, one at a time."""
    found = {}
    for tile, vectorise, parallel in itertools.product(("off", "on"), repeat=3):
        schedule = replace(ON if tile == "on" else OFF, vectorise=vectorise == "on", parallel=parallel == "on")
        found[f"tile {tile}, vectorise {vectorise}, parallel {parallel}"] = schedule
    return {**found, **OTHERS}


def measure(options: ScheduleOptions) -> Report:
    cell, batch, size, steps = options.cell, options.batch, options.size, options.steps
    network = Network(cell, batch, steps, size, options.seed)
    numpy, deviation = engines.get("numpy"), dict[str, float]()
    reference = [torch.cat(some) for some in network.step(numpy)]

    def run(name: str, engine: Engine, calls: int = 1) -> None:
        found = network.step(engine, calls)
        if name not in deviation:  # the first call is not measured
            deviation[name] = worst([torch.cat(some) for some in found], reference)

    contenders = {}
    for name, schedule in schedules().items():
        contenders[name] = partial(run, name, FusedEngine(schedule), steps if name == BY_STEP else 1)
    contenders["numpy"] = partial(run, "numpy", numpy)
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
    """Seconds of a first small step: compiled, found compiled by another process, and once more."""
    with TemporaryDirectory() as folder:
        env, found = {**os.environ, "PLAIT_CACHE": folder}, []
        for _ in range(2):
            command = [sys.executable, "-c", FIRST_USE.format(cell)]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
            found.append([float(line) for line in done.stdout.split()])
    return {"compiled at first use": found[0][0], "compiled before, loaded": found[1][0], "in memory": found[1][1]}
