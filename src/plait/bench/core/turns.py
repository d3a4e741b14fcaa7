"""How contenders take turns, and the spread of what was timed."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, TypeVar

Item = TypeVar("Item")
Row = dict[str, Any]
LEAST = 0.05  # seconds of a measurement


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of the repeats."""

    median: float
    low: float
    high: float

    def row(self, name: str, scale: float = 1.0) -> Row:
        """As columns of a table."""
        return {name: self.median * scale, "low": self.low * scale, "high": self.high * scale}


def spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return Spread(median(ordered), ordered[quarter], ordered[-1 - quarter])


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Spread:
    """How many times faster ours is: the spread of the ratios, turn by turn."""
    return spread(a / b for a, b in zip(theirs, ours, strict=True))


class Seconds(dict[str, list[float]]):
    """Seconds of a call, once per repeat, by contender."""

    def spread(self, name: str) -> Spread:
        return spread(self[name])

    def median(self, name: str) -> float:
        return self.spread(name).median

    def faster(self, name: str, than: str) -> Spread:
        """How many times faster a contender is than another one, turn by turn."""
        return ratio(self[than], self[name])

    def ms(self, suffix: str = " ms") -> Row:
        """The medians of all contenders in milliseconds."""
        return {f"{name}{suffix}": self.median(name) * 1e3 for name in self}


def in_turn(items: Sequence[Item], k: int) -> Sequence[Item]:
    """Forwards in even rounds, backwards in odd ones (A B C, C B A)."""
    return items[::-1] if k % 2 else items


def take_turns(
    contenders: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    warm: bool = True,
    least: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    rest: float = 0.0,
) -> Seconds:
    """Seconds that a call takes, once per repeat, measured over at least about `least` seconds, or LEAST.

    `warm`: each is called once before anything is measured, for that call compiles, or fills caches.
    `rest`: seconds of sleep before each measurement, followed by a call that does not count. The threads of some
    libraries spin for a while after a call, and would take a core from the next contender.
    """
    calls = {}
    for name, call in contenders.items():
        if warm:
            call()
        calls[name] = enough(call, LEAST if least is None else least, clock)
    seconds = Seconds({name: [] for name in contenders})
    for k in range(repeats):
        for name in in_turn(list(contenders), k):
            call = contenders[name]
            if rest:
                time.sleep(rest)
                call()  # wakes its own threads
            start = clock()
            for _ in range(calls[name]):
                call()
            seconds[name].append((clock() - start) / calls[name])
    return seconds


def enough(call: Callable[[], Any], least: float, clock: Callable[[], float] = time.perf_counter) -> int:
    """How many calls take at least that long. With `least` 0 it is one, and nothing is called to find out."""
    count, start = 0, clock()
    while clock() - start < least:
        call()
        count += 1
    return max(1, count)


class Laps:
    """Seconds of the phases of a step, once for each step that was timed."""

    def __init__(self, phases: Iterable[str]) -> None:
        self.phases, self.steps = list(phases), list[list[float]]()

    def walk(self, step: Callable[[], Iterator[None]]) -> None:
        """A step that yields where a phase ends."""
        marks = [time.perf_counter(), *(time.perf_counter() for _ in step())]
        self.steps.append([b - a for a, b in pairwise(marks)])

    def spreads(self) -> dict[str, Spread]:
        """Of each phase. The first step is left out: it compiles."""
        every = zip(*self.steps[1:], strict=True)
        return {phase: spread(seconds) for phase, seconds in zip(self.phases, every, strict=True)}

    def total(self) -> Spread:
        return spread(map(sum, self.steps[1:]))

    def shares(self) -> Row:
        """Of all steps, by phase, in %."""
        sums = [sum(seconds) for seconds in zip(*self.steps, strict=True)]
        return {f"{phase} %": s / sum(sums) * 100 for phase, s in zip(self.phases, sums, strict=True)}
