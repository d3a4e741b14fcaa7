"""A table of phases: each, their sum, and the whole step beside it."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.cases import Case
from ..core.peak import Peak
from ..core.turns import Laps, Row, Spread


def rows_of(case: Case, laps: Laps, step: Spread, work: Mapping[str, int]) -> list[Row]:
    """work: multiplications and additions of the matrix products, by phase."""
    total, everything = laps.total(), sum(work.values())

    def row(phase: str, t: Spread, flops: int | None) -> Row:
        return {
            "shape": case.shape,
            "cell": case.cell,
            "phase": phase,
            **t.row("ms", 1e3),
            "share %": t.median / total.median * 100,
            "GFLOP/s": None if flops is None else flops / t.median / 1e9,
        }

    rows = [row(name, t, work.get(name)) for name, t in laps.spreads().items()]
    return [*rows, row("sum", total, everything), row("step", step, everything)]


def with_peak(rows: Sequence[Mapping[str, Any]], peak: Peak) -> list[Row]:
    """The share of the peak beside every GFLOP/s."""
    return [
        {**row, "peak %": row["GFLOP/s"] and row["GFLOP/s"] / peak.best * 100, "peak GFLOP/s": peak.best}
        for row in rows
    ]
