"""Networks that remember, one long sequence at a time: one exact walk against shooting."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ... import solvers
from ...errors import PlaitWarning
from ...solvers import Serial, Shooting
from ..core.turns import Row, take_turns
from .nets import Data, I, Learner, Net, Order, hold, recall, step_of

SEQUENCES, STEPS = 5, 20  # unseen sequences, and optimizer steps over them
# name, units, what it learns, delay, steps of training, steps of a sequence
FULL: list[tuple[str, int, Data, int, int, list[int]]] = [
    ("recall 50", 64, recall, 50, 6000, [1024, 2048, 4096, 8192, 16384]),
    ("recall 50", 256, recall, 50, 4000, [4096]),
    ("latch 50", 64, hold, 50, 1500, [8192]),
    ("recall 200", 64, recall, 200, 12000, [8192]),
]
QUICK = [("recall 20", 32, recall, 20, 1200, [8192])]


def long(order: Order) -> list[Row]:
    rows = []
    for name, H, data, delay, steps, lengths in QUICK if order.quick else FULL:
        net = order.trained(name, H, data, delay, steps)
        rows += [raced(order, net, H, T) for T in lengths]
    order.remarks.append(
        f"long: blocks of {STEPS} training steps on {SEQUENCES} unseen sequences, in turns; push, zeros: steps until a "
        "perturbation, or a start from zeros, has decayed; faster: than one walk, with quartiles; torch: nn.GRU's "
        "time over shooting's; off: the largest error of a gradient, end to end."
    )
    return rows


def raced(order: Order, net: Net, H: int, T: int) -> Row:
    """Blocks of training steps take turns, each from the same weights, with a solver that knows nothing yet."""
    generator = torch.Generator().manual_seed(order.seed + 1000)
    sequences = [net.data(T, 1, net.delay, generator) for _ in range(SEQUENCES)]
    memory = solvers.fading_memory(net.rnn, sequences[0][0])
    ways = {
        "serial": lambda: block(Learner(net, Serial()), sequences),
        "shooting": lambda: block(Learner(net, Shooting()), sequences),
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", PlaitWarning)
        watched = Learner(net, Shooting())
        off = block(watched, sequences, watch=True)
        seconds = take_turns(ways, order.repeats, least=0)
    for sentence in dict.fromkeys(str(w.message) for w in said if w.category is PlaitWarning):
        order.remarks.append(f"{net.name}, {H} units, {T} steps: {sentence}")
    by_torch = take_turns({"torch": step_of(nn.GRU(I, H), torch.randn(T, 1, I))}, 2, warm=False, least=0)["torch"]
    return {
        "network": net.name,
        "H": H,
        "T": T,
        "loss": net.loss,
        "push": memory.perturbation,
        "zeros": memory.zero_start,
        "serial ms": 1e3 * seconds.median("serial") / STEPS,
        "shooting ms": 1e3 * seconds.median("shooting") / STEPS,
        **seconds.faster("shooting", "serial").row("faster"),
        "torch": min(by_torch) / seconds.median("shooting") * STEPS,
        "off": max(off),
        "in parallel": solvers.share(watched.net.rnn),
    }


def block(learner: Learner, sequences: Sequence[tuple[Tensor, Tensor]], watch: bool = False) -> list[float]:
    """Some training steps -> the errors of their gradients, if they are watched"""
    off = []
    for k in range(STEPS):
        (x, y), ids = sequences[k % SEQUENCES], torch.tensor([k % SEQUENCES])
        if watch:
            off.append(learner.off(x, y, ids))
        learner(x, y, ids)
    return off
