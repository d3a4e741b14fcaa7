"""Where does the time of a step go? Two ranks, step by step; what they exchange; and what a schedule says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ...layout import Layout
from ...ranks.cut import Cut
from ...ranks.data import Server, Shared
from ...ranks.measure import PipelineCosts
from ...ranks.schedule import Timeline
from ..core.turns import Row
from .account import Share, data_shares, data_simulated, layer_shares, spans_of
from .race import ONE, Job, Race, limit_of
from .scaling import pipelines
from .text import Text
from .trainer import Contender, Trainer

TWO = 2
MICRO = "layers=2:micro=2"
EXCHANGE, OUTSIDE = "exchange", "outside"  # of a step: parts that are timed by themselves
LIMIT = limit_of(TWO)


def exchange(job: Job) -> list[Row]:
    """What ranks exchange in a step, with nothing computed."""
    task, some = job.text(size=1), list[Contender]()
    for ranks in range(2, job.order.ranks + 1):
        some += [*job.data(task, ranks), *pipelines(job, task, ranks)]
    race = job.race([c.part(EXCHANGE, Trainer.exchange) for c in some])
    rows = list[Row]()
    for c in some:
        name = f"{EXCHANGE} of {c.name}"
        sent = max(note["sent"] for step in race.notes[name] for note in step)
        size = {"MB sent": sent / 2**20, "of MB": task.bytes / 2**20}
        rows.append({"exchange alone": c.name, **race.seconds.spread(name).row("ms", 1e3), **size, **c.about})
    return rows


@dataclass(frozen=True)
class Found:
    """What one rank and two ranks did, in all their ways to train on some batches, and parts of their steps."""

    task: Text
    costs: Mapping[int, Sequence[PipelineCosts]]  # by the number of ranks that ran; before all steps, and after
    contenders: Mapping[str, Contender]
    far: Mapping[str, float]  # from the loss and the gradients of one rank
    race: Race

    def layout(self, step: int) -> Layout:
        return self.task.layout(step % self.task.size)

    def part(self, part: str, name: str) -> float:
        """Seconds of a part of a step that was timed by itself."""
        return self.race.seconds.median(f"{part} of {name}") / self.task.size

    # --- rows
    def shares(self) -> list[Row]:
        """Where the time of each rank goes."""
        rows = list[Row]()
        for name, c in self.contenders.items():
            if name in (ONE, LIMIT):
                continue
            ranks = self.shares_of(c)
            exchange = self.part(EXCHANGE, name)
            whole, mean = median(self.race.steps(name)), fmean(share.compute for share in ranks)
            for rank, share in enumerate(ranks):
                rows.append(
                    {
                        "time of": name,
                        "text": self.task.by,
                        "rank": rank,
                        "step ms": whole * 1e3,
                        "compute": share.compute * 1e3,
                        "exposed": share.exposed * 1e3,
                        "hidden": max(0.0, exchange - share.exposed) * 1e3,
                        "wait": share.wait * 1e3,
                        "MB sent": median(step[rank]["sent"] for step in self.race.notes[name]) / 2**20,
                        "busiest/mean": max(share.compute for share in ranks) / mean,
                        "deviation": self.far[name],
                    }
                )
        return rows

    def shares_of(self, c: Contender) -> list[Share]:
        """Of each rank: the medians over all steps."""
        update = None
        if c.name.endswith("server"):
            update = median(note["end"] - note["clipped"] for notes in self.race.notes[LIMIT] for note in notes)
        found = list[list[Share]]()
        for k, notes in enumerate(self.race.notes[c.name]):
            if c.cut is not None:
                found.append(layer_shares(notes, c.cut.schedule(c.cut.micros(self.layout(k))).needs))
            else:
                found.append(data_shares(notes, update))
        return [Share(*map(median, zip(*shares, strict=True))) for shares in zip(*found, strict=True)]

    def simulated(self) -> list[Row]:
        """A step put together from its parts, beside the step."""
        rows = list[Row]()
        for name, c in self.contenders.items():
            if name == LIMIT:
                continue
            made, took = self.made(c), self.race.steps(name)
            rows.append(
                {
                    "mesh": name,
                    "text": self.task.by,
                    "simulated ms": median(made) * 1e3,
                    "outside ms": None if c.cut is None else self.part(OUTSIDE, name) * 1e3,
                    "measured ms": median(took) * 1e3,
                    "off %": median(a / b - 1 for a, b in zip(made, took, strict=True)) * 100,
                }
            )
        return rows

    def made(self, c: Contender) -> list[float]:
        """Seconds of each step, simulated."""
        if c.cut is not None:
            outside, cut = self.part(OUTSIDE, c.name), c.cut
            each = [
                outside + fmean(costs.simulate(cut, self.layout(k)).total for costs in self.costs[c.ranks])
                for k in range(self.task.size)
            ]
            return [each[k % len(each)] for k in range(len(self.race.notes[c.name]))]
        assert c.trainer is not None
        assert c.trainer.together is not None
        sizes, reducer = [p.numel() for p in c.trainer.parameters], c.trainer.together.reducer
        groups = [(k, k + 1) for k in range(len(sizes))]
        if isinstance(reducer, Shared):
            groups = reducer.groups
        elif isinstance(reducer, Server):
            groups = [(0, len(sizes))]  # all at the end; getting the weights back is part of the exchange
        top_down = [list(reversed(range(len(sizes))))[a:b] for a, b in groups]
        exchange = self.part(EXCHANGE, c.name)
        return [data_simulated(notes, top_down, sizes, exchange) for notes in self.race.notes[LIMIT]]

    def wavefront(self) -> list[Row]:
        """The step in the middle of all that were measured, and the same step simulated."""
        name, took = "layers=2", self.race.steps("layers=2")
        middle = sorted(range(len(took)), key=took.__getitem__)[len(took) // 2]
        cut = self.contenders[name].cut
        assert cut is not None
        found = {
            "measured": Timeline(tuple(spans_of(self.race.notes[name][middle]))),
            "simulated": self.costs[TWO][0].simulate(cut, self.layout(middle)),
        }
        return [
            {"wavefront": title, "ms": line.total * 1e3, "idle %": line.bubble * 100, "spans": line.spans}
            for title, line in found.items()
        ]


def observe(job: Job, task: Text) -> Found:
    costs: dict[int, list[PipelineCosts]] = {1: [], TWO: []}

    def measure_costs() -> None:
        for ranks, found in costs.items():
            found += [some] if (some := job.costs(task, ranks)) else []

    measure_costs()
    before = costs[TWO][0] if costs[TWO] else None
    one = job.alone(task, cut=Cut((job.order.layers,), 1))  # a pipeline of one stage, in one chunk
    by_data = job.data(task, TWO)
    cuts = {name: job.cut(before, task, TWO, micro) for micro, name in ((1, "layers=2"), (2, MICRO))}
    by_layers = [job.together(name, task, cut) for name, cut in cuts.items()]
    some = [one, job.limit(task, TWO), *by_data, *by_layers]
    far = job.deviations(some)
    exchanges = [c.part(EXCHANGE, Trainer.exchange) for c in (*by_data, *by_layers)]
    outside = [c.part(OUTSIDE, Trainer.outside) for c in (one, *by_layers)]
    race = job.race([*some, *exchanges, *outside])
    measure_costs()
    return Found(task, costs, {c.name: c for c in some}, far, race)


def parts(job: Job, by: str) -> list[Row]:
    found = observe(job, job.text(by))
    if job.rank:  # the first rank has taken part in everything
        return []
    return [*found.shares(), *found.simulated(), *(found.wavefront() if by == "streams" else [])]
