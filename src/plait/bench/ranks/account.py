"""Where the time of a step went, from the notes of its ranks; and steps simulated from parts that were timed alone.

All ranks are on one machine, and its clock is the same for all of them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...ranks.schedule import Op, Span, data, simulate
from .trainer import Note


class Share(NamedTuple):
    """Seconds of one rank in a step."""

    compute: float
    exposed: float  # communication that the rank had to wait for, or do itself
    wait: float  # until another rank has come as far


def spans_of(notes: Sequence[Note]) -> list[Span]:
    """The ops of all stages in one step."""
    return [Span(Op(*op), start, end) for note in notes for op, start, end in note["spans"]]


# --- shares of a step
def data_shares(notes: Sequence[Note], update: float | None = None) -> list[Share]:
    """Of a step of data ranks, from what each of them noted.

    update: seconds of the optimizer, if one rank runs it for all, while the others wait
    """
    slowest, found = max(note["backward"] for note in notes), []
    for rank, note in enumerate(notes):
        wait = slowest - note["backward"]
        exposed = note["exchanging"] + (note["stepped"] - note["backward"] - wait)
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
    slowest, found = max(note["backward"] for note in notes), []
    for note in notes:
        wait = slowest - note["backward"]
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
    """Seconds of a step of data ranks, from a step without exchange, and an exchange without computation.

    groups: the parameters whose gradients are added together, in the order of adding. sizes: of all parameters.
    """
    cost: dict[Op, float] = {}
    for rank, note in enumerate(notes):
        cost[Op("F", rank, 0, 0)] = note["forward"] - note["start"]
        before = note["forward"]
        for k, group in enumerate(groups):
            is_last = k == len(groups) - 1
            ready = note["backward"] if is_last else max(before, *(note["arrived"][p] for p in group))
            share = sum(sizes[p] for p in group) / sum(sizes)
            g = len(groups) - 1 - k
            cost[Op("I", rank, 0, g)], cost[Op("R", rank, 0, g)] = max(0.0, ready - before), exchange * share
            before = ready
        cost[Op("U", rank, 0, 0)] = note["end"] - note["backward"]
    return simulate(data(len(notes), len(groups)), cost.__getitem__).total
