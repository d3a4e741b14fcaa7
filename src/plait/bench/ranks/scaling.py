"""How much faster do more ranks train? Scaling, padding and pipeline together, more computation."""

from ...data import buckets
from ...data.sampler import Sampler
from ..bucketing.measure import Scheme
from ..core.turns import Row, ratio, spread
from . import Options
from .contender import Contender
from .race import EQUAL, ONE, WAYS, Job, limit_of
from .text import Padded, Text

EPOCH = 8, 2  # batches that stand for one; the latter with --quick
MORE = (1, 2, 4), (1, 2)  # times the batch
UNITS = (0.25, 0.5, 1.5), (0.5,)  # times the units


def karp_flatt(speed_up: float, workers: int) -> float | None:
    """The serial fraction of the work: 0 if all workers are used in full."""
    return (1 / speed_up - 1 / workers) / (1 - 1 / workers) if workers > 1 else None


def contenders(job: Job, task: Text, ranks: int, equal: bool = False) -> list[Contender]:
    """The limit, all meshes of so many ranks, and one process with as many threads."""
    by_data, by_threads = job.data(task, ranks), job.alone(task, threads=ranks)
    return [job.limit(task, ranks), *by_data, by_threads, *job.pipelines(task, ranks, equal)]


def strong(job: Job, by: str) -> list[Row]:
    """The same batch for any number of ranks."""
    task = job.text(by)
    some = [job.alone(task)]
    for ranks in range(2, job.order.ranks + 1):
        some += contenders(job, task, ranks, equal=by == "streams")
    seconds = job.race(some)
    rows = list[Row]()
    for c in some:
        faster, limit = seconds.faster(c.name, ONE), limit_of(c.workers)
        times = {"ms": seconds.median(c.name) * 1e3, **faster.row("speed-up")}
        row = {"text": by, **times, **c.about, "deviation": c.deviation}
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
    some = [job.alone(job.text(by))]
    for ranks in range(2, job.order.ranks + 1):
        some += contenders(job, job.text(by, batch * ranks), ranks)
    seconds = job.race(some)
    tokens = {c: c.task.count(c.task.chosen[0]) / c.workers for c in some}
    return [
        {
            "weak scaling": c.name,
            "text": by,
            "batch": batch * c.workers,
            "tokens/s each": each / seconds.median(c.name),
            **seconds.faster(c.name, ONE).row("of 1 rank %", 100 * each / tokens[some[0]]),
            **c.about,
        }
        for c, each in tokens.items()
    ]


def padding(job: Job) -> list[Row]:
    """No padding, and a pipeline: each by itself, and together."""
    order, lengths = job.order, job.corpus.parts["train"].lengths
    boundaries = {
        "padded to the longest": buckets.none(lengths),
        "greedy buckets": buckets.greedy(lengths, order.batch),
        "ragged": None,
    }
    tasks = list[Padded]()
    for by, ends in boundaries.items():
        sampler = Sampler(lengths, order.batch, order.seed, boundaries=ends)
        scheme = Scheme(job.corpus, sampler, ends is not None, EPOCH[order.quick])
        tasks.append(Padded(job.text("sentences"), by, scheme))
    some = [(task, job.alone(task)) for task in tasks]
    some += [(task, c) for task in tasks for c in job.pipelines(task, 2)]
    for task, c in some:
        c.name += f", {task.by}"
    job.race([c for _, c in some])
    epochs = [[s * task.scheme.epoch_slots / task.scheme.chosen_slots for s in c.seconds] for task, c in some]
    return [
        {
            "padding": task.by,
            "ranks": c.ranks,
            "padding %": task.scheme.padding * 100,
            "s/epoch": spread(epoch).median,
            **ratio(epochs[0], epoch).row("faster"),
        }
        for (task, c), epoch in zip(some, epochs, strict=True)
    ]


def variants(order: Options) -> list[tuple[int, int]]:
    """Batches and units: more computation, and less."""
    batches = [(n * order.batch, order.hidden) for n in MORE[order.quick]]
    return batches + [(order.batch, max(1, int(n * order.hidden))) for n in UNITS[order.quick]]


def computation(job: Job, batch: int, hidden: int) -> list[Row]:
    """Data ranks exchange as much for any batch: more computation hides more of it."""
    task = job.text("streams", batch, hidden=hidden)
    limit, found = job.limit(task, 2), job.data(task, 2, WAYS[:2])
    seconds = job.race([job.alone(task), limit, *found])
    return [
        {
            "more computation": c.name,
            "batch": batch,
            "units": hidden,
            **seconds.faster(c.name, ONE).row("speed-up"),
            "without exchange": seconds.faster(limit.name, ONE).median,
            "of that %": seconds.faster(c.name, limit.name).median * 100,
        }
        for c in found
    ]
