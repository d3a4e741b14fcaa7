"""Where does the time of a step go? Two ranks, step by step; what they exchange; and what a schedule says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ..layout import Layout
from ..ranks.data import Shared
from ..ranks.measure import Costs
from ..ranks.picture import gantt
from ..ranks.plan import Plan
from ..ranks.schedule import Timeline
from .ranks_account import (
    Note,
    Notebook,
    Notes,
    Share,
    data_shares,
    data_simulated,
    layer_shares,
    server_simulated,
    spans_of,
)
from .ranks_race import Entry, Job, Row, Seconds
from .ranks_scaling import EXAMPLES, NAMES, ONE, Contender, data_ways, limit, reference, spread
from .ranks_text import Source
from .ranks_ways import Data, DataTalk, Layers, LayersRest, LayersTalk, costs_of, plan_of
from .report import timing

TWO = 2
TALK, REST, MICRO = "talk of ", "rest of ", ":micro=2"


def exchange(job: Job) -> list[Row]:
    """What ranks exchange in a step, with nothing computed."""
    some: list[tuple[str, int, Entry]] = []
    source, net = job.streams(size=1), job.net
    for ranks in range(2, job.order.ranks + 1):
        for name, entry in talks(job, source, ranks, None).items():
            some.append((name, ranks, entry))
    notes = Notebook()
    seconds = job.race([entry for _, _, entry in some], look=notes)
    sent = notes.all(job)
    return [
        {
            "exchange alone": name,
            **spread(timing([1e3 * s for s in seconds[entry.name]]), "ms"),
            "MB sent": max(note["sent"] for steps in sent[entry.name] for note in steps) / 2**20,
            "of MB": net.bytes / 2**20,
            "oversubscribed": job.is_oversubscribed(ranks),
        }
        for name, ranks, entry in some
    ]


def talks(job: Job, source: Source, ranks: int, plan: Plan | None) -> dict[str, Entry]:
    """By the name of the mesh. plan: of the pipeline, if there is one already."""
    net, found, mesh = job.net, dict[str, Entry](), job.mesh("data", ranks)
    for how, name in NAMES.items():
        way = DataTalk(net, mesh, how) if mesh else None
        if how != "auto" or job.everywhere(way is None or way.is_shared):
            found[name.format(ranks)] = Entry(f"{TALK}{name.format(ranks)}", way, source)
    if ranks <= job.order.layers:
        pipeline = job.mesh("layers", ranks)
        if pipeline and plan is None:
            some = [source.whole(0)]
            plan = plan_of(costs_of(net, pipeline, some), pipeline, some)
        name = f"layers={ranks}"
        found[name] = Entry(f"{TALK}{name}", LayersTalk(net, pipeline, plan) if pipeline and plan else None, source)
    return found


@dataclass(frozen=True)
class Found:
    """What two ranks did, in all their ways to train on some batches; parts of their steps; and one rank."""

    job: Job
    source: Source
    costs: Mapping[int, Sequence[Costs]]  # by the number of ranks that ran; measured before all steps, and after them
    contenders: Mapping[str, Contender]
    far: Mapping[str, float]  # from the loss and the gradients of one rank
    seconds: Seconds
    notes: Notes

    def steps(self, name: str) -> list[list[Note]]:
        """(step, rank)"""
        return [list(notes) for notes in zip(*self.notes[name], strict=True)]

    def step_seconds(self, name: str) -> list[float]:
        return [max(note["end"] for note in notes) - min(note["start"] for note in notes) for notes in self.steps(name)]

    def layout(self, step: int) -> Layout:
        return self.source.whole(step % self.source.size).layout

    def apart(self, kind: str, name: str) -> float:
        """Seconds of the exchange of a step, or of what is outside its schedule."""
        found = self.seconds.get(kind + name) or self.seconds[kind + name.removesuffix(MICRO)]
        return median(found) / self.source.size

    # --- rows
    def shares(self) -> list[Row]:
        """Where the time of each rank goes."""
        rows = list[Row]()
        update = median(note["end"] - note["clipped"] for notes in self.steps(limit(TWO)) for note in notes)
        for name, c in self.contenders.items():
            if name in (ONE, limit(TWO)):
                continue
            found: list[list[Share]] = []
            for k, notes in enumerate(self.steps(name)):
                if c.plan is not None:
                    needs = c.plan.schedule(c.plan.micros(self.layout(k))).needs
                    found.append(layer_shares(notes, needs))
                else:
                    found.append(data_shares(notes, update if name.endswith("server") else None))
            whole, talk = self.step_seconds(name), self.apart(TALK, name)
            ranks = [
                Share(*(median(part) for part in zip(*shares, strict=True))) for shares in zip(*found, strict=True)
            ]
            mean = sum(share.compute for share in ranks) / len(ranks)
            for rank, share in enumerate(ranks):
                rows.append(
                    {
                        "time of": name,
                        "text": self.source.name,
                        "rank": rank,
                        "step ms": median(whole) * 1e3,
                        "compute": share.compute * 1e3,
                        "exposed": share.exposed * 1e3,
                        "hidden": max(0.0, talk - share.exposed) * 1e3,
                        "wait": share.wait * 1e3,
                        "MB sent": median(note["sent"] for note in self.notes[name][rank]) / 2**20,
                        "busiest/mean": max(share.compute for share in ranks) / mean,
                        "deviation": self.far[name],
                    }
                )
        return rows

    def simulated(self) -> list[Row]:
        """A step put together from its parts, beside the step."""
        rows = list[Row]()
        for name, c in self.contenders.items():
            if name == limit(TWO):
                continue
            rest = self.apart(REST, name) if c.plan is not None else None
            made, took = self.made(name, c), self.step_seconds(name)
            off = [a / b - 1 for a, b in zip(made, took, strict=True)]
            rows.append(
                {
                    "mesh": name,
                    "text": self.source.name,
                    "simulated ms": median(made) * 1e3,
                    "outside ms": None if rest is None else rest * 1e3,
                    "measured ms": median(took) * 1e3,
                    "off %": median(off) * 100,
                }
            )
        return rows

    def made(self, name: str, c: Contender) -> list[float]:
        """Seconds of each step, simulated."""
        if c.plan is not None:
            rest, plan = self.apart(REST, name), c.plan
            each = [
                rest + fmean(costs.simulate(plan, self.layout(k)).total for costs in self.costs[c.ranks])
                for k in range(self.source.size)
            ]
            return [each[k % len(each)] for k in range(len(self.steps(name)))]
        alone = self.steps(limit(TWO))
        talk = self.steps(f"{TALK}{name}")
        push = median(max(n["finished"] for n in notes) - min(n["start"] for n in notes) for notes in talk)
        whole = median(self.seconds[f"{TALK}{name}"]) / self.source.size
        if name.endswith("server"):
            return [server_simulated(notes, push, whole - push) for notes in alone]
        way, parameters = c.entry.way, self.job.net.parameters
        assert isinstance(way, Data)
        count = len(parameters)
        if isinstance(way.reducer, Shared):
            groups = [[count - 1 - k for k in range(*group)] for group in way.reducer.groups]
        else:
            groups = [[k] for k in reversed(range(count))]
        return [data_simulated(notes, groups, [p.numel() for p in parameters], whole) for notes in alone]

    def timelines(self) -> dict[str, Timeline]:
        """Of the wavefront: of the step in the middle of all that were measured, and simulated."""
        name, c = "layers=2", self.contenders["layers=2"]
        took = self.step_seconds(name)
        middle = sorted(range(len(took)), key=took.__getitem__)[len(took) // 2]
        assert c.plan is not None
        simulated = self.costs[TWO][0].simulate(c.plan, self.layout(middle))
        return {"measured": Timeline(tuple(spans_of(self.steps(name)[middle]))), "simulated": simulated}


def observe(job: Job, source: Source) -> Found:
    net, costs = job.net, dict[int, list[Costs]]()
    some = [source.whole(k) for k in range(min(EXAMPLES, source.size))]

    def measure_costs() -> None:
        for ranks in (1, TWO):
            if mesh := job.mesh("layers", ranks):
                costs.setdefault(ranks, []).append(costs_of(net, mesh, some))

    measure_costs()
    single, pipeline = job.mesh("layers", 1), job.mesh("layers", TWO)
    whole = Plan((job.order.layers,), 1)
    found = [reference(job, net, source)._replace(plan=whole), *data_ways(job, net, source, TWO)]
    rests = [Entry(f"{REST}{ONE}", LayersRest(net, single, whole) if single else None, source)]
    for micro, name in ((1, "layers=2"), (2, f"layers=2{MICRO}")):
        plan = plan_of(costs[TWO][0], pipeline, some, micro) if pipeline else None
        ways = [kind(net, pipeline, plan) if pipeline and plan else None for kind in (Layers, LayersRest)]
        found.append(Contender(name, TWO, 1, Entry(name, ways[0], source), plan))
        rests.append(Entry(f"{REST}{name}", ways[1], source))
    entries = [c.entry for c in found]
    far = job.deviations(entries)
    apart = talks(job, source, TWO, found[-2].plan)
    notes = Notebook()
    seconds = job.race([*entries, *apart.values(), *rests], look=notes)
    measure_costs()
    return Found(job, source, costs, {c.name: c for c in found}, far, seconds, notes.all(job))


def parts(job: Job) -> list[Row]:
    rows = list[Row]()
    for source in (job.streams(), job.sentences()):
        found = observe(job, source)
        if job.rank == 0:  # it has taken part in everything
            rows += [*found.shares(), *found.simulated()]
            if source.name == "streams":
                timelines = found.timelines()
                job.picture = gantt({title: timeline.spans for title, timeline in timelines.items()})
                rows += [
                    {"wavefront": title, "ms": timeline.total * 1e3, "idle %": timeline.bubble * 100}
                    for title, timeline in timelines.items()
                ]
    return rows
