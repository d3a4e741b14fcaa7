"""Training steps of the CUDA versions in turns with torch's own layer."""

import math

import torch

from ...errors import PlaitError
from ...kernels.cuda.gpu import interpreted
from .. import about
from ..core import Report, Row, take_turns, tracked
from ..core.steps import Case, check_one_layer, parse_shapes
from ..ladder.rungs import Rung
from ..peers.contenders.network import Network
from ..peers.race import deviations, expected
from ..questions import CudaOptions
from .versions import OnDevice, simulated, versions

COLUMNS = ("shape", "cell", "engine", "ms", "low", "high", "torch / it", "off")
MOST_WORK = {"cuda v1": 2**27, "cuda v2": 2**31, "cuda v3": 2**31}  # operations of a step: more take long


def measure(options: CudaOptions) -> Report:
    cases = parse_shapes(options.shapes, options.cells.split(","))
    check_one_layer(cases, "the training steps are those")
    able, remarks = versions(simulators=True)
    if not able:
        raise PlaitError(f"no version can run here. {' '.join(remarks)}")
    if torch.cuda.is_available():
        able.append(Rung("torch", OnDevice))
        remarks.append(f"device: {torch.cuda.get_device_name()}")
    rows = [row for case in tracked(cases) for row in rows_of(case, able, options)]
    if simulated() or interpreted():
        remarks.append("There is no device: a simulator and an interpreter ran, and their times mean nothing.")
    remarks.append("off: largest deviation of the loss, or of a weight's change in one step, from float64; relative.")
    return Report(about("cuda"), [COLUMNS], rows, remarks)


def rows_of(case: Case, able: list[Rung], options: CudaOptions) -> list[Row]:
    net = Network.drawn(case.cell, case.B, case.T, case.I, case.H, 1, rate=0.1, seed=options.seed)
    right, off, runs = expected(net), {}, {}
    for version in able:
        if case.work() <= MOST_WORK.get(version.name, math.inf):
            made = version.make(net)
            off[version.name] = max(deviations(net, made.run(1), made.weights(), right).values())
            runs[version.name] = lambda made=made: made.run(1)
    seconds = take_turns(runs, options.repeats)
    rows = []
    for name in runs:
        row: Row = {"shape": case.shape, "cell": case.cell, "engine": name}
        row |= seconds.spread(name).row("ms", 1e3)
        row["torch / it"] = seconds.median("torch") / seconds.median(name) if "torch" in seconds else None
        rows.append({**row, "off": off[name]})
    return rows
