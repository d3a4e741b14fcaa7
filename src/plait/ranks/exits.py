"""How workers ended, and which of the exits is the cause of the others: pure functions."""

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .heartbeat import LOST

STOPPED = 130  # the exit code of a command after Ctrl-C
REFUSED = 2  # a sentence of ours was printed
PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch puts it before a traceback, and before its log
LOG_LINE = re.compile(r"\[[IWEF]\d{4} ")


@dataclass(frozen=True)
class WorkerExit:
    """of one worker. code: negative for a signal"""

    rank: int
    code: int
    message: str = ""  # what it has put into the store
    last_line: str = ""  # of what it wrote to stderr

    @property
    def failed(self) -> bool:
        return self.code not in (0, STOPPED)


def cause(exits: Iterable[WorkerExit]) -> WorkerExit | None:
    """A death comes before an error, and an error before lost contact."""
    failed = [ended for ended in exits if ended.failed]
    return min(failed, key=lambda ended: 0 if ended.code < 0 else 2 if ended.code == LOST else 1, default=None)


def says_itself(exits: Sequence[WorkerExit]) -> bool:
    """Whether the first rank has printed all there is to say."""
    found = cause(exits)
    return found is not None and found.code == REFUSED and any(e.rank == 0 and e.code == REFUSED for e in exits)


def sentence(ended: WorkerExit, host: str, lost: str) -> str:
    """Without a full stop. lost: what ranks that lost contact have found out"""
    who = f"rank {ended.rank} on {host}"
    if ended.code < 0:
        last = f": {ended.last_line}" if ended.last_line and -ended.code not in (signal.SIGKILL, signal.SIGTERM) else ""
        text = f"{who} was killed ({signal_name(-ended.code)}){last}"
    elif ended.code == LOST:
        text = lost or ended.message or f"{who} lost contact with the others"
    elif ended.message:
        text = f"{who}: {ended.message}"
    elif ended.code == REFUSED and ended.last_line:
        text = f"{who}: {ended.last_line.removeprefix('plait: ')}"
    else:
        text = f"{who} ended with code {ended.code}" + (f": {ended.last_line}" if ended.last_line else "")
    return text.rstrip().removesuffix(".")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_line(text: str) -> str:
    lines = [PREFIX.sub("", line).strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line and not LOG_LINE.match(line)), "")
