"""How much faster do more ranks train? Strong and weak scaling, padding and pipeline together, more computation."""

from collections.abc import Sequence
from typing import NamedTuple

from ..data import buckets
from ..data.sampler import Sampler
from ..layout import Layout
from ..ranks.measure import CHUNKS, Costs
from ..ranks.plan import Plan
from ..ranks.schedule import split
from .bucketing import Scheme
from .ranks_race import Entry, Job, Row, Seconds
from .ranks_text import SchemeBatches, Source
from .ranks_ways import Data, Layers, Limit, Net, costs_of, plan_of
from .report import Timing, ratio, timing

ONE = "1 rank"
EXAMPLES = 2  # batches with which a pipeline is planned
NAMES = {"auto": "data={}", "network": "data={}:network", "server": "data={}:server"}  # as --parallel has them
EQUAL = ", equal split"


class Contender(NamedTuple):
    name: str
    ranks: int
    threads: int
    entry: Entry
    plan: Plan | None = None

    @property
    def workers(self) -> int:
        return self.ranks * self.threads


def karp_flatt(speed_up: float, workers: int) -> float | None:
    """The part of the work that seems to be serial: 0 if all workers are used in full, 1 if they bring nothing."""
    return (1 / speed_up - 1 / workers) / (1 - 1 / workers) if workers > 1 else None


# --- the contenders
def limit(ranks: int) -> str:
    return f"{ranks} ranks, no exchange"


def reference(job: Job, net: Net, source: Source) -> Contender:
    return Contender(ONE, 1, 1, Entry(ONE, job.alone(net), source))


def threads_of(job: Job, net: Net, source: Source, threads: int) -> Contender:
    name = f"{threads} threads"
    return Contender(name, 1, threads, Entry(name, job.alone(net, threads), source))


def data_ways(job: Job, net: Net, source: Source, ranks: int, hows: Sequence[str] = tuple(NAMES)) -> list[Contender]:
    """The limit, and what comes near it."""
    mesh, name = job.mesh("data", ranks), limit(ranks)
    found = [Contender(name, ranks, 1, Entry(name, Limit(net, job.rank, ranks) if mesh else None, source, False))]
    for how in hows:
        way, name = Data(net, mesh, how) if mesh else None, NAMES[how].format(ranks)
        if how != "auto" or job.everywhere(way is None or way.is_shared):
            found.append(Contender(name, ranks, 1, Entry(name, way, source)))
        elif way is not None:
            job.remark(f"data={ranks} by shared memory is left out: it would go by {way.by}.")
    return found


def layer_ways(job: Job, net: Net, source: Source, ranks: int, equal: bool = False) -> list[Contender]:
    """equal: also with as many layers in each stage."""
    if ranks > len(net.network.layers):
        return []
    mesh, names = job.mesh("layers", ranks), [f"layers={ranks}", *([f"layers={ranks}{EQUAL}"] if equal else [])]
    plans: list[Plan | None] = [None, None]
    if mesh:
        some = [source.whole(k) for k in range(min(EXAMPLES, source.size))]
        costs = costs_of(net, mesh, some)
        plan = plan_of(costs, mesh, some)
        plans = [plan, equal_plan(costs, plan, [rows.layout for rows in some])]
    return [
        Contender(name, ranks, 1, Entry(name, Layers(net, mesh, plan) if mesh and plan else None, source), plan)
        for name, plan in zip(names, plans, strict=False)
    ]


def equal_plan(costs: Costs, plan: Plan, layouts: Sequence[Layout]) -> Plan:
    """The best of those that give each stage as many layers, or one more."""
    counts, most = split([1.0] * sum(plan.split), len(plan.split)), max(layout.T for layout in layouts)
    some = [plan._replace(split=counts, chunks=c) for c in CHUNKS if c <= most]
    return min(some, key=lambda p: sum(costs.simulate(p, layout).total for layout in layouts))


def raced(job: Job, contenders: Sequence[Contender]) -> Seconds:
    return job.race([c.entry for c in contenders])


def spread(found: Timing, name: str) -> Row:
    return {name: found.median, "low": found.low, "high": found.high}


def scaled(found: Timing, factor: float) -> Timing:
    return Timing(found.median * factor, found.low * factor, found.high * factor)


# --- the questions
def strong(job: Job) -> list[Row]:
    """The same batch for any number of ranks."""
    rows, net = list[Row](), job.net
    for source in (job.streams(), job.sentences()):
        some = [reference(job, net, source)]
        for ranks in range(2, job.order.ranks + 1):
            some += data_ways(job, net, source, ranks)
            some.append(threads_of(job, net, source, ranks))
            some += layer_ways(job, net, source, ranks, equal=source.name == "streams")
        far = job.deviations([c.entry for c in some])
        seconds = raced(job, some)
        for c in some:
            name = c.entry.name
            faster = ratio(seconds[ONE], seconds[name])
            took = timing([1e3 * s / source.size for s in seconds[name]])
            alone = seconds.get(limit(c.workers))
            row = {
                "text": source.name,
                "ranks": c.ranks,
                "threads": c.threads,
                "ms": took.median,
                "ms low": took.low,
                "ms high": took.high,
                **spread(faster, "speed-up"),
                "oversubscribed": job.is_oversubscribed(c.workers),
                "deviation": far.get(name),
            }
            if c.plan is not None and source.name == "streams":
                how = "equal" if EQUAL in c.name else "as measured"
                cut = {"layers of each": " + ".join(map(str, c.plan.split)), "chunks": c.plan.chunks}
                rows.append({"split": f"layers={c.ranks}, {how}", **cut, **row})
            if EQUAL not in c.name:
                scores = {
                    "efficiency": faster.median / c.workers,
                    "Karp-Flatt": karp_flatt(faster.median, c.workers),
                    "of limit %": None if alone is None else ratio(alone, seconds[name]).median * 100,
                }
                rows.append({"strong scaling": c.name, **row, **scores})
    return rows


def weak(job: Job) -> list[Row]:
    """As much for each rank, however many there are."""
    rows, net, batch = list[Row](), job.net, job.order.batch
    for make in (job.streams, job.sentences):
        alone = make(batch, 1)
        some = [reference(job, net, alone)]
        for ranks in range(2, job.order.ranks + 1):
            source = make(batch * ranks, 1)
            some += data_ways(job, net, source, ranks)
            some.append(threads_of(job, net, source, ranks))
            some += layer_ways(job, net, source, ranks)
        seconds = raced(job, some)
        for c in some:
            tokens, took = c.entry.source.tokens, seconds[c.entry.name]
            share = scaled(ratio(seconds[ONE], took), 100 * tokens / (c.workers * alone.tokens))
            rows.append(
                {
                    "weak scaling": c.name,
                    "text": alone.name,
                    "ranks": c.ranks,
                    "threads": c.threads,
                    "batch": batch * c.workers,
                    "tokens/s each": tokens / timing(took).median / c.workers,
                    **spread(share, "of 1 rank %"),
                    "oversubscribed": job.is_oversubscribed(c.workers),
                }
            )
    return rows


def padding(job: Job) -> list[Row]:
    """Padding left out, and a pipeline: each by itself, and together."""
    order, corpus, net = job.order, job.corpus, job.net
    lengths = corpus.parts["train"].lengths

    def scheme(boundaries: Sequence[int] | None) -> Scheme:
        sampler = Sampler(lengths, order.batch, order.seed, boundaries=boundaries)
        return Scheme(corpus, sampler, boundaries is not None, order.chosen)

    schemes = {
        "padded to the longest": scheme(buckets.none(lengths)),
        "greedy buckets": scheme(buckets.greedy(lengths, order.batch)),
        "ragged": scheme(None),
    }
    sources = [SchemeBatches(name, some) for name, some in schemes.items()]
    some = [Contender(ONE, 1, 1, Entry(f"{ONE} {s.name}", job.alone(net), s)) for s in sources]
    for source in sources:
        for c in layer_ways(job, net, source, 2):
            some.append(c._replace(entry=c.entry._replace(name=f"layers {source.name}")))
    seconds, epochs = raced(job, some), dict[str, list[float]]()
    for c in some:
        assert isinstance(c.entry.source, SchemeBatches)
        cut = c.entry.source.scheme
        epochs[c.entry.name] = [t * cut.epoch_slots / cut.chosen_slots for t in seconds[c.entry.name]]
    slowest = epochs[some[0].entry.name]
    return [
        {
            "padding": c.entry.source.name,
            "ranks": c.ranks,
            "padding %": schemes[c.entry.source.name].padding * 100,
            "s/epoch": timing(epochs[c.entry.name]).median,
            **spread(ratio(slowest, epochs[c.entry.name]), "faster"),
        }
        for c in some
    ]


def computation(job: Job) -> list[Row]:
    """Data ranks exchange as much for a small batch as for a large one: more computation hides more of it."""
    rows = []
    for batch, hidden in job.order.variants:
        net = job.net if hidden == job.order.hidden else job.make(hidden=hidden)
        source = job.streams(batch, 1)
        some = [reference(job, net, source), *data_ways(job, net, source, 2, ("auto", "network"))]
        seconds = raced(job, some)
        alone = seconds[limit(2)]
        for c in some[2:]:
            took = seconds[c.entry.name]
            rows.append(
                {
                    "more computation": c.name,
                    "batch": batch,
                    "units": hidden,
                    "MB": net.bytes / 2**20,
                    **spread(ratio(seconds[ONE], took), "speed-up"),
                    "without exchange": ratio(seconds[ONE], alone).median,
                    "of that %": ratio(alone, took).median * 100,
                }
            )
        del net, some
    return rows
