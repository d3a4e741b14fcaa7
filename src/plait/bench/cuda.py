"""What do the CUDA versions bring on this device? First whether they are right, then how long they take.

Versions 1 to 3 begin and end in the host's memory; version 4 and torch's own layer stay on the device. A version
skips shapes that would take it too long: one thread is slow. Send the table back: see docs/cuda.md.
"""

from collections.abc import Callable
from typing import Annotated, Any

import torch

from .. import engines, layers
from ..cells import get
from ..errors import PlaitError
from ..kernels.cuda.gpu import interpreted, simulated
from ..ladder.compare import deviation, outputs_and_gradients, with_engine
from .options import ABOUT_SHAPES, CellNames, Repeats, Seed
from .report import Report, check, interleaved, timing, tracked
from .steps import Case, Step, parse_cells, parse_shapes

VERSIONS = ("cuda:v1", "cuda:v2", "cuda:v3", "cuda:v4")
MOST_WORK = {"cuda:v1": 2**27, "cuda:v2": 2**31, "cuda:v3": 2**31, "cuda:v4": 2**62}  # operations of a step
COLUMNS = ("shape", "cell", "engine", "ms", "low", "high", "torch / it", "off")


def measure(
    shapes: Annotated[str, ABOUT_SHAPES] = "8,12,1,16,1 32,12,1,64,1 100,50,64,128,1 64,128,128,256,1",
    cells: CellNames = "lstm,gru,rnn",
    repeats: Repeats = 5,
    seed: Seed = 0,
) -> Report:
    check(repeats, seed)
    cases, missing = parse_shapes(shapes, parse_cells(cells)), {}
    for name in VERSIONS:
        if (why := engines.get(name).why_not(get("lstm"), torch.float32, place_of(name))) is not None:
            missing[name] = why
    if len(missing) == len(VERSIONS):
        raise PlaitError(f"no version can run here. {' '.join(dict.fromkeys(missing.values()))}")
    torch.manual_seed(seed)
    rows = [row for case in tracked(cases) for row in rows_of(case, missing, repeats)]
    remarks = [f"{name} is missing: {why}" for name, why in missing.items()]
    remarks += [f"device: {torch.cuda.get_device_name()}"] if torch.cuda.is_available() else []
    if simulated() or interpreted():
        remarks.append("There is no device: a simulator and an interpreter ran, and their times mean nothing.")
    remarks.append("off: from torch's own layer on the host, in the outputs and all gradients, relative.")
    return Report(__doc__.split("\n\n")[0], [COLUMNS], rows, remarks)


def place_of(engine: str) -> torch.device:
    """Versions 1 to 3 take tensors of the host. So does an interpreter."""
    on_host = engine in VERSIONS[:3] or not torch.cuda.is_available()
    return torch.device("cpu" if on_host else "cuda")


def rows_of(case: Case, missing: dict[str, str], repeats: int) -> list[dict[str, Any]]:
    reference = layers.layer(get(case.cell), case.I, case.H, case.layers, engine="torch", dtype=torch.float32)
    x = torch.randn(case.T, case.B, case.I)
    expected = outputs_and_gradients(reference, x, None)
    able = [v for v in VERSIONS if v not in missing and case.work() <= MOST_WORK[v]]
    runs: dict[str, Callable[[], Any]] = {}
    off = {}
    for name in [*able, *(["torch"] if torch.cuda.is_available() else [])]:
        layer, data = with_engine(reference, name).to(place_of(name)), x.to(place_of(name))
        found = outputs_and_gradients(layer, data, None)
        off[name] = deviation({k: v.cpu() for k, v in found.items()}, expected)[0]
        runs[name] = UntilDone(layer, data, torch.ones(case.T, case.B, case.H, device=data.device))
    seconds = interleaved(runs, repeats)
    times = {name: timing(some) for name, some in seconds.items()}
    rows = []
    for name, t in times.items():
        row = {"shape": case.shape, "cell": case.cell, "engine": name, "off": off[name]}
        row |= {"ms": 1e3 * t.median, "low": 1e3 * t.low, "high": 1e3 * t.high}
        rows.append(row | {"torch / it": times["torch"].median / t.median if "torch" in times else None})
    return rows


class UntilDone(Step):
    """Until the device is done with it."""

    def __call__(self) -> None:
        super().__call__()
        if self.x.is_cuda:
            torch.cuda.synchronize()
