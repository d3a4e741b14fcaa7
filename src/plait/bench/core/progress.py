"""A line at least every 5 seconds while a question is measured: how long it has taken, and how far it is.

A thread writes it, so that no measurement has to. It sleeps in between, and takes no time from what is timed.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
EVERY = 4.0  # seconds, so that a thread that wakes up late is still in time
places: list[str] = []  # how far the loops are that this process is in, the outer one first


@contextmanager
def lines(every: float | None = None, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """On stderr; in one place on a terminal."""
    done, start = threading.Event(), clock()
    in_place = sys.stderr.isatty()

    def write() -> None:
        while not done.wait(EVERY if every is None else every):
            text = ", ".join(["plait: measuring", f"{clock() - start:.0f} s", *places])
            print(*(["\r\x1b[K", text] if in_place else [text, "\n"]), sep="", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if in_place:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def tracked(items: Sequence[Item]) -> Iterator[Item]:
    """The items; the lines say which of them is measured."""
    depth = len(places)
    try:
        for k, item in enumerate(items, 1):
            places[depth:] = [f"{k} of {len(items)}"]
            yield item
    finally:
        del places[depth:]
