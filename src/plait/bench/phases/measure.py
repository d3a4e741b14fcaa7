"""The phases of a layer's step; `rotate` has those of the fourth paper's."""

from collections.abc import Mapping

import torch

from ... import cells
from ...engines import Layout, Weights
from ...engines.fused import FusedEngine
from ...errors import PlaitError, unknown
from .. import about
from ..core.cases import Case, check_one_layer, parse_cells, parse_shapes
from ..core.peak import Peak
from ..core.progress import tracked
from ..core.report import Report
from ..core.steps import Step, contenders
from ..core.turns import Laps, Row, Seconds, take_turns
from . import Options, rotate

PHASES = ("Wx", "forward", "backward", "d_w", "d_x", "d_b")
SHAPE, CELL = "32,128,64,64,1", "lstm"
COLUMNS = ("shape", "cell", "phase", "ms", "low", "high", "share %", "GFLOP/s", "peak %")
REMARKS = [
    "Wx: W x + b of all steps. forward, backward: the recurrence. d_w, d_x, d_b: gradients.",
    "step: the layer's own, with autograd; small matrix products are then part of the recurrence.",
]


class Phased:
    """A step of one layer, phase by phase."""

    def __init__(self, case: Case, step: Step) -> None:
        self.cell, self.layout, self.engine = cells.get(case.cell), Layout(case.T, case.B), FusedEngine()
        self.w = Weights.of(self.cell, [p.detach() for p in step.layer.parameters()], bias=True)
        self.x, self.d_y = (t.detach().flatten(0, 1) for t in (step.x, step.d_y))  # rows
        self.laps = Laps(PHASES)

    def __call__(self) -> None:
        engine, states = self.engine, len(self.cell.states)
        p = engine.prepare(self.cell, self.w, lasting=False)
        with self.laps.step() as mark:
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


def work(case: Case) -> dict[str, int]:
    """Multiplications and additions of the matrix products."""
    once = 2 * case.T * case.B * case.gates
    recur, project = once * case.H, once * case.I
    return {"Wx": project, "forward": recur, "backward": recur, "d_w": project + recur, "d_x": project}


def split(case: Case, repeats: int) -> list[Row]:
    step = contenders(case, "fused", input_gradient=True)["plait"]
    phased = Phased(case, step)
    seconds = take_turns({"phases": phased, "step": step}, repeats)
    return rows_of(case, phased.laps, seconds, work(case))


def rows_of(case: Case, laps: Laps, seconds: Seconds, work: Mapping[str, int]) -> list[Row]:
    """Each phase, their sum, and the whole step beside it. work: as of work(), by phase"""
    total, everything = laps.total(), sum(work.values())
    work = {**work, "sum": everything, "step": everything}
    rows = []
    for phase, t in {**laps.spreads(), "sum": total, "step": seconds.spread("step")}.items():
        speed = work[phase] / t.median / 1e9 if phase in work else None
        row = {"shape": case.shape, "cell": case.cell, "phase": phase, **t.row("ms", 1e3)}
        rows.append({**row, "share %": t.median / total.median * 100, "GFLOP/s": speed})
    return rows


def measure(options: Options) -> Report:
    if options.task not in (None, "rotate"):
        raise unknown("task", options.task, ["rotate"])
    shape, cell = (rotate.SHAPE, rotate.CELL) if options.task else (SHAPE, CELL)
    shapes = shape if options.shapes is None else options.shapes
    names = cell if options.cells is None else options.cells
    cases = parse_shapes(shapes, parse_cells(names))
    check_one_layer(cases, "the phases are those")
    if options.task and len(cases) > 1:
        raise PlaitError(f"shapes '{shapes}' and cells '{names}': task rotate takes one of each.")
    torch.manual_seed(options.seed)
    peak, rows = Peak(), list[Row]()
    question, columns, remarks = about("phases"), list(COLUMNS), REMARKS
    for case in peak.between(tracked(cases)):
        if options.task:
            laps, seconds, apart = rotate.split(case, options.repeats)
            rows = rows_of(case, laps, seconds, rotate.work(case))
            papers = {**rotate.PAPER, "sum": sum(rotate.PAPER.values())}
            rows = [{**row, "paper %": papers.get(row["phase"])} for row in rows]
            question, columns = rotate.QUESTION, list(rotate.COLUMNS)
            remarks = [f"{case.cell} {case.shape} (B,T,I,H,layers).", *rotate.REMARKS, apart]
        else:
            rows += split(case, options.repeats)
    for row in rows:
        row |= {"peak %": row["GFLOP/s"] and row["GFLOP/s"] / peak.best * 100, "peak GFLOP/s": peak.best}
    return Report(question, [columns], rows, [str(peak), *remarks])
