"""What each of the two processes of section `ranks` measures: steps in turns, and what their parts cost."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...errors import PlaitWarning
from ...layers import ImplicitGRU
from ...ranks.group import Group
from ...ranks.mesh import Mesh
from ...ranks.stack import Stack
from ...solvers import parse
from ..core.job import TIMEOUT
from ..core.turns import take_turns
from .nets import I, step_of

RANKS = 2
SHORT, LENGTHY = 128, 640  # steps of the walks that are compared
LEAST = 1e-9  # seconds of a step


def work(order: dict[str, Any], folder: Path, group: Group) -> dict[str, Any]:
    warnings.simplefilter("ignore", PlaitWarning)
    torch.set_num_threads(1)
    torch.manual_seed(order["seed"])
    T, H = order["T"], order["H"]
    seconds = measured(T, H, order["repeats"])
    links = {"message": seconds["message"], "meet": seconds["meet"], "gather": seconds["gather"] / (T // RANKS)}
    return {"seconds": seconds, "costs": {**costs(H), **links}}


def measured(T: int, H: int, repeats: int) -> dict[str, float]:
    """Seconds of both passes, and of what ranks exchange, by contender: medians. They take turns."""
    by_time = Mesh(data=1, time=RANKS, timeout=TIMEOUT)
    by_data, by_layers = Mesh(data=RANKS, timeout=TIMEOUT), Mesh(data=1, layers=RANKS, timeout=TIMEOUT)
    x, two, plain = torch.randn(T, 1, I), torch.randn(T, 2, I), ImplicitGRU(I, H)
    contenders: dict[str, Callable[[], Any]] = {"serial": step_of(plain, x), "serial two": step_of(plain, two)}
    contenders["serial layers"] = step_of(ImplicitGRU(I, H, 2), x)
    for name, solver in (("shooting", "shooting"), ("multigrid", "multigrid:fallback=no")):
        alone, split = (ImplicitGRU(I, H, solver=parse(solver)) for _ in range(2))
        by_time.split_time(split)
        contenders |= {name: step_of(alone, x), f"{name}, time": step_of(split, x)}

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return (y.squeeze(-1) - target).square().mean()

    mine, target = two[:, by_data.data_rank : by_data.data_rank + 1], torch.zeros(T, 1)
    data = by_data.parallelise(Stack(nn.Identity(), ImplicitGRU(I, H), nn.Linear(H, 1)), loss)
    layers = by_layers.parallelise(Stack(nn.Identity(), ImplicitGRU(I, H, 2), nn.Linear(H, 1)), loss)
    contenders |= {"data": lambda: data(mine, target), "layers": lambda: layers(x, target)}

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
    """What a step of each kind costs on one thread, from two lengths."""
    layer = ImplicitGRU(I, H)

    def passes(T: int, B: int) -> dict[str, Callable[[], Any]]:
        x, d_y = torch.randn(T, B, I), torch.randn(T, B, H)

        def both() -> None:
            layer.zero_grad()
            layer(x)[0].backward(d_y)

        return {f"forward {T}": lambda: layer(x), f"sweep {T}": torch.no_grad()(lambda: layer(x)), f"both {T}": both}

    def per_step(B: int) -> dict[str, float]:
        seconds = take_turns(passes(SHORT, B) | passes(LENGTHY, B), 7, least=0.005)
        return of_a_step({name: seconds.median(name) for name in seconds})

    lanes, one = per_step(4), per_step(1)
    y = torch.randn(1024, 1, H, requires_grad=True)
    judged = take_turns({"loss": lambda: y.square().mean().backward()}, 7, least=0.005)
    return {
        "forward": lanes["forward"] / 4,  # four pieces side by side: each takes a quarter of the steps
        "backward": lanes["backward"] / 4,
        "sweep": lanes["sweep"] / 4,
        "call": lanes["call"],
        "coarse": one["sweep"],
        "loss": judged.median("loss") / 1024,
        "walk": one["forward"],
        "walk_backward": one["backward"],
    }


def of_a_step(seconds: dict[str, float]) -> dict[str, float]:
    """From short and lengthy walks. Noise may make a difference negative, but nothing takes less than no time."""
    found = {}
    for k in ("forward", "sweep", "both"):
        found[k] = max(LEAST, (seconds[f"{k} {LENGTHY}"] - seconds[f"{k} {SHORT}"]) / (LENGTHY - SHORT))
    backward = max(LEAST, found.pop("both") - found["forward"])
    return {**found, "backward": backward, "call": max(0.0, seconds[f"sweep {SHORT}"] - SHORT * found["sweep"])}
