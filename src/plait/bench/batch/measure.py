"""Batches from 100 to 1000, and layers up to 4096 units."""

from ..core import Report, Row, take_turns, tracked
from ..core.steps import Case, contenders
from ..questions import BatchOptions

STEPS = 10
BATCHES = tuple(range(100, 1001, 100))
# Units -> steps. Rows that are a power of two apart (1024) share few places of a cache.
SIZES = {32: STEPS, 1000: STEPS, 1024: STEPS, 4096: 4}
BATCH = 32  # for each of these sizes
SPREAD = ("faster", "low", "high")


def compare(case: Case, options: BatchOptions) -> Row:
    seconds = take_turns(contenders(case, options.engine), options.repeats)
    row = {**seconds.faster("plait", than="torch").row("faster"), **seconds.ms()}
    for name in seconds:
        row[f"{name} ms/1000"] = seconds.median(name) * 1e6 / (case.B * case.T)
        row[f"{name} GFLOP/s"] = case.work() / seconds.median(name) / 1e9
    return row


def measure(options: BatchOptions) -> Report:
    size, cell = options.size, options.cell
    cases = [({"batch": B}, Case(cell, B, STEPS, size, size)) for B in BATCHES]
    cases += [({"size": n, "T": T}, Case(cell, BATCH, T, n, n)) for n, T in SIZES.items()]
    rows = [{**about, **compare(case, options)} for about, case in tracked(cases)]
    return Report(
        f"What does a training step of {cell} cost, by batch ({size} units) and by size (batches of {BATCH})?",
        [
            ("batch", "torch ms/1000", "plait ms/1000", *SPREAD),
            ("size", "T", "torch GFLOP/s", "plait GFLOP/s", *SPREAD),
        ],
        rows,
        [f"ms/1000: for 1000 steps of a sequence, I = H, T = {STEPS}. faster: torch's time over plait's."],
    )
