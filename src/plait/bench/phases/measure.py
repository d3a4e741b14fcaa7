"""The phases of a layer's step; `rotate` has those of the fourth paper's."""

import torch

from ... import cells
from ...engines import Layout, Weights
from ...engines.fused import FusedEngine
from ...errors import PlaitError, unknown
from ..core.cases import Case, check_one_layer, parse_cells, parse_shapes
from ..core.peak import Peak
from ..core.report import Report, tracked
from ..core.steps import Step, contenders
from ..core.turns import Laps, Row, take_turns
from . import Options, rotate
from .table import rows_of, with_peak

PHASES = ("Wx", "forward", "backward", "d_w", "d_x", "d_b")
SHAPE, CELL = "32,128,64,64,1", "lstm"
COLUMNS = ("shape", "cell", "phase", "ms", "low", "high", "share %", "GFLOP/s", "peak %")


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
    whole = take_turns({"phases": phased, "step": step}, repeats).spread("step")
    return rows_of(case, phased.laps, whole, work(case))


def measure(options: Options) -> Report:
    if options.task not in (None, "rotate"):
        raise unknown("task", options.task, ["rotate"])
    shape, cell = (rotate.SHAPE, rotate.CELL) if options.task else (SHAPE, CELL)
    shapes, names = options.shapes if options.shapes is not None else shape, options.cells
    names = cell if names is None else names
    cases = parse_shapes(shapes, parse_cells(names))
    check_one_layer(cases, "the phases are those")
    if options.task and len(cases) > 1:
        raise PlaitError(f"shapes '{shapes}' and cells '{names}': task rotate takes one of each.")
    torch.manual_seed(options.seed)
    peak = Peak(cases[0].cell)
    if options.task:
        (report,) = (rotate.split(case, options.repeats) for case in peak.between(cases))
        return Report(report.question, report.tables, with_peak(report.rows, peak), [*report.remarks, str(peak)])
    rows = [row for case in peak.between(tracked(cases)) for row in split(case, options.repeats)]
    return Report(
        "Where does a training step of engine fused spend its time?",
        [COLUMNS],
        with_peak(rows, peak),
        [
            str(peak),
            "Wx: W x + b of all steps. forward, backward: the recurrence. d_w, d_x, d_b: gradients.",
            "step: the layer's own, with autograd; small matrix products are then part of the recurrence.",
        ],
    )
