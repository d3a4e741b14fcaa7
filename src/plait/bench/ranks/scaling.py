"""How much faster do more ranks train? Scaling, padding and pipeline together, more computation."""

from ..core import Row, ratio, spread
from ..core.texts import Scheme, Text
from ..questions import RanksOptions
from .contender import Contender
from .race import EQUAL, LIMIT, ONE, WAYS, Job

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
        faster, limit = seconds.faster(c.name, ONE), LIMIT.format(c.workers)
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
    rows = []
    for c, each in tokens.items():
        row: Row = {"weak scaling": c.name, "text": by, "batch": batch * c.workers}
        row["tokens/s each"] = each / seconds.median(c.name)
        faster = seconds.faster(c.name, ONE)
        row |= faster.row("of 1 rank %", 100 * each / tokens[some[0]])
        rows.append({**row, **c.about})
    return rows


def padding(job: Job) -> list[Row]:
    """No padding, and a pipeline: each by itself, and together."""
    base, count = job.text("sentences"), EPOCH[job.order.quick]
    ways = {
        "padded to the longest": ("none", True),
        "greedy buckets": ("greedy", True),
        "ragged": ("none", False),
    }
    schemes = {by: Scheme(base, how, padded, count) for by, (how, padded) in ways.items()}
    some = [(by, job.alone(scheme)) for by, scheme in schemes.items()]
    some += [(by, c) for by, scheme in schemes.items() for c in job.pipelines(scheme, 2)]
    for by, c in some:
        c.name += f", {by}"
    job.race([c for _, c in some])
    epochs = [[s * schemes[by].scale for s in c.seconds] for by, c in some]
    rows = []
    for (by, c), epoch in zip(some, epochs, strict=True):
        row: Row = {"padding": by, "ranks": c.ranks, "padding %": schemes[by].padding * 100}
        rows.append({**row, "s/epoch": spread(epoch).median, **ratio(epochs[0], epoch).row("faster")})
    return rows


def variants(order: RanksOptions) -> list[tuple[int, int]]:
    """Batches and units: more computation, and less."""
    batches = [(n * order.batch, order.hidden) for n in MORE[order.quick]]
    return batches + [(order.batch, max(1, int(n * order.hidden))) for n in UNITS[order.quick]]


def computation(job: Job, batch: int, hidden: int) -> list[Row]:
    """Data ranks exchange as much for any batch: more computation hides more of it."""
    task = job.text("streams", batch, hidden=hidden)
    limit, found = job.limit(task, 2), job.data(task, 2, WAYS[:2])
    seconds = job.race([job.alone(task), limit, *found])
    alone, rows = seconds.faster(limit.name, ONE).median, []
    for c in found:
        row: Row = {"more computation": c.name, "batch": batch, "units": hidden}
        row |= seconds.faster(c.name, ONE).row("speed-up")
        row["without exchange"] = alone
        row["of that %"] = seconds.faster(c.name, limit.name).median * 100
        rows.append(row)
    return rows
