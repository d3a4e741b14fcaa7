"""The tables of `bench ladder`."""

from dataclasses import replace

from ..core import Report, blas
from ..core.sections import measure_sections
from ..cuda.versions import versions
from ..questions import LadderOptions
from .pictures import PANELS
from .sections import descent, growth, rungs

TABLES = [
    ("rung", "s", "low", "high", "vs python", "vs NumPy", "fused"),
    ("rung", "by hand", "runs", "loss", "goals"),
    ("rung", "epoch", "mini-batch", "sample", "threads placed", "transfers"),
    ("NumPy on one thread", "s", "low", "high", "fused", "by hand"),
]
GROWTH = ("trained by", "batch", "exponent", "low", "high", "1x ms", "4x ms", "16x ms")
DESCENT = ("descent", "batch", "steps", "ms/epoch", "loss", "angle, start", "angle, end")
QUESTION = "How far is it from a sequential LSTM to a fast one? Whole training of the airline passengers, seconds"


def measure(options: LadderOptions) -> Report:
    tables = [*TABLES, GROWTH if options.quick else (*GROWTH, "64x ms"), DESCENT]
    report = measure_sections(QUESTION, (rungs, growth, descent), tables, PANELS, options)
    slower = {row["trained by"] for row in report.rows if row.get("batch") == "growing" and row["exponent"] < 1}
    for row in report.rows:
        if "rung" in row:
            row["goals"] = goals(row["vs NumPy"], row["rung"] in slower)
    if options.parts is not None and "rungs" not in options.parts:
        return report
    missing = versions(simulators=False)[1]
    if blas.openblas() is None:
        missing.append("NumPy's products are not by the OpenBLAS of its wheel: its threads cannot be set.")
    return replace(report, remarks=[*report.remarks, *missing])


def goals(factor: float, slower_growth: bool = False) -> str:
    met = [name for name, least in (("faster", 1.0), ("x5", 5.0), ("x10", 10.0)) if factor > least]
    return ", ".join([*met, *(["growth"] if slower_growth else [])]) or "-"
