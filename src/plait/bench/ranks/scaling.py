"""How much faster do more ranks train? Strong and weak scaling, padding and pipeline together, more computation."""

from collections.abc import Sequence
from dataclasses import replace

from ...data import buckets
from ...data.sampler import Sampler
from ...layout import Layout
from ...ranks.cut import Cut
from ...ranks.measure import CHUNKS, PipelineCosts
from ...ranks.schedule import split
from ..bucketing.measure import Scheme
from ..core.turns import Row, ratio, spread
from .race import ONE, WAYS, Job, limit_of
from .text import Padded, Text
from .trainer import Contender

EQUAL = ", equal split"


def karp_flatt(speed_up: float, workers: int) -> float | None:
    """The serial fraction of the work: 0 if all workers are used in full, 1 if they bring nothing."""
    return (1 / speed_up - 1 / workers) / (1 - 1 / workers) if workers > 1 else None


# --- contenders
def contenders(job: Job, task: Text, ranks: int, equal: bool = False) -> list[Contender]:
    """The limit of data ranks, all meshes of so many ranks, and one process with as many threads."""
    by_data, by_threads = job.data(task, ranks), job.alone(task, threads=ranks)
    return [job.limit(task, ranks), *by_data, by_threads, *pipelines(job, task, ranks, equal)]


def pipelines(job: Job, task: Text, ranks: int, equal: bool = False) -> list[Contender]:
    """A pipeline, if there are layers enough. equal: also with as many layers in each stage."""
    if ranks > job.order.layers:
        return []
    name, costs = f"layers={ranks}", job.costs(task, ranks)
    cut = job.cut(costs, task, ranks)
    found = [job.together(name, task, cut)]
    if equal:
        even = equal_cut(costs, cut, job.examples(task)) if costs and cut else None
        found.append(job.together(name, task, even, f"{name}{EQUAL}"))
    return found


def equal_cut(costs: PipelineCosts, cut: Cut, layouts: Sequence[Layout]) -> Cut:
    """The best of those that give each stage as many layers, or one more."""
    counts, most = split([1.0] * sum(cut.split), len(cut.split)), max(layout.T for layout in layouts)
    some = [cut._replace(split=counts, chunks=c) for c in CHUNKS if c <= most]
    return min(some, key=lambda p: sum(costs.simulate(p, layout).total for layout in layouts))


# --- questions
def strong(job: Job, by: str) -> list[Row]:
    """The same batch for any number of ranks."""
    task = job.text(by)
    some = [job.alone(task)]
    for ranks in range(2, job.order.ranks + 1):
        some += contenders(job, task, ranks, equal=by == "streams")
    far, seconds = job.deviations(some), job.race(some).seconds
    rows = list[Row]()
    for c in some:
        faster, limit = seconds.faster(c.name, ONE), limit_of(c.workers)
        took = spread(1e3 * s / task.size for s in seconds[c.name])
        times = {"ms": took.median, "ms low": took.low, "ms high": took.high, **faster.row("speed-up")}
        row = {"text": by, **times, **c.about, "deviation": far.get(c.name)}
        if c.cut is not None and by == "streams":
            how = "equal" if EQUAL in c.name else "as measured"
            stages = {"layers of each": " + ".join(map(str, c.cut.split)), "chunks": c.cut.chunks}
            rows.append({"split": f"layers={c.ranks}, {how}", **stages, **row})
        if EQUAL not in c.name:
            scores = {
                "efficiency": faster.median / c.workers,
                "Karp-Flatt": karp_flatt(faster.median, c.workers),
                "of limit %": seconds.faster(c.name, limit).median * 100 if limit in seconds else None,
            }
            rows.append({"strong scaling": c.name, **row, **scores})
    return rows


def weak(job: Job, by: str) -> list[Row]:
    """As much for each rank, however many there are."""
    batch = job.order.batch
    one = job.text(by, batch, 1)
    some = [job.alone(one)]
    for ranks in range(2, job.order.ranks + 1):
        some += contenders(job, job.text(by, batch * ranks, 1), ranks)
    seconds = job.race(some).seconds
    return [
        {
            "weak scaling": c.name,
            "text": by,
            "batch": batch * c.workers,
            "tokens/s each": c.task.tokens / seconds.median(c.name) / c.workers,
            **seconds.faster(c.name, ONE).row("of 1 rank %", 100 * c.task.tokens / (c.workers * one.tokens)),
            **c.about,
        }
        for c in some
    ]


def padding(job: Job) -> list[Row]:
    """No padding, and a pipeline: each by itself, and together."""
    order, lengths, base = job.order, job.corpus.parts["train"].lengths, job.text("sentences")
    schemes = {
        "padded to the longest": buckets.none(lengths),
        "greedy buckets": buckets.greedy(lengths, order.batch),
        "ragged": None,
    }
    tasks = list[Padded]()
    for by, boundaries in schemes.items():
        sampler = Sampler(lengths, order.batch, order.seed, boundaries=boundaries)
        tasks.append(Padded(base, by, Scheme(job.corpus, sampler, boundaries is not None, order.scale.chosen)))
    some = [(task, job.alone(task)) for task in tasks]
    some += [(task, c) for task in tasks for c in pipelines(job, task, 2)]
    some = [(task, replace(c, name=f"{c.name}, {task.by}")) for task, c in some]
    seconds = job.race([c for _, c in some]).seconds
    epochs = {c.name: [t * task.epochs for t in seconds[c.name]] for task, c in some}
    slowest = epochs[some[0][1].name]
    return [
        {
            "padding": task.by,
            "ranks": c.ranks,
            "padding %": task.scheme.padding * 100,
            "s/epoch": spread(epochs[c.name]).median,
            **ratio(slowest, epochs[c.name]).row("faster"),
        }
        for task, c in some
    ]


def computation(job: Job, batch: int, hidden: int) -> list[Row]:
    """Data ranks exchange as much for a small batch as for a large one: more computation hides more of it."""
    task = job.text("streams", batch, 1, **({"hidden": hidden} if hidden != job.order.hidden else {}))
    limit, found = job.limit(task, 2), job.data(task, 2, WAYS[:2])
    seconds = job.race([job.alone(task), limit, *found]).seconds
    return [
        {
            "more computation": c.name,
            "batch": batch,
            "units": hidden,
            "MB": task.bytes / 2**20,
            **seconds.faster(c.name, ONE).row("speed-up"),
            "without exchange": seconds.faster(limit.name, ONE).median,
            "of that %": seconds.faster(c.name, limit.name).median * 100,
        }
        for c in found
    ]
