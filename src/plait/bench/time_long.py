"""Networks that remember, one long sequence at a time: one exact walk against shooting."""

import time
import warnings

import torch
from torch import Tensor, nn

from .. import solvers
from ..errors import PlaitWarning
from ..solvers import Serial, Shooting, Solver
from . import time_nets
from .report import ratio, timing
from .time_nets import Data, Net
from .time_order import Learner, Order, Row

SEQUENCES, STEPS = 5, 20  # unseen sequences, and optimizer steps over them
# name, units, what it learns, delay, steps of training, steps of a sequence
FULL: list[tuple[str, int, Data, int, int, list[int]]] = [
    ("recall 50", 64, time_nets.recall, 50, 6000, [1024, 2048, 4096, 8192, 16384]),
    ("recall 50", 256, time_nets.recall, 50, 4000, [4096]),
    ("latch 50", 64, time_nets.hold, 50, 1500, [8192]),
    ("recall 200", 64, time_nets.recall, 200, 12000, [8192]),
]
QUICK = [("recall 20", 32, time_nets.recall, 20, 1200, [8192])]


def trained(order: Order, name: str, H: int, data: Data, delay: int, steps: int) -> Net:
    key = f"{name}, {H}"
    if key not in order.nets:
        order.nets[key] = time_nets.train(name, "implicit_gru", H, data, delay, steps=steps, seed=order.seed)
    return order.nets[key]


def long(order: Order) -> list[Row]:
    rows = []
    for name, H, data, delay, steps, lengths in QUICK if order.quick else FULL:
        net = trained(order, name, H, data, delay, steps)
        for T in lengths:
            rows.append(raced(order, net, H, T))
    order.remarks.append(
        f"long: blocks of {STEPS} training steps on {SEQUENCES} unseen sequences, in turns; push, zeros: steps until "
        "a push, or a start from zeros, is forgotten; faster: than one walk, with quartiles; torch: nn.GRU's time "
        "over shooting's; off: the largest error of a gradient, end to end."
    )
    return rows


def raced(order: Order, net: Net, H: int, T: int) -> Row:
    """Blocks of training steps take turns, each from the same weights, with a solver that knows nothing yet."""
    generator = torch.Generator().manual_seed(order.seed + 1000)
    sequences = [net.data(T, 1, net.delay, generator) for _ in range(SEQUENCES)]
    memory = solvers.memory(net.rnn, sequences[0][0])
    ways: dict[str, type[Solver]] = {"serial": Serial, "shooting": Shooting}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", PlaitWarning)
        off, share = errors(Learner(net, Shooting()), sequences)
        for k in range(order.repeats):
            for name in list(ways)[:: -1 if k % 2 else 1]:
                block(Learner(net, ways[name]()), sequences[:2], 2)  # memory of these shapes is there
                seconds[name].append(block(Learner(net, ways[name]()), sequences, STEPS) / STEPS)
    for sentence in dict.fromkeys(str(w.message) for w in said if w.category is PlaitWarning):
        order.remarks.append(f"{net.name}, {H} units, {T} steps: {sentence}")
    faster = ratio(seconds["serial"], seconds["shooting"])
    mine = timing(seconds["shooting"]).median
    return {
        "network": net.name,
        "H": H,
        "T": T,
        "loss": net.loss,
        "push": memory.perturbation,
        "zeros": memory.zero_start,
        "serial ms": 1e3 * timing(seconds["serial"]).median,
        "shooting ms": 1e3 * mine,
        "faster": faster.median,
        "low": faster.low,
        "high": faster.high,
        "torch": by_torch(H, T) / mine,
        "off": off,
        "in parallel": share,
    }


def block(learner: Learner, sequences: list[tuple[Tensor, Tensor]], steps: int) -> float:
    """Seconds of so many training steps."""
    start = time.perf_counter()
    for k in range(steps):
        learner(*sequences[k % len(sequences)], torch.tensor([k % len(sequences)]))
    return time.perf_counter() - start


def errors(learner: Learner, sequences: list[tuple[Tensor, Tensor]]) -> tuple[float, float | None]:
    """The same steps -> the largest error of a gradient, end to end, and the share of passes that were cut"""
    off = []
    for k in range(STEPS):
        (x, y), ids = sequences[k % SEQUENCES], torch.tensor([k % SEQUENCES])
        off.append(learner.off(x, y, ids))
        learner(x, y, ids)
    return max(off), solvers.share(learner.net.rnn)


def by_torch(H: int, T: int) -> float:
    """Seconds of a step of torch.nn.GRU, the better of two."""
    layer, x = nn.GRU(time_nets.I, H), torch.randn(T, 1, time_nets.I)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        layer(x)[0].square().mean().backward()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
