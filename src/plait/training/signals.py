"""Ctrl-C and SIGTERM, from the first import to the last line: one plain line, exit code 130, nothing half written.

The process ends inside the handler. An exception could get lost on its way: the import of a C library may turn
it into another one, a destructor prints it and goes on. While a network trains, `Interrupt` takes its place.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)
resume_command = ""  # the command that goes on with the run under way, once there is one
held = 0  # how many blocks of `whole` are under way
asked = False  # whether a signal came meanwhile


def listen() -> None:
    """For the command line alone: programs have handlers of their own."""
    for number in NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # a shell's background jobs ignore Ctrl-C
            signal.signal(number, stop)


def ignore() -> None:
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def stop(number: int, frame: FrameType | None) -> None:
    global asked
    asked = True
    if not held:
        leave()


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """A signal that comes within this block takes effect at its end."""
    global held
    held += 1
    try:
        yield
    finally:
        held -= 1
        if asked and not held:
            leave()


def leave() -> None:
    try:
        ignore()
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # it may have been in the middle of a print
            sys.stdout.flush()
        cursor = "\x1b[?25h\n" if os.isatty(2) else ""  # a bar hides it
        os.write(
            2, os.fsencode(f"{cursor}plait: stopped{'; go on with ' + resume_command if resume_command else ''}.\n")
        )
    finally:
        os._exit(130)  # whatever has become of stdout and stderr


class Interrupt:
    """Stops the loop after the step under way; a second signal stops at once."""

    def __enter__(self) -> "Interrupt":
        self.asked = False
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            heard = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
            self.before = {s: signal.signal(s, self.ask) for s in heard}
        return self

    def ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(number, self.before[number])

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
