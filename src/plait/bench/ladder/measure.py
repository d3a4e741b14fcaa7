"""The tables of `bench ladder`."""

from ..core import blas
from ..core.options import chosen
from ..core.pictures import draw
from ..core.report import Report
from ..core.sections import measure_sections
from ..cuda.versions import versions
from . import Options
from .pictures import PANELS
from .sections import descent, growth, rungs

PARTS = {"rungs": rungs, "growth": growth, "descent": descent}
GROWTH = ("trained by", "batch", "exponent", "low", "high", "1x ms", "4x ms", "16x ms")
TABLES = [
    ("rung", "s", "low", "high", "vs python", "vs NumPy", "fused"),
    ("rung", "by hand", "runs", "loss", "goals"),
    ("rung", "epoch", "mini-batch", "sample", "threads placed", "transfers"),
    ("NumPy on one thread", "s", "low", "high", "fused", "by hand"),
]
DESCENT = ("descent", "batch", "steps", "ms/epoch", "loss", "angle, start", "angle, end")


def measure(options: Options) -> Report:
    rows = measure_sections(PARTS, options.parts, options)
    slower = {row["trained by"] for row in rows if row.get("batch") == "growing" and row["exponent"] < 1}
    for row in rows:
        if "rung" in row:
            row["goals"] = goals(row["vs NumPy"], row["rung"] in slower)
    draw(options.picture, rows, PANELS)
    asked = chosen(options.parts, list(PARTS), "section")
    remarks = [f"{name}: {' '.join((PARTS[name].__doc__ or '').split())}" for name in asked]
    if "rungs" in asked:
        remarks += versions(simulators=False)[1]
        if blas.openblas() is None:
            remarks.append("NumPy's products are not by the OpenBLAS of its wheel: its threads cannot be set.")
    question = "How far is it from a sequential LSTM to a fast one? Whole training of the airline passengers, seconds"
    return Report(question, [*TABLES, GROWTH if options.quick else (*GROWTH, "64x ms"), DESCENT], rows, remarks)


def goals(factor: float, slower_growth: bool = False) -> str:
    met = [name for name, least in (("faster", 1.0), ("x5", 5.0), ("x10", 10.0)) if factor > least]
    return ", ".join([*met, *(["growth"] if slower_growth else [])]) or "-"
