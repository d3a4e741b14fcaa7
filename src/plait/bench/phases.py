"""Where does a training step of engine fused spend its time?

Each phase of engine `fused` is called by itself, one after another. In a layer's own step small matrix products are
done inside the walks, and autograd adds its part: so the step stands beside the sum.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any

import torch

from .. import cells
from ..engines import Layout, Weights
from ..engines.fused import FusedEngine
from ..errors import PlaitError, unknown
from . import phases_rotate
from .options import Repeats, Seed
from .peak import Peak
from .report import Report, Timing, check, interleaved, timing, tracked
from .steps import Case, Step, contenders, parse_cells, parse_shapes

PHASES = ("project", "walk", "walk back", "weights", "input", "bias")
SHAPE, CELL = "32,128,64,64,1", "lstm"
COLUMNS = ("shape", "cell", "phase", "ms", "low", "high", "share %", "GFLOP/s", "peak %")


class Laps:
    """A step of one layer, phase by phase. Every call adds the seconds of each."""

    def __init__(self, case: Case, step: Step) -> None:
        self.cell, self.layout, self.engine = cells.get(case.cell), Layout(case.T, case.B), FusedEngine()
        self.w = Weights.of(self.cell, [p.detach() for p in step.layer.parameters()], bias=True)
        self.x, self.d_y = (t.detach().flatten(0, 1) for t in (step.x, step.d_y))  # rows
        self.seconds: list[list[float]] = []

    def __call__(self) -> None:
        engine, states = self.engine, len(self.cell.states)
        p, marks = engine.prepare(self.cell, self.w, lasting=False), [time.perf_counter()]

        def mark() -> None:
            marks.append(time.perf_counter())

        wx = engine.project(p, self.x)
        mark()
        _, tape = engine.recur(p, wx, None, self.layout)
        mark()
        assert tape is not None
        d_states = [self.d_y, *[None] * (states - 1)]
        d, _ = engine.recur_vjp(p, tape, d_states, [None] * states, spend=True)
        mark()
        torch.mm(d.d_wx.t(), self.x)
        for part in d.d_rh:
            torch.mm(part.t(), tape.before_all(0))
        mark()
        engine.input_gradient(p, d)
        mark()
        for part in [d.d_wx] if len(d.d_rh) == 1 else [d.d_wx, *d.d_rh]:  # one sum serves both biases, if it can
            part.sum(0)
        mark()
        self.seconds.append([b - a for a, b in pairwise(marks)])


def work(case: Case) -> dict[str, int]:
    """Multiplications and additions of the matrix products."""
    once = 2 * case.T * case.B * case.gates
    walk, project = once * case.H, once * case.I
    return {"project": project, "walk": walk, "walk back": walk, "weights": project + walk, "input": project}


def split(case: Case, repeats: int) -> list[dict[str, Any]]:
    step = contenders(case, "fused", input_gradient=True)["plait"]
    laps = Laps(case, step)
    whole = interleaved({"laps": laps, "step": step}, repeats)["step"]
    passes = laps.seconds[1:]  # the first has compiled the kernels
    found = {name: timing(values) for name, values in zip(PHASES, zip(*passes, strict=True), strict=True)}
    total, products = timing([sum(each) for each in passes]), work(case)

    def row(phase: str, t: Timing, flops: int | None) -> dict[str, Any]:
        return {
            "shape": case.shape,
            "cell": case.cell,
            "phase": phase,
            "ms": t.median * 1e3,
            "low": t.low * 1e3,
            "high": t.high * 1e3,
            "share %": t.median / total.median * 100,
            "GFLOP/s": None if flops is None else flops / t.median / 1e9,
        }

    rows = [row(name, t, products.get(name)) for name, t in found.items()]
    everything = case.work(input_gradient=True)
    return [*rows, row("sum", total, everything), row("step", timing(whole), everything)]


def with_peak(rows: Sequence[Mapping[str, Any]], peak: Peak) -> list[dict[str, Any]]:
    """The share of the peak beside every GFLOP/s."""
    return [
        {**row, "peak %": row["GFLOP/s"] and row["GFLOP/s"] / peak.best * 100, "peak GFLOP/s": peak.best}
        for row in rows
    ]


def measure(
    task: Annotated[str | None, "rotate: the fourth paper's ten phases, on its network."] = None,
    shapes: Annotated[
        str | None,
        "B,T,I,H,layers: batch, steps, inputs, units, layers; several with spaces.  "
        "(default: 32,128,64,64,1; for rotate 1000,10,1000,1000,1)",
    ] = None,
    cells: Annotated[str | None, "Of lstm, gru and rnn, with commas.  (default: lstm; for rotate rnn)"] = None,
    repeats: Repeats = 9,
    seed: Seed = 0,
) -> Report:
    check(repeats, seed)
    if task not in (None, "rotate"):
        raise unknown("task", task, ["rotate"])
    usual = (phases_rotate.SHAPE, phases_rotate.CELL) if task else (SHAPE, CELL)
    shapes, cells = (usual[0] if shapes is None else shapes), (usual[1] if cells is None else cells)
    cases = parse_shapes(shapes, parse_cells(cells))
    for case in cases:
        if case.layers > 1:
            raise PlaitError(f"shape '{case.shape}': the phases are those of one layer: let it end with ,1.")
    if task and len(cases) > 1:
        raise PlaitError(f"shapes '{shapes}' and cells '{cells}': task rotate takes one of each.")
    torch.manual_seed(seed)
    peak = Peak(cases[0].cell)
    if task:
        peak.sample()
        report = phases_rotate.split(cases[0], repeats)
        peak.sample()
        return replace(report, rows=with_peak(report.rows, peak), remarks=[*report.remarks, str(peak)])
    rows = [row for case in peak.between(tracked(cases)) for row in split(case, repeats)]
    return Report(
        "Where does a training step of engine fused spend its time?",
        [COLUMNS],
        with_peak(rows, peak),
        [
            str(peak),
            "project: W x + b. walk, walk back: the recurrence. weights, input, bias: their gradients.",
            "step: the layer's own, with autograd; small matrix products are then part of the walks.",
        ],
    )
