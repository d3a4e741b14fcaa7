"""What the steps of several ranks say about themselves: shares of time, and steps put together again from their parts.

All ranks are on one machine, and its clock is the same for all of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..ranks import schedule
from ..ranks.schedule import Op, Span
from ..ranks.talk import tell_all
from .ranks_race import Job
from .ranks_ways import Layers, Way

Note = dict[str, Any]  # of a step, on one rank: its marks, what was sent, and the ops of a stage
Notes = Mapping[str, Sequence[Sequence[Note]]]  # by contender: (rank, step), only of ranks that take part


class Share(NamedTuple):
    """Seconds of one rank in a step."""

    compute: float
    exposed: float  # communication that the rank had to wait for, or do itself
    wait: float  # for another rank to come so far


# --- taking notes
class Notebook:
    """Keeps what a step leaves behind, of each contender."""

    def __init__(self) -> None:
        self.pages: dict[str, list[Note]] = {}

    def __call__(self, name: str, way: Way) -> None:
        note = {**way.marks, "sent": way.sent}
        if isinstance(way, Layers):
            note["spans"] = [[*span.op, span.start, span.end] for span in way.spans]
        self.pages.setdefault(name, []).append(note)

    def all(self, job: Job) -> Notes:
        found: dict[str, list[list[Note]]] = {}
        for pages in tell_all(self.pages, job.everyone):
            for name, notes in pages.items():
                found.setdefault(name, []).append(notes)
        return found


def spans_of(notes: Sequence[Note]) -> list[Span]:
    """The ops of all stages in one step."""
    return [Span(Op(*values[:4]), *values[4:]) for note in notes for values in note["spans"]]


# --- shares of a step
def data_shares(notes: Sequence[Note], update: float | None = None) -> list[Share]:
    """Of a step of data ranks, from what each of them noted.

    update: seconds of the optimizer, if one rank runs it for all, while the others wait
    """
    slowest, found = max(note["back"] for note in notes), []
    for rank, note in enumerate(notes):
        wait = slowest - note["back"]
        exposed = note["talked"] + (note["stepped"] - note["back"] - wait)
        if update is not None:
            exposed += max(0.0, note["end"] - note["clipped"] - update)
            wait += update if rank else 0.0
        found.append(Share(note["end"] - note["start"] - exposed - wait, exposed, wait))
    return found


def layer_shares(notes: Sequence[Note], needs: Mapping[Op, Sequence[Op]]) -> list[Share]:
    """Of a step of a pipeline. A stage that has nothing to do waits until the op that it needs is done elsewhere, and
    then for the message.
    """
    ended = {span.op: span.end for span in spans_of(notes)}
    slowest, found = max(note["back"] for note in notes), []
    for note in notes:
        wait = slowest - note["back"]
        exposed, before = note["stepped"] - slowest, note["start"]
        for op, start, end in spans_of([note]):
            sent = [ended[other] for other in needs.get(op, ()) if other.place != op.place]
            if sent:
                ready = min(max(before, *sent), start)
                wait, exposed = wait + ready - before, exposed + start - ready
            before = end
        found.append(Share(note["end"] - note["start"] - exposed - wait, exposed, wait))
    return found


# --- steps put together from parts
def data_simulated(
    notes: Sequence[Note], groups: Sequence[Sequence[int]], sizes: Sequence[int], exchange: float
) -> float:
    """Seconds of a step by data ranks, from a step without exchange, and an exchange without computation.

    groups: the parameters whose gradients are added together, in the order of adding. sizes: of all parameters.
    """
    cost: dict[Op, float] = {}
    for rank, note in enumerate(notes):
        cost[Op("F", rank, 0, 0)] = note["forward"] - note["start"]
        before = note["forward"]
        for k, group in enumerate(groups):
            there = max(before, *(note["there"][p] for p in group)) if k < len(groups) - 1 else note["back"]
            part = sum(sizes[p] for p in group) / sum(sizes)
            g = len(groups) - 1 - k
            cost[Op("I", rank, 0, g)], cost[Op("R", rank, 0, g)] = max(0.0, there - before), exchange * part
            before = there
        cost[Op("U", rank, 0, 0)] = note["end"] - note["back"]
    return schedule.simulate(schedule.data(len(notes), len(groups)), cost.__getitem__).total


def server_simulated(notes: Sequence[Note], push: float, pull: float) -> float:
    cost = {Op("R", 0, 0, 0): push, Op("U", 0, 0, 0): notes[0]["end"] - notes[0]["back"]}
    for rank, note in enumerate(notes):
        cost[Op("F", rank, 0, 0)] = note["forward"] - note["start"]
        cost[Op("I", rank, 0, 0)] = note["back"] - note["forward"]
        cost[Op("G", rank, 0, 0)] = pull
    return schedule.simulate(schedule.server(len(notes)), cost.__getitem__).total
