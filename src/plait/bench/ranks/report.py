"""What `bench ranks` prints: its tables, and remarks that sum them up."""

from collections.abc import Sequence

from ..core.turns import Row
from .race import ONE

SPREAD = ("low", "high")
TABLES = (
    ("strong scaling", "text", "ms", "speed-up", *SPREAD, "efficiency", "Karp-Flatt", "of limit %", "oversubscribed"),
    ("weak scaling", "text", "batch", "tokens/s each", "of 1 rank %", *SPREAD, "oversubscribed"),
    ("padding", "ranks", "padding %", "s/epoch", "faster", *SPREAD),
    ("time of", "text", "rank", "step ms", "compute", "exposed", "hidden", "wait", "MB sent"),
    ("exchange alone", "ms", *SPREAD, "MB sent", "oversubscribed"),
    ("more computation", "batch", "units", "speed-up", *SPREAD, "without exchange", "of that %"),
    ("split", "layers of each", "chunks", "speed-up", *SPREAD, "oversubscribed"),
    ("training", "steps", "first loss", "last loss", "seconds", "steps to it", "s to it"),
    ("the paper's table", "MB sent", "busiest/mean", "s to it"),
    ("global batch", "lr", "warm-up", "steps", "perplexity", "seconds"),
    ("mesh", "text", "simulated ms", "outside ms", "measured ms", "off %"),
    ("wavefront", "ms", "idle %"),
)


def table(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows of a table, by its first column."""
    return [row for row in rows if name in row]


def closing(rows: Sequence[Row]) -> list[Row]:
    """The table with which the second paper ends: communication, balance, convergence. Streams, two ranks."""
    found = list[Row]()
    for name in ("data=2", "data=2:server", "layers=2"):
        mine = [row for row in table(rows, "time of") if (row["time of"], row["text"]) == (name, "streams")]
        reached = [row["s to it"] for row in table(rows, "training") if row["training"] == name]
        if mine:
            found.append(
                {
                    "the paper's table": name,
                    "MB sent": max(row["MB sent"] for row in mine),
                    "busiest/mean": mine[0]["busiest/mean"],
                    "s to it": reached[0] if reached else None,
                }
            )
    return found


def remarks(rows: Sequence[Row], cores: int) -> list[str]:
    strong = table(rows, "strong scaling")
    return [
        "A step is both passes, the exchange, clipping and the update, with one thread a rank; the learning rate is 0. "
        "Speed-ups are against 1 rank with 1 thread in the same turn: median and quartiles.",
        "no exchange: each rank takes its step with its part of the batch, and nothing is added up: the limit.",
        *calm(strong),
        *threads_or_ranks(strong),
        f"oversubscribed: more threads than the {cores} cores of this machine.",
        *together(rows),
        "time of: ms of each rank. exposed: communication that it did or waited for; hidden: the rest of what the "
        "exchange takes alone; wait: until the other rank has come as far.",
        *more_computation(rows),
        *trained(rows),
        "the paper's table: MB that a rank sends in a step; compute time of the busiest rank over the mean; seconds.",
        "global batch: what all ranks together train on in a step. It does not depend on the mesh, so one process ran "
        "it. The learning rate is multiplied by the square root of the ratio of batches, and warmed up, or kept.",
        *simulated(rows),
        deviations(rows),
    ]


def calm(strong: Sequence[Row]) -> list[str]:
    """How much the machine itself varied."""
    return [
        f"One rank, {row['text']}: a step takes {row['ms']:.4g} ms ({row['ms low']:.4g} to {row['ms high']:.4g}; "
        "the difference is what else runs on this machine)."
        for row in strong
        if row["strong scaling"] == ONE
    ]


def threads_or_ranks(strong: Sequence[Row]) -> list[str]:
    """Two threads of one process beside the best of two ranks."""
    found = []
    for text in dict.fromkeys(row["text"] for row in strong):
        mine = {row["strong scaling"]: row for row in strong if row["text"] == text}
        two = [row for row in mine.values() if row["ranks"] == 2 and row["deviation"] is not None]
        if "2 threads" not in mine or not two:
            continue
        best, threads = min(two, key=lambda row: row["ms"]), mine["2 threads"]
        winner = "two threads beat two ranks" if threads["ms"] < best["ms"] else "two ranks beat two threads"
        found.append(
            f"On this one machine {winner}, {text}: one process with 2 threads takes {threads['ms']:.4g} ms a step, "
            f"{best['strong scaling']} {best['ms']:.4g} ms. Ranks are for more machines than threads can reach."
        )
    return found


def together(rows: Sequence[Row]) -> list[str]:
    faster = {(row["padding"], row["ranks"]): row["faster"] for row in table(rows, "padding")}
    if ("ragged", 2) not in faster:
        return []
    return [
        f"Against one rank padded to the longest, layers=2 alone is {faster['padded to the longest', 2]:.3g} times as "
        f"fast, no padding alone {faster['ragged', 1]:.3g}, both {faster['ragged', 2]:.3g} (the paper, with 4 GPUs: "
        "2.3, 3.3 and 5.3)."
    ]


def more_computation(rows: Sequence[Row]) -> list[str]:
    found = table(rows, "more computation")
    if not found:
        return []
    name = found[0]["more computation"]
    mine = [row for row in found if row["more computation"] == name]
    words = [f"{row['speed-up']:.3g} (batch {row['batch']}, {row['units']} units)" for row in mine]
    return [f"More computation helps data ranks a little, says the paper. {name} here: {', '.join(words)}."]


def trained(rows: Sequence[Row]) -> list[str]:
    return [
        f"training: the same weights at the start, the same batches; the set loss is {row['set loss']:.4g}, and all "
        f"losses are means over some steps. With the same batch for all ranks together, a mesh changes the seconds "
        "that it takes, not the steps."
        for row in table(rows, "training")[:1]
    ]


def simulated(rows: Sequence[Row]) -> list[str]:
    worst = sorted(table(rows, "mesh"), key=lambda row: -abs(row["off %"]))[:1]
    return [
        f"Simulated and measured steps differ by at most {abs(row['off %']):.3g} % ({row['mesh']}, {row['text']}). "
        "outside: what is not in a schedule (zeroing, the embedding, clipping, the update), timed by itself."
        for row in worst
    ]


def deviations(rows: Sequence[Row]) -> str:
    """The largest of each mesh, over all texts."""
    far: dict[str, float] = {}
    for row in rows:
        name = row.get("strong scaling") or row.get("time of")
        if name and name != ONE and row.get("deviation") is not None:
            far[name] = max(far.get(name, 0.0), row["deviation"])
    words = ", ".join(f"{name} {value:.1e}" for name, value in far.items())
    return f"Largest deviation of loss and gradients from one rank (relative): {words}."
