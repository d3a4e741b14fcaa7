"""What does a training step cost, by the size of the batch and by the size of the layer?"""

from typing import Annotated, Any

import torch

from .. import engines
from ..errors import between
from ..tasks.settings import WIDEST
from .options import CellName, Engine, Repeats, Seed
from .report import Report, check, tracked
from .steps import Case, contenders, parse_cell, race

STEPS = 10
BATCHES = tuple(range(100, 1001, 100))
SIZES = {32: STEPS, 1000: STEPS, 1024: STEPS, 4096: 4}  # units -> steps
BATCH = 32  # for each of these sizes
PLAIN, POWER = 1000, 1024  # in matrices whose rows are a power of two apart, columns share few places of a cache
SPREAD = ("faster", "low", "high")


def compare(case: Case, engine: str, repeats: int) -> dict[str, Any]:
    theirs, ours, faster = race(contenders(case, engine), repeats)
    row: dict[str, Any] = {"faster": faster.median, "low": faster.low, "high": faster.high}
    for name, found in (("torch", theirs), ("plait", ours)):
        row[f"{name} ms"] = found.median * 1e3
        row[f"{name} ms/1000"] = found.median * 1e6 / (case.B * case.T)
        row[f"{name} GFLOP/s"] = case.work() / found.median / 1e9
    return row


def measure(
    size: Annotated[int, "Units, and inputs, while the batch grows."] = 256,
    cell: CellName = "rnn",
    engine: Engine = "auto",
    repeats: Repeats = 9,
    seed: Seed = 0,
) -> Report:
    check(repeats, seed)
    between("size", size, 1, WIDEST)
    parse_cell(cell)
    engines.check_name(engine)
    torch.manual_seed(seed)
    cases = [({"batch": B}, Case(cell, B, STEPS, size, size)) for B in BATCHES]
    cases += [({"size": n, "T": T}, Case(cell, BATCH, T, n, n)) for n, T in SIZES.items()]
    rows = [{**about, **compare(case, engine, repeats)} for about, case in tracked(cases)]
    return Report(
        f"What does a training step cost, by batch ({cell}, {size} units) and by size (batches of {BATCH})?",
        [
            ("batch", "torch ms/1000", "plait ms/1000", *SPREAD),
            ("size", "T", "torch GFLOP/s", "plait GFLOP/s", *SPREAD),
        ],
        rows,
        [
            f"ms/1000: for 1000 steps of a sequence, I = H, T = {STEPS}. faster: torch's time over plait's.",
            *(penalty(name, rows) for name in ("torch", "plait")),
        ],
    )


def penalty(name: str, rows: list[dict[str, Any]]) -> str:
    """What a power of two costs. Below 1, the larger layer is the slower one, product by product."""
    speed = {row["size"]: row[f"{name} GFLOP/s"] for row in rows if "size" in row}
    return f"{name}: {POWER} units have {speed[POWER] / speed[PLAIN]:.3f} of the GFLOP/s that {PLAIN} have."
