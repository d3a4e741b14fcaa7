"""What the questions of `plait bench` share."""

from .progress import tracked
from .report import Report
from .turns import Laps, Row, Seconds, Spread, ratio, spread, take_turns

__all__ = ["Laps", "Report", "Row", "Seconds", "Spread", "ratio", "spread", "take_turns", "tracked"]
