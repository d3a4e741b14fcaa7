"""Who does what when, as data: schedules of several places, and a simulation of them.

A place is a stage of a pipeline, or a rank. A schedule only says in which order each place works, and what has to be
done elsewhere before. The code that runs a schedule, the simulation and the picture all read the same object.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from typing import NamedTuple

from ..errors import PlaitError, counted

KINDS = {
    "F": "forward",
    "D": "decoder",  # its rows: the loss, and the derivative of the decoder's input
    "I": "backward",  # to the input of the layers
    "W": "gradients of weights",
    "V": "gradients of the decoder's weights",
    "R": "sum over ranks",  # of gradients
    "U": "update",  # of the weights, by the optimizer
    # where ranks share the steps of a sequence out
    "A": "warm-up",
    "B": "warm-up backward",
    "S": "sweep",  # over all pieces, without a tape
    "C": "compare",  # what the ranks have; with multigrid, the coarse grids
}


class Op(NamedTuple):
    """What one place does without a pause."""

    kind: str  # one of KINDS
    place: int
    micro: int  # micro-batch
    chunk: int  # chunk of time; where ranks share the data, a group of gradients

    def __str__(self) -> str:  # 2F0.3: place 2, forward, micro-batch 0, chunk 3
        return f"{self.place}{self.kind}{self.micro}.{self.chunk}"


class Line(NamedTuple):
    main: tuple[Op, ...]  # in this order
    fill: tuple[Op, ...] = ()  # in this order, while `main` waits for a message, or after it


@dataclass(frozen=True)
class Schedule:
    """The lines of all places.

    An op is ready when all it needs is there. A place that is free takes the next op of `main` if it is ready, or else
    the next of `fill` if that one is ready, or else it waits for the first of the two. No op is skipped. So the order
    of additions, and with it the result, does not depend on how long anything takes.
    """

    lines: tuple[Line, ...]
    needs: Mapping[Op, tuple[Op, ...]]  # what must be done before an op; from elsewhere, a message
    eager: bool = False  # `fill` comes before `main`, not only in a wait

    def __post_init__(self) -> None:
        before: dict[Op, list[Op]] = {}  # all that an op comes after
        for place, line in enumerate(self.lines):
            if not line.main and not line.fill:
                raise PlaitError(f"place {place} has no op: expected something to do for each place.")
            for ops in line:
                for k, op in enumerate(ops):
                    if op.kind not in KINDS or op.place != place:
                        raise PlaitError(
                            f"{op} in line {place}: expected place {place}, and one of {', '.join(KINDS)}."
                        )
                    if op in before:
                        raise PlaitError(f"{op} is in the schedule twice: expected each op once.")
                    before[op] = [ops[k - 1]] if k else []
        for op, needed in self.needs.items():
            for other in (op, *needed):
                if other not in before:
                    raise PlaitError(f"needs of {op}: {other} is in no line; expected ops that some place does.")
            before[op] += needed
        try:
            TopologicalSorter(before).prepare()
        except CycleError as error:
            cycle = ", ".join(map(str, error.args[1]))
            raise PlaitError(f"a run would never end: {cycle} wait for each other; remove the cycle.") from None


# --- schedules


def wavefront(chunks: Sequence[int], stages: int, early: int = 0) -> Schedule:
    """A pipeline of layers: a stage works on one chunk of time, while the next stage works on the chunk before.

    chunks: how many there are in each micro-batch. All micro-batches go forward before the first backward. With two
    stages, one micro-batch of three chunks, and the same time for each op (0F2 is stage 0, forward, chunk 2):

        0F0 0F1 0F2  .   .   .  0I2 0W2 0I1 0W1 0I0 0W0
         .  1F0 1F1 1F2 1D2 1I2 1D1 1I1 1D0 1I0 1V2 1V1 1V0 1W2 1W1 1W0

    A chunk is decoded just before its backward pass: then the other stages have gradients of weights to compute between
    two chunks, and wait less. early: how many chunks are decoded in the forward pass, where the last stage would wait;
    with early=1 the second line is

         .  1F0 1D0 1F1 1F2 1D2 1I2 1D1 1I1 1I0 1V0 1V2 1V1 1W2 1W1 1W0
    """
    check_count("stages", stages)
    check_count("micro-batches", len(chunks))
    for m, count in enumerate(chunks):
        check_count(f"chunks of micro-batch {m}:", count)
    forward = [(m, k) for m, count in enumerate(chunks) for k in range(count)]
    backward = [(m, k) for m, count in enumerate(chunks) for k in reversed(range(count))]
    lines, needs, last = [], {}, stages - 1
    for s in range(stages):
        for m, k in forward:
            F, D, I, W, V = (Op(kind, s, m, k) for kind in "FDIWV")
            below, before, after = F._replace(place=s - 1), F._replace(chunk=k - 1), I._replace(chunk=k + 1)
            needs[F] = tuple(op for op in (below, before) if op.place >= 0 and op.chunk >= 0)
            needs[I] = (D if s == last else I._replace(place=s + 1), *((after,) if after.chunk < chunks[m] else ()))
            needs[W] = (I,)
            if s == last:
                needs |= {D: (F,), V: (D,)}
        main: list[Op] = []
        for n, (m, k) in enumerate(forward):
            main += [Op(kind, s, m, k) for kind in ("FD" if s == last and n < early else "F")]
        for m, k in backward:
            decode = s == last and Op("D", s, m, k) not in main
            main += [Op(kind, s, m, k) for kind in ("DI" if decode else "I")]
        fill = [op._replace(kind="V") for op in main if op.kind == "D"] + [Op("W", s, m, k) for m, k in backward]
        lines.append(Line(tuple(main), tuple(fill)))
    return Schedule(tuple(lines), needs)


def data(ranks: int, groups: int) -> Schedule:
    """Each rank has a share of the batch. It sums its share of every group of gradients as soon as all ranks have it.
    (One group: everything at the end, as with a server.)

    I stands for the backward pass of a group of layers. After each of its ops a rank sums what is there.
    With two ranks, two groups, and the same time for each op (0I1 is rank 0, backward, group 1):

        0F0 0I1 0R1 0I0 0R0 0U0
        1F0 1I1 1R1 1I0 1R0 1U0
    """
    check_count("ranks", ranks)
    check_count("groups", groups)
    order = range(groups - 1, -1, -1)
    ready = {g: tuple(Op("I", r, 0, g) for r in range(ranks)) for g in order}
    summed = tuple(Op("R", r, 0, g) for r in range(ranks) for g in order)
    lines, needs = [], {}
    for r in range(ranks):
        first, last = Op("F", r, 0, 0), Op("U", r, 0, 0)
        lines.append(Line((first, *(Op("I", r, 0, g) for g in order), last), tuple(Op("R", r, 0, g) for g in order)))
        needs.update({Op("R", r, 0, g): ready[g] for g in order})
        needs[last] = summed
    return Schedule(tuple(lines), needs, eager=True)


def check_count(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise PlaitError(f"{name} {value!r}: must be a whole number of at least 1.")


# --- shares of work


def split(costs: Sequence[float], stages: int, first: float = 0, last: float = 0) -> tuple[int, ...]:
    """Consecutive layers of each stage. first, last: work beside the layers"""
    check_count("number of layers", len(costs))
    check_count("stages", stages)
    if stages > len(costs):
        raise PlaitError(
            f"layers={stages}: the network has {counted(len(costs), 'layer')}, and every stage needs one: "
            f"use layers={len(costs)} or fewer."
        )
    work = [*costs]
    work[0] += first
    work[-1] += last
    return tuple(b - a for a, b in pairwise(balance(work, stages)))


def balance(work: Sequence[float], chunks: int) -> tuple[int, ...]:
    """Cuts steps with so much work each into chunks, none of them empty -> their bounds: 0, ..., T.

    No others have a largest chunk with less work. The rest is about even: no bound alone can be moved so that the
    larger of the two chunks beside it becomes smaller. If there are fewer steps than chunks, each step is a chunk.
    """
    check_count("steps", len(work))
    check_count("chunks", chunks)
    for t, w in enumerate(work):
        if not 0 <= w < math.inf:
            raise PlaitError(f"work {w} of number {t}, counted from 0: expected a number that is 0 or more.")
    T, K = len(work), min(chunks, len(work))
    done = [0, *accumulate(work)]  # (T + 1,): the work of all steps before each
    limit = smallest_limit(done, K)
    earliest = [T]  # bounds from the last on: the rest fits into the chunks left
    for k in range(K - 1, 0, -1):
        earliest.append(max(k, nearest(done, earliest[-1], limit)))
    bounds = [0]
    for k, least in zip(range(1, K), reversed(earliest[1:]), strict=True):
        a = bounds[-1]
        least, most = max(least, a + 1), min(furthest(done, a, limit), T - (K - k))
        even = done[T] * k / K
        b = min(max(bisect_left(done, even), least), most)
        bounds.append(b - 1 if b > least and even - done[b - 1] <= done[b] - even else b)
    return tuple(evened(done, [*bounds, T]))


def evened(done: Sequence[float], bounds: list[int]) -> list[int]:
    """Moves each bound to where the larger of the two chunks beside it is least, until none moves any more.

    A move replaces two chunks by two that are both smaller than the larger of them. So no chunk ever exceeds the one
    that was the largest, and this ends.
    """
    before: list[int] = []
    while before != bounds:
        before = [*bounds]
        for k in range(1, len(bounds) - 1):
            first, last = bounds[k - 1], bounds[k + 1]

            def larger(b: int, first: int = first, last: int = last) -> float:
                return max(done[b] - done[first], done[last] - done[b])

            middle = bisect_left(done, (done[first] + done[last]) / 2, first + 1, last - 1)
            bounds[k] = min(bounds[k], middle, max(middle - 1, first + 1), key=larger)
    return bounds


def smallest_limit(done: Sequence[float], chunks: int) -> float:
    """The least work that the largest chunk can have."""

    def fits(limit: float) -> bool:
        bound = 0
        for _ in range(chunks):
            bound = furthest(done, bound, limit)
        return bound == len(done) - 1

    low, high = 0.0, float(done[-1])
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def furthest(done: Sequence[float], start: int, limit: float) -> int:
    """The last bound up to which a chunk with this start stays within the limit."""
    return bisect_right(done, limit, lo=start, key=lambda d: d - done[start]) - 1


def nearest(done: Sequence[float], end: int, limit: float) -> int:
    """The first bound from which a chunk with this end stays within the limit."""
    return bisect_left(done, -limit, hi=end, key=lambda d: d - done[end])


# --- time


class Span(NamedTuple):
    op: Op
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        if not self.spans:
            raise PlaitError("a timeline without spans: expected at least one op that ran.")

    @cached_property
    def places(self) -> int:
        return 1 + max(span.op.place for span in self.spans)

    @cached_property
    def total(self) -> float:
        return max(span.end for span in self.spans) - min(span.start for span in self.spans)

    @cached_property
    def _busy(self) -> list[float]:
        seconds = [0.0] * self.places
        for op, start, end in self.spans:
            seconds[op.place] += end - start
        return seconds

    def busy(self, place: int) -> float:
        return self._busy[place]

    def waiting(self, place: int) -> float:
        return self.total - self._busy[place]

    @property
    def bubble(self) -> float:
        """The share of the time in which nothing ran, 0 to 1."""
        return 1 - sum(self._busy) / (self.places * self.total) if self.total else 0.0


ENDS, LOOKS = 0, 1  # events of a place; at any time, all ends come before all looks


def simulate(
    schedule: Schedule, cost: Callable[[Op], float], link: Callable[[Op, Op], float] = lambda a, b: 0.0
) -> Timeline:
    """cost: seconds of an op. link: seconds of the message from `a` to `b`"""
    queues = [[deque(ops) for ops in (reversed(line) if schedule.eager else line)] for line in schedule.lines]
    missing = {op: len(schedule.needs.get(op, ())) for line in schedule.lines for ops in line for op in ops}
    there = dict.fromkeys(missing, 0.0)  # when all that has been sent for an op has come
    followers: dict[Op, list[Op]] = {op: [] for op in missing}
    for follower, needed in schedule.needs.items():
        for op in needed:
            followers[op].append(follower)
    spans: list[Span] = []
    running: list[Op | None] = [None] * len(queues)
    events = [(0.0, LOOKS, place) for place in range(len(queues))]  # a heap
    while events:
        now, event, place = heappop(events)
        ended = running[place]
        if ended is None:
            heads = [queue for queue in queues[place] if queue and not missing[queue[0]]]
            ready = [queue for queue in heads if there[queue[0]] <= now]
            if ready:
                op = running[place] = ready[0].popleft()
                spans.append(Span(op, now, now + seconds(cost(op), op)))
                heappush(events, (spans[-1].end, ENDS, place))
            elif heads:
                heappush(events, (min(there[queue[0]] for queue in heads), LOOKS, place))
        elif event == ENDS:
            running[place] = None
            heappush(events, (now, LOOKS, place))
            for op in followers[ended]:
                come = now + (seconds(link(ended, op), ended, op) if op.place != place else 0)
                there[op] = max(there[op], come)
                missing[op] -= 1
                if not missing[op] and running[op.place] is None:
                    heappush(events, (there[op], LOOKS, op.place))
    return Timeline(tuple(spans))


def seconds(value: float, *ops: Op) -> float:
    if not 0 <= value < math.inf:
        raise PlaitError(f"{' to '.join(map(str, ops))} takes {value} seconds: expected a number that is 0 or more.")
    return value
