"""Where does the time of a step go? Two ranks; what they exchange; and what a schedule says."""

from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import fmean, median
from typing import NamedTuple

from ...ranks.cut import Cut
from ...ranks.data import Server, Shared
from ...ranks.schedule import Op, Span, Timeline, data, simulate
from ..core import Row
from .contender import Contender, Note
from .race import Job

Needs = Mapping[Op, Sequence[Op]]
PIPELINES = ("layers=2", "layers=2:micro=2")


class Share(NamedTuple):
    """Seconds of one rank in a step."""

    compute: float
    exposed: float  # communication that the rank had to wait for, or do itself
    wait: float  # until another rank has come as far


def spans_of(notes: Sequence[Note]) -> list[Span]:
    """The ops of all stages in one step."""
    return [Span(Op(*op), start, end) for note in notes for op, start, end in note.get("spans", ())]


def shares(notes: Sequence[Note], needs: Needs | None = None, update: float | None = None) -> list[Share]:
    """Of a step, from what each rank noted.

    needs: of a pipeline. A stage waits until the op that it needs is done, and then for the message.
    update: seconds of the optimizer, if one rank runs it for all, while the others wait
    """
    ended = {span.op: span.end for span in spans_of(notes)}
    slowest, found = max(note["backward"] for note in notes), []
    for rank, note in enumerate(notes):
        wait = slowest - note["backward"]
        exposed, before = note["exchanging"] + note["stepped"] - slowest, note["start"]
        for op, start, end in spans_of([note]):
            needed = (needs or {}).get(op, ())
            sent = [ended[other] for other in needed if other.place != op.place]
            if sent:
                ready = min(max(before, *sent), start)
                wait, exposed = wait + ready - before, exposed + start - ready
            before = end
        if update is not None:
            exposed += max(0.0, note["end"] - note["clipped"] - update)
            wait += update if rank else 0.0
        found.append(Share(note["end"] - note["start"] - exposed - wait, exposed, wait))
    return found


def data_simulated(notes: Sequence[Note], groups: Sequence[Sequence[int]], exchange: float) -> float:
    """Seconds of a step of data ranks, from a step without exchange, and the exchange alone.

    groups: sizes of the parameters whose gradients are added together, from the top down
    """
    cost, whole = dict[Op, float](), sum(map(sum, groups))
    for rank, note in enumerate(notes):
        before, arrived = note["start"], iter(note["arrived"])
        cost[Op("F", rank, 0, 0)] = 0.0  # it is counted with the first group
        for g, sizes in zip(reversed(range(len(groups))), groups, strict=True):
            ready = max(before, *islice(arrived, len(sizes))) if g else note["backward"]
            cost[Op("I", rank, 0, g)] = max(0.0, ready - before)
            cost[Op("R", rank, 0, g)] = exchange * sum(sizes) / whole
            before = ready
        cost[Op("U", rank, 0, 0)] = note["end"] - note["backward"]
    return simulate(data(len(notes), len(groups)), cost.__getitem__).total


def parts(job: Job, by: str) -> list[Row]:
    """Steps of one rank and of two, in all their ways, and parts of these steps alone."""
    task = job.text(by)
    costs = {ranks: job.costs(task, ranks) for ranks in (1, 2)}
    one, limit, by_data = job.alone(task), job.limit(task, 2), job.data(task, 2)
    by_layers = [job.together(name, task) for name in PIPELINES]
    one.cut = Cut((job.order.layers,), 1)  # a pipeline of one stage, in one chunk
    exchanges = {c: c.part("exchange") for c in (*by_data, *by_layers)}
    outsides = {c: c.part("outside") for c in (one, *by_layers)}
    job.race([one, limit, *exchanges, *exchanges.values(), *outsides.values()])
    if job.rank:  # the first rank has taken part in everything
        return []
    layout = task.rows(task.chosen[0])[2]
    lines = {c: cost.simulate(c.cut, layout) for c in outsides if c.cut and (cost := costs[c.ranks])}
    rows = list[Row]()
    for c, exchange in exchanges.items():
        needs = c.cut.schedule(c.cut.micros(layout)).needs if c.cut else None
        rows += share_rows(by, c, median(exchange.seconds), needs, limit)
    for c in (one, *exchanges):
        row: Row = {"mesh": c.name, "text": by}
        if c in outsides:
            alone = median(outsides[c].seconds)
            made = [alone + lines[c].total] * len(c.steps)
            row |= {"simulated ms": made[0] * 1e3, "outside ms": alone * 1e3}
        else:
            groups, alone = groups_of(c), median(exchanges[c].seconds)
            made = [data_simulated(notes, groups, alone) for notes in limit.notes]
            row |= {"simulated ms": median(made) * 1e3, "outside ms": None}
        off = median(a / b - 1 for a, b in zip(made, c.steps, strict=True))
        rows.append({**row, "measured ms": median(c.steps) * 1e3, "off %": off * 100})
    return rows + (wavefront(by_layers[0], lines[by_layers[0]]) if by == "streams" else [])


def share_rows(by: str, c: Contender, exchange: float, needs: Needs | None, limit: Contender) -> list[Row]:
    """Where the time of each rank goes: medians over all steps."""
    update = None
    if c.name.endswith("server"):
        update = median(note["end"] - note["clipped"] for notes in limit.notes for note in notes)
    found = zip(*(shares(notes, needs, update) for notes in c.notes), strict=True)
    ranks = [Share(*map(median, zip(*some, strict=True))) for some in found]
    busiest, mean = max(s.compute for s in ranks), fmean(s.compute for s in ranks)
    rows = []
    for rank, share in enumerate(ranks):
        row: Row = {"time of": c.name, "text": by, "rank": rank}
        row["step ms"] = median(c.steps) * 1e3
        row["compute"] = share.compute * 1e3
        row["exposed"] = share.exposed * 1e3
        row["hidden"] = max(0.0, exchange - share.exposed) * 1e3
        row["wait"] = share.wait * 1e3
        row["MB sent"] = median(step[rank]["sent"] for step in c.notes) / 2**20
        rows.append({**row, "busiest/mean": busiest / mean, "deviation": c.deviation})
    return rows


def groups_of(c: Contender) -> list[list[int]]:
    """Sizes of the parameters whose gradients are added together, from the top down."""
    sizes = [p.numel() for p in c.reducer.order]
    if isinstance(c.reducer, Shared):
        return [sizes[first:end] for first, end in c.reducer.groups]
    if isinstance(c.reducer, Server):
        return [sizes]  # all at the end; getting the weights back is part of the exchange
    return [[size] for size in sizes]


def wavefront(c: Contender, simulated: Timeline) -> list[Row]:
    """The step in the middle of all that were measured, and the same step simulated."""
    middle = sorted(zip(c.steps, range(len(c.steps)), strict=True))[len(c.steps) // 2][1]
    found = {"measured": Timeline(tuple(spans_of(c.notes[middle]))), "simulated": simulated}
    return [
        {"wavefront": title, "ms": line.total * 1e3, "idle %": line.bubble * 100, "spans": line.spans}
        for title, line in found.items()
    ]


def exchange(job: Job) -> list[Row]:
    """What ranks exchange in a step, with nothing computed."""
    task, some = job.text(), list[Contender]()
    for ranks in range(2, job.order.ranks + 1):
        some += [*job.data(task, ranks), *job.pipelines(task, ranks)]
    alone = [c.part("exchange") for c in some]
    seconds, rows = job.race(alone), []
    for c, part in zip(some, alone, strict=True):
        sent = max(note["sent"] for step in part.notes for note in step) / 2**20
        ms = seconds.spread(part.name).row("ms", 1e3)
        rows.append({"exchange alone": c.name, **ms, "MB sent": sent, **c.about})
    return rows
