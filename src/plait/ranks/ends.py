"""How workers ended, and which of the ends is the cause of the others: pure functions."""

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .heartbeat import LOST

STOPPED = 130  # what a command ends with after Ctrl-C
REFUSED = 2  # a sentence of ours was printed
PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch puts it before a traceback, and before its log
LOG_LINE = re.compile(r"\[[IWEF]\d{4} ")


@dataclass(frozen=True)
class End:
    """of one worker. code: negative for a signal"""

    rank: int
    code: int
    told: str = ""  # what it has put into the store
    last_line: str = ""  # of what it wrote to stderr

    @property
    def failed(self) -> bool:
        return self.code not in (0, STOPPED)


def cause(ends: Iterable[End]) -> End | None:
    """ends: in the order in which they came. A death comes before an error, and an error before lost contact."""
    return min((end for end in ends if end.failed), key=severity, default=None)


def severity(end: End) -> int:
    return 0 if end.code < 0 else 2 if end.code == LOST else 1


def says_itself(ends: Sequence[End]) -> bool:
    """Whether the first rank, whose words go to the terminal, has said all there is to say."""
    found = cause(ends)
    return found is not None and found.code == REFUSED and any(e.rank == 0 and e.code == REFUSED for e in ends)


def sentence(end: End, host: str, lost: str) -> str:
    """What happened, without a full stop. lost: what the ranks that lost contact have found out."""
    who = f"rank {end.rank} on {host}"
    if end.code < 0:
        last = f": {end.last_line}" if end.last_line and -end.code not in (signal.SIGKILL, signal.SIGTERM) else ""
        text = f"{who} was killed ({signal_name(-end.code)}){last}"
    elif end.code == LOST:
        text = lost or end.told or f"{who} lost contact with the others"
    elif end.told:
        text = f"{who}: {end.told}"
    elif end.code == REFUSED and end.last_line:
        text = f"{who}: {end.last_line.removeprefix('plait: ')}"
    else:
        text = f"{who} ended with code {end.code}" + (f": {end.last_line}" if end.last_line else "")
    return text.rstrip().removesuffix(".")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_line(text: str) -> str:
    """that says something"""
    lines = [PREFIX.sub("", line).strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line and not LOG_LINE.match(line)), "")
