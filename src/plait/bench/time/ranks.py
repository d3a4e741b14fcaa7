"""Time over ranks: measured with two processes, predicted for more from costs that were measured here."""

import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ...errors import PlaitWarning
from ...layers import ImplicitGRU
from ...ranks.group import Group
from ...ranks.mesh import Mesh
from ...ranks.stack import Stack
from ...solvers import parse
from ..core import Row, take_turns
from ..core.job import TIMEOUT, run_job
from ..core.steps import Step
from ..questions import TimeOptions
from .nets import I, step_of

RANKS = 2
SHORT, LENGTHY = 128, 640  # steps of the walks that are compared
LEAST = 1e-9  # seconds of a step
FULL, QUICK = (8192, 64), (16384, 32)  # steps of the sequence, and units
WARM = 192  # steps of a warm-up
MEASURED = (  # series, ranks, contender, what it is compared with
    ("one walk", 1, "serial", "serial"),
    ("shooting", 1, "shooting", "serial"),
    ("multigrid", 1, "multigrid", "serial"),
    ("shooting", RANKS, "shooting, time", "serial"),
    ("multigrid", RANKS, "multigrid, time", "serial"),
    ("data=2, two sequences", RANKS, "data", "serial two"),
    ("layers=2, two layers", RANKS, "layers", "serial layers"),
)


class TimeCosts(NamedTuple):
    """Seconds, measured here; and what a training step takes. All ranks do the same at the same time."""

    forward: float  # a step of all pieces of a rank, with a tape
    backward: float  # the same in the backward pass, with the gradients of the weights
    sweep: float  # a step without a tape, forward or backward
    call: float  # what a pass over the pieces costs beside its steps
    coarse: float  # a step of a coarse grid, which all ranks take
    message: float  # a state from one rank to the next
    meet: float  # a number that all ranks agree on, for each doubling of their number
    loss: float  # a row of the output, which all ranks judge
    gather: float  # a row of another rank's output
    walk: float  # a step of one walk
    walk_backward: float  # the same in the backward pass

    def shooting(self, ranks: int, T: int, warm: int = WARM) -> float:
        """Warm-ups, pieces, a look at their gaps; the loss; the same backward. Ranks share T steps out."""
        warm_up = self.call + min(warm, T / ranks) * self.sweep
        return self.common(ranks, T, waits=min(4, ranks + 1)) + 2 * warm_up + self.met(ranks)

    def multigrid(self, ranks: int, T: int, forward: int = 2) -> float:
        """As published: three levels, coarsening 4, two sweeps in an iteration, one iteration backward."""
        sweeps = 2 * (self.call + T / ranks * self.sweep) + T / ranks / 4 * self.sweep
        coarse = self.met(ranks) + self.call + T / 16 * self.coarse
        return self.common(ranks, T, waits=forward + 2) + (forward + 1) * (sweeps + coarse)

    def common(self, ranks: int, T: int, waits: int) -> float:
        """Both passes over the pieces, the loss, the sum of the gradients. waits: for messages"""
        mine = T / ranks
        passes = 2 * self.call + mine * (self.forward + self.backward)
        loss = T * self.loss + (T - mine) * self.gather
        return passes + loss + 2 * self.met(ranks) + (waits * self.message if ranks > 1 else 0.0)

    def met(self, ranks: int) -> float:
        return self.meet * (ranks - 1).bit_length()


def ranks(options: TimeOptions) -> list[Row]:
    """predicted: from costs measured here, if ranks had cores of their own; T = 4 a rank: weak scaling."""
    T, H = QUICK if options.quick else FULL
    found = run_job(__name__, RANKS, {"T": T, "H": H, **options.some("repeats", "seed")})
    seconds, costs = found["seconds"], TimeCosts(**found["costs"])
    rows = [row(series, n, T, seconds[name], seconds[than], "measured") for series, n, name, than in MEASURED]
    for series, predicted in (("shooting", costs.shooting), ("multigrid", costs.multigrid)):
        beside = max(0.0, seconds[series] - predicted(1, T))  # others take it, too
        for count in (RANKS, 4, 8, 16, 32, 64):
            rows.append(row(series, count, T, beside + predicted(count, T), seconds["serial"], "predicted"))
    for count in (2, 8, 32, 128):
        one = costs.call * 2 + 4 * count * (costs.walk + costs.walk_backward + costs.loss)
        weak = costs.multigrid(count, 4 * count)
        rows.append(row("multigrid, T = 4 a rank", count, 4 * count, weak, one, "predicted"))
    return rows


def row(series: str, count: int, T: int, seconds: float, serial: float, how: str) -> Row:
    mesh = f"{series}, {count} rank{'s' * (count > 1)}"
    found: Row = {"series": series, "ranks": count, "mesh": mesh, "T": T, "how": how}
    return {**found, "ms": 1e3 * seconds, "speed-up": serial / seconds}


# --- what each of the two processes does
def work(order: dict[str, Any], folder: Path, group: Group) -> dict[str, Any]:
    warnings.simplefilter("ignore", PlaitWarning)
    torch.set_num_threads(1)
    torch.manual_seed(order["seed"])
    T, H = order["T"], order["H"]
    seconds = measured(T, H, order["repeats"])
    links = {"message": seconds["message"], "meet": seconds["meet"], "gather": seconds["gather"] / (T // RANKS)}
    return {"seconds": seconds, "costs": {**costs(H), **links}}


def measured(T: int, H: int, repeats: int) -> dict[str, float]:
    """Seconds of both passes, and of what ranks exchange: medians, in turns."""
    by_time = Mesh(data=1, time=RANKS, timeout=TIMEOUT)
    by_data, by_layers = Mesh(data=RANKS, timeout=TIMEOUT), Mesh(data=1, layers=RANKS, timeout=TIMEOUT)
    x, two, plain = torch.randn(T, 1, I), torch.randn(T, 2, I), ImplicitGRU(I, H)
    contenders: dict[str, Callable[[], Any]] = {"serial": step_of(plain, x), "serial two": step_of(plain, two)}
    contenders["serial layers"] = step_of(ImplicitGRU(I, H, 2), x)
    for name, solver in (("shooting", "shooting"), ("multigrid", "multigrid:fallback=no")):
        alone, split = (ImplicitGRU(I, H, solver=parse(solver)) for _ in range(2))
        by_time.split_time(split)
        contenders |= {name: step_of(alone, x), f"{name}, time": step_of(split, x)}

    mine, target = two[:, by_data.data_rank : by_data.data_rank + 1], torch.zeros(T, 1, 1)
    for name, mesh, count, of in (("data", by_data, 1, mine), ("layers", by_layers, 2, x)):
        rnn = ImplicitGRU(I, H, count)
        step = mesh.parallelise(Stack(nn.Identity(), rnn, nn.Linear(H, 1)), nn.functional.mse_loss)
        contenders[name] = partial(step, of, target)

    link, number, state = by_time.group("time"), torch.zeros(1), torch.zeros(1, H)
    outputs, others = torch.zeros(T // RANKS, H), [torch.empty(T // RANKS, H) for _ in range(RANKS)]
    talk, other = (dist.recv, 0) if dist.get_rank(link) else (dist.send, 1)
    contenders["meet"] = lambda: dist.all_reduce(number)
    contenders["message"] = lambda: talk(state, other, group=link)
    contenders["gather"] = lambda: dist.all_gather(others, outputs, group=link)

    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(2 + repeats):
        for name, call in contenders.items():
            dist.barrier()
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: median(some[2:]) for name, some in seconds.items()}  # the first two compile, and fill caches


def costs(H: int) -> dict[str, float]:
    """What a step of each kind costs on one thread."""
    lanes, one = per_step(4, H), per_step(1, H)
    y = torch.randn(1024, 1, H, requires_grad=True)
    judged = take_turns({"loss": lambda: y.square().mean().backward()}, 7, least=0.005)
    quarter = {name: lanes[name] / 4 for name in ("forward", "backward", "sweep")}  # of the steps: four pieces at once
    walks = {"coarse": one["sweep"], "walk": one["forward"], "walk_backward": one["backward"]}
    return {**quarter, **walks, "call": lanes["call"], "loss": judged.median("loss") / 1024}


def per_step(B: int, H: int) -> dict[str, float]:
    layer, calls = ImplicitGRU(I, H), dict[str, Callable[[], Any]]()
    for T in (SHORT, LENGTHY):
        x = torch.randn(T, B, I)
        calls[f"forward {T}"] = partial(layer, x)
        calls[f"sweep {T}"] = torch.no_grad()(partial(layer, x))
        calls[f"both {T}"] = Step(layer, x, torch.randn(T, B, H))
    seconds = take_turns(calls, 7, least=0.005)
    return of_a_step({name: seconds.median(name) for name in seconds})


def of_a_step(seconds: dict[str, float]) -> dict[str, float]:
    """From short and lengthy walks. Nothing takes less than no time, whatever noise makes of it."""
    found = {}
    for k in ("forward", "sweep", "both"):
        found[k] = max(LEAST, (seconds[f"{k} {LENGTHY}"] - seconds[f"{k} {SHORT}"]) / (LENGTHY - SHORT))
    backward = max(LEAST, found.pop("both") - found["forward"])
    return {**found, "backward": backward, "call": max(0.0, seconds[f"sweep {SHORT}"] - SHORT * found["sweep"])}
