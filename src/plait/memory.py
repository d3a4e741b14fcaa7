"""Whether something fits into memory, asked before it is made: a system that runs out of it kills without a word."""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from . import cells
from .errors import PlaitError

if TYPE_CHECKING:
    from .tasks.settings import NetworkSettings

FLOAT = 4  # bytes


def available() -> int | None:
    """Bytes that can be had without taking any from others; None where the system does not say."""
    try:
        lines = (line.partition(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found = [int({name: value for name, _, value in lines}["MemAvailable"].split()[0]) * 1024]
    except (OSError, KeyError):
        try:
            found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
        except (OSError, ValueError):
            return None
    group = Path("/sys/fs/cgroup")  # a container's own limit
    with suppress(OSError, ValueError):  # there may be none
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        of_files = re.search(
            r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.M
        )  # given up when needed
        found.append(limit - used + int(of_files[1] if of_files else 0))
    return min(found)


def check_fits(needed: int, what: str, lower: str) -> None:
    """A sentence, if so many bytes cannot be had."""
    free = available()
    if free is not None and needed > free:
        raise PlaitError(f"{what} needs about {size(needed)}, and {size(free)} of memory are free: lower {lower}.")


def check_layer(B: int, T: int, I: int, H: int, gates: int, layers: int = 1, *, of: int = 1) -> None:
    """Asked before layers are built and run, forward and back; `of`: so many of them side by side. gates is G*H."""
    weights = layers * gates * (max(I, H) + H)
    step = T * B * (2 * I + 2 * H + layers * 2 * (gates + H))
    check_fits(
        FLOAT * of * (2 * weights + step), f"batch {B}, {T} steps, {I} inputs, {layers} x {H} units", "one of them"
    )


def check_training(s: "NetworkSettings", build: Callable[[], nn.Module], tokens: int) -> None:
    """Asked before a network is built, with the number of tokens (or values) that are in a batch.

    It takes weights, gradients, the optimizer's state, the best weights, a checkpoint, and what a step keeps.
    """
    with torch.device("meta"):  # sizes without numbers
        weights = sum(p.numel() for p in build().parameters())
    state = 2 if s.optimizer != "sgd" else 1 if s.momentum else 0  # numbers for each weight
    kept = 1 + 1 + state  # weights, best weights, state: in memory, and once more as the bytes of a checkpoint
    step = (
        tokens * s.layers * s.hidden * 2 * (len(cells.get(s.cell).gates) + 1)
    )  # gates and states, and their gradients
    needed = FLOAT * (weights * (2 * kept + 1) + step)
    check_fits(needed, f"training {weights:,} weights on batches of {tokens:,}", "--hidden, --layers or --batch")


def size(bytes: int) -> str:
    return f"{bytes / 2**30:,.1f} GB" if bytes >= 2**30 else f"{bytes / 2**20:,.0f} MB"
