"""What each process of section `ranks` runs: `python -m plait.bench.time_work FOLDER`. The first writes the rows."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from .job import ORDER, RESULT, TIMEOUT, main

I = 16
SHORT, LENGTHY = 128, 640  # steps of the walks that are compared
LEAST = 1e-9  # seconds of a step


def work(folder: Path) -> None:
    import warnings

    import torch
    import torch.distributed as dist

    from ..errors import PlaitWarning
    from ..ranks.mesh import Mesh
    from .time_ranks import RANKS, row

    warnings.simplefilter("ignore", PlaitWarning)
    torch.set_num_threads(1)
    order = json.loads((folder / ORDER).read_text())
    T, H = (16384, 32) if order["quick"] else (8192, 64)
    everyone = Mesh(data=1, time=RANKS, timeout=TIMEOUT)
    torch.manual_seed(order["seed"])
    found = measured(everyone, T, H, order["repeats"])
    rows = [
        row("one walk", 1, T, found["serial"], found["serial"], "measured"),
        row("shooting", 1, T, found["shooting"], found["serial"], "measured"),
        row("multigrid", 1, T, found["multigrid"], found["serial"], "measured"),
        row("shooting", RANKS, T, found["shooting, time"], found["serial"], "measured"),
        row("multigrid", RANKS, T, found["multigrid, time"], found["serial"], "measured"),
        row("data=2, two sequences", RANKS, T, found["data"], found["serial two"], "measured"),
        row("layers=2, two layers", RANKS, T, found["layers"], found["serial layers"], "measured"),
    ]
    result = {
        "rows": rows,
        "costs": costs(H, found["message"], found["meet"], found["gather"]),
        "T": T,
        "serial": found["serial"],
    }
    if dist.get_rank() == 0:
        (folder / RESULT).write_text(json.dumps(result))


def measured(everyone: Any, T: int, H: int, repeats: int) -> dict[str, float]:
    """Seconds of both passes, by contender: medians. They take turns."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from ..layers import ImplicitGRU
    from ..ranks.mesh import Mesh
    from ..ranks.stack import Stack
    from ..solvers import Multigrid, Shooting

    def both(layer: nn.Module, x: Any) -> Callable[[], None]:
        def step() -> None:
            layer.zero_grad()
            layer(x)[0].square().mean().backward()

        return step

    x, two = torch.randn(T, 1, I), torch.randn(T, 2, I)
    plain = ImplicitGRU(I, H)
    contenders: dict[str, Callable[[], Any]] = {"serial": both(plain, x), "serial two": both(plain, two)}
    contenders["serial layers"] = both(ImplicitGRU(I, H, 2), x)
    contenders["shooting"] = both(ImplicitGRU(I, H, solver=Shooting()), x)
    contenders["multigrid"] = both(ImplicitGRU(I, H, solver=Multigrid(fallback=False)), x)
    for name, solver in (("shooting, time", Shooting()), ("multigrid, time", Multigrid(fallback=False))):
        split = ImplicitGRU(I, H, solver=solver)
        everyone.split_time(split)
        contenders[name] = both(split, x)
    data, layers = Mesh(data=2, timeout=TIMEOUT), Mesh(data=1, layers=2, timeout=TIMEOUT)

    def loss(y: Any, target: Any) -> Any:
        return (y.squeeze(-1) - target).square().mean()

    by_data = data.parallelise(Stack(nn.Identity(), ImplicitGRU(I, H), nn.Linear(H, 1)), loss)
    by_layers = layers.parallelise(Stack(nn.Identity(), ImplicitGRU(I, H, 2), nn.Linear(H, 1)), loss)
    contenders["data"] = lambda: by_data(two[:, data.data_rank : data.data_rank + 1], torch.zeros(T, 1))
    contenders["layers"] = lambda: by_layers(x, torch.zeros(T, 1))
    number = torch.zeros(1)
    contenders["meet"] = lambda: dist.all_reduce(number)
    state, link = torch.zeros(1, H), everyone.group("time")

    def message() -> None:
        if dist.get_rank(link) == 0:
            dist.send(state, 1, group=link)
        else:
            dist.recv(state, 0, group=link)

    contenders["message"] = message
    rows, outputs = T // 2, torch.zeros(T // 2, H)
    others = [torch.empty_like(outputs) for _ in range(2)]
    contenders["gather"] = lambda: dist.all_gather(others, outputs, group=link)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for k in range(repeats + 2):
        for name, call in contenders.items():
            dist.barrier()
            start = time.perf_counter()
            call()
            if k > 1:
                seconds[name].append(time.perf_counter() - start)
    found = {name: median(some) for name, some in seconds.items()}
    return {**found, "gather": found["gather"] / rows}


def costs(H: int, message: float, meet: float, gather: float) -> dict[str, float]:
    """What a step of each kind costs on one thread, from two lengths."""
    import torch

    from .. import engines
    from ..engines import Layout, Needs, Weights
    from ..layers import ImplicitGRU
    from .report import interleaved, timing

    layer = ImplicitGRU(I, H)
    cell = layer._plait_cell
    engine = engines.get(engines.choose(layer.engine, cell, torch.float32, torch.device("cpu")))
    w = Weights.of(cell, [p.detach() for p in layer.parameters()], bias=True)
    ps = [engine.prepare(cell, w)]
    needs = Needs.all(ps)._replace(x=False)

    def passes(T: int, B: int) -> dict[str, Callable[[], Any]]:
        layout, x, d = Layout(T, B), torch.randn(T, B, I), torch.randn(T, B, H)

        def there(keep: bool) -> Any:
            return engine.forward(ps, x, None, layout, keep=keep)

        def back() -> None:
            engine.backward(ps, x, there(True)[2], d, [None], layout, needs=needs, spend=True)

        return {"forward": lambda: there(True), "sweep": lambda: there(False), "both": back}

    def per_step(B: int) -> dict[str, float]:
        mixed = {f"{k} {T}": call for T in (SHORT, LENGTHY) for k, call in passes(T, B).items()}
        return of_a_step({k: timing(s).median for k, s in interleaved(mixed, 7, least=0.005).items()})

    lanes, one = per_step(4), per_step(1)
    y = torch.randn(1024, 1, H, requires_grad=True)
    judged = interleaved({"loss": lambda: y.square().mean().backward()}, 7, least=0.005)["loss"]
    return {
        "forward": lanes["forward"] / 4,  # four pieces side by side: each takes a quarter of the steps
        "back": lanes["back"] / 4,
        "sweep": lanes["sweep"] / 4,
        "call": lanes["call"],
        "coarse": one["sweep"],
        "message": message,
        "meet": meet,
        "loss": timing(judged).median / 1024,
        "gather": gather,
        "walk": one["forward"],
        "walk_back": one["back"],
    }


def of_a_step(seconds: dict[str, float]) -> dict[str, float]:
    """From short and lengthy walks. Noise may make a difference negative, but nothing takes less than no time."""
    found = {}
    for k in ("forward", "sweep", "both"):
        found[k] = max(LEAST, (seconds[f"{k} {LENGTHY}"] - seconds[f"{k} {SHORT}"]) / (LENGTHY - SHORT))
    back = max(LEAST, found.pop("both") - found["forward"])
    return {**found, "back": back, "call": max(0.0, seconds[f"sweep {SHORT}"] - SHORT * found["sweep"])}


if __name__ == "__main__":
    main("time", work)
