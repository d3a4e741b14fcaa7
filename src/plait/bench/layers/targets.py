"""The target of a training step: so much faster than torch.nn's, or so close to the peak (core/peak.py)."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core import Row

FASTER = {"lstm": 1.15, "gru": 1.5, "rnn": 1.3}  # times, than torch's with a malloc that keeps its memory
NEAR = 88.0  # % of the peak: then it need not be faster
FEW = 8  # sequences: shares of the peak are asked of larger batches only
# by ms that the arithmetic takes at the peak, at least: % of the peak; the first that fits counts
SHARES = (
    (10.0, {"lstm": 80.0, "gru": 80.0, "rnn": 80.0}),
    (1.0, {"lstm": 70.0, "gru": 70.0, "rnn": 60.0}),
)
UNEVEN = 70.0  # in place of a higher share, where the units do not fill the vectors


def reach(cell: str, B: int, H: int, lanes: int, *, faster: float, share: float, ms: float) -> float:
    """How much of the target is reached: from 1 on, it is met. ms: at the peak."""
    found = max(faster / FASTER[cell], share / NEAR)
    for least, wanted in SHARES:
        if ms >= least and B > FEW:
            return min(found, share / (wanted[cell] if H % lanes == 0 else min(wanted[cell], UNEVEN)))
    return found


def judged(row: Mapping[str, Any], peak: float, lanes: int) -> Row:
    """A row of `plait bench layers` with the shares of the peak, and what is reached of the target."""
    B, _, _, H, _ = map(int, row["shape"].split(","))
    share = row["GFLOP/s"] / peak * 100
    ms = row["plait ms"] * share / 100
    reached = reach(row["cell"], B, H, lanes, faster=row["faster"], share=share, ms=ms)
    return {
        **row,
        "peak GFLOP/s": peak,
        "peak ms": ms,
        "plait %": share,
        "torch %": share * row["plait ms"] / row["torch ms"],
        "reach": reached,
    }


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    met = sum(row["reach"] >= 1 for row in rows)
    return f"{met} of {len(rows)} meet the target (reach 1 or more), which is meant for --malloc tuned."
