"""Whether something fits into memory, checked before it is made: a system that has none left kills the process."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .. import cells, solvers
from ..errors import PlaitError
from ..system import available
from .settings import NetworkSettings

Model = TypeVar("Model", bound=nn.Module)
FLOAT = 4  # bytes
EVALUATED = 2**28  # bytes that an evaluation holds at a time, beside weights and data
TOGETHER = 2**15  # rows that are evaluated at a time: from here on, more of them are not faster


def check_fits(needed: int, what: str, todo: str) -> None:
    free = available()
    if free is not None and needed > free:
        raise PlaitError(f"{what} needs about {size(needed)}, and {size(free)} of memory is free: {todo}.")


def check_layer(B: int, T: int, I: int, H: int, gates: int, layers: int = 1, *, of: int = 1) -> None:
    """Whether layers fit, forward and backward. of: how many at once. gates: G*H"""
    weights = layers * gates * (max(I, H) + H)
    step = T * B * (2 * I + 2 * H + layers * 2 * (gates + H))
    what = f"batch {B}, {T} steps, {I} inputs, {layers} x {H} units"
    check_fits(FLOAT * of * (2 * weights + step), what, "lower one of them")


def check_training(s: NetworkSettings, build: Callable[[], nn.Module], tokens: int) -> None:
    """tokens: (or values) in a batch"""
    weights = weights_of(build)
    state = 2 if s.optimizer != "sgd" else 1 if s.momentum else 0  # numbers for each weight
    copies = 1 + 1 + state  # weights, best weights, state: in memory, and in a checkpoint
    step = tokens * s.layers * s.hidden * 2 * (len(cells.get(s.cell).gates) + 1)
    needed = FLOAT * (weights * (2 * copies + 1) + step)
    check_fits(needed, f"training {weights:,} weights on batches of {tokens:,}", "lower --hidden, --layers or --batch")


def check_use(build: Callable[[], nn.Module]) -> None:
    weights = weights_of(build)
    check_fits(FLOAT * 2 * weights, f"a network of {weights:,} weights", "end other programs, and try again")


def at_once(numbers: int, most: int = TOGETHER) -> int:
    """How many rows are evaluated together, if each takes so many numbers."""
    return max(1, min(most, EVALUATED // (FLOAT * numbers)))


def build_model(
    s: NetworkSettings, make: Callable[[], Model], tokens: int, steps: int, *, training: bool = True
) -> Model:
    """steps: of the longest sequence. tokens: (or values) in a batch"""
    if training:
        solvers.parse(s.solver).check_steps(steps)
        check_training(s, make, tokens)
    else:
        check_use(make)
    torch.manual_seed(s.seed)
    return make()


class LeftAsTheyAre(TorchFunctionMode):
    """Nothing is drawn for weights without numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def weights_of(build: Callable[[], nn.Module]) -> int:
    with torch.device("meta"), LeftAsTheyAre():  # sizes without numbers
        return sum(p.numel() for p in build().parameters())


def size(bytes: int) -> str:
    return f"{bytes / 2**30:,.1f} GB" if bytes >= 2**30 else f"{bytes / 2**20:,.0f} MB"
