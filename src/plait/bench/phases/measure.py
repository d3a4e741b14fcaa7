"""The phases of a layer's step; `rotate` has those of the fourth paper's."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch

from ... import cells
from ...engines import Layout, Weights
from ...engines.fused import FusedEngine
from ...errors import PlaitError
from .. import about
from ..core import Laps, Report, Row, take_turns, tracked
from ..core.peak import Peak
from ..core.steps import Case, Step, check_one_layer, contenders, parse_shapes
from ..questions import PhasesOptions
from . import rotate
from .rotate import Run

PHASES = ("Wx", "forward", "backward", "d_w", "d_x", "d_b")
SHAPE, CELL = "32,128,64,64,1", "lstm"
COLUMNS = ("shape", "cell", "phase", "ms", "low", "high", "share %", "GFLOP/s", "peak %")
REMARKS = [
    "Wx: W x + b of all steps. forward, backward: the recurrence. d_w, d_x, d_b: gradients.",
    "step: the layer's own, with autograd; small matrix products are then part of the recurrence.",
]


def phased(case: Case, step: Step) -> Run:
    """A step of one layer, phase by phase."""
    cell, layout, engine = cells.get(case.cell), Layout(case.T, case.B), FusedEngine()
    w = Weights.of(cell, [p.detach() for p in step.layer.parameters()], bias=True)
    x, d_y = (t.detach().flatten(0, 1) for t in (step.x, step.d_y))  # rows
    others = [None] * (len(cell.states) - 1)

    def run() -> Iterator[None]:
        p = engine.prepare(cell, w, lasting=False)
        wx = engine.project(p, x)
        yield
        _, tape = engine.recur(p, wx, None, layout)
        yield
        assert tape is not None
        d, _ = engine.recur_vjp(p, tape, [d_y, *others], [None, *others], spend=True)
        yield
        torch.mm(d.d_wx.t(), x)
        for part in d.d_rh:
            torch.mm(part.t(), tape.before_all(0))
        yield
        engine.input_gradient(p, d)
        yield
        for part in [d.d_wx] if len(d.d_rh) == 1 else [d.d_wx, *d.d_rh]:  # one sum serves both biases, if it can
            part.sum(0)
        yield

    return run


def work(case: Case) -> dict[str, int]:
    """Multiplications and additions of the matrix products."""
    once = 2 * case.T * case.B * case.gates
    recur, project = once * case.H, once * case.I
    return {"Wx": project, "forward": recur, "backward": recur, "d_w": project + recur, "d_x": project}


def split(case: Case, repeats: int) -> list[Row]:
    step = contenders(case, "fused", input_gradient=True)["plait"]
    return race(case, PHASES, phased(case, step), step, work(case), repeats)


def race(
    case: Case, phases: Iterable[str], run: Run, step: Callable[[], None], work: Mapping[str, int], repeats: int
) -> list[Row]:
    """Each phase, their sum, and the whole step in turns with them. work: as of work(), by phase"""
    laps = Laps(phases)
    seconds = take_turns({"phases": partial(laps.walk, run), "step": step}, repeats)
    total, everything = laps.total(), sum(work.values())
    work = {**work, "sum": everything, "step": everything}
    rows = []
    for phase, t in {**laps.spreads(), "sum": total, "step": seconds.spread("step")}.items():
        speed = work[phase] / t.median / 1e9 if phase in work else None
        row = {"shape": case.shape, "cell": case.cell, "phase": phase, **t.row("ms", 1e3)}
        rows.append({**row, "share %": t.median / total.median * 100, "GFLOP/s": speed})
    return rows


def measure(options: PhasesOptions) -> Report:
    shape, cell = (rotate.SHAPE, rotate.CELL) if options.task else (SHAPE, CELL)
    shapes = shape if options.shapes is None else options.shapes
    names = cell if options.cells is None else options.cells
    cases = parse_shapes(shapes, names.split(","))
    check_one_layer(cases, "the phases are those")
    if options.task and len(cases) > 1:
        raise PlaitError(f"shapes '{shapes}' and cells '{names}': task rotate takes one of each.")
    peak, rows = Peak(), list[Row]()
    question, columns, remarks = about("phases"), list(COLUMNS), REMARKS
    for case in peak.between(tracked(cases)):
        if options.task:
            run, step, apart = rotate.contenders(case)
            rows = race(case, rotate.PAPER, run, step, rotate.work(case), options.repeats)
            papers = {**rotate.PAPER, "sum": sum(rotate.PAPER.values())}
            rows = [{**row, "paper %": papers.get(row["phase"])} for row in rows]
            question, columns = rotate.QUESTION, list(rotate.COLUMNS)
            remarks = [f"{case.cell} {case.shape} (B,T,I,H,layers).", *rotate.REMARKS, apart]
        else:
            rows += split(case, options.repeats)
    for row in rows:
        row |= {"peak %": row["GFLOP/s"] and row["GFLOP/s"] / peak.best * 100, "peak GFLOP/s": peak.best}
    return Report(question, [columns], rows, [str(peak), *remarks])
