"""Whether something fits into memory, checked before it is made: a system that has none left kills the process."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import torch
from torch import nn

from .. import cells
from ..errors import PlaitError
from .settings import NetworkSettings

FLOAT = 4  # bytes
ROOT = Path("/")
VERSIONS = (  # of control groups: what names the group, where it is, and the files with its limit and its use
    ("", "sys/fs/cgroup", "memory.max", "memory.current"),
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
GIVEN_BACK = ("inactive_file", "active_file", "slab_reclaimable")  # what a group holds, and gives up when it must


def available(root: Path = ROOT) -> int | None:
    """Bytes that are free; None where the system does not tell.

    macOS does not say what is free: there it is all that the machine has.
    """
    try:
        lines = (line.partition(":") for line in (root / "proc/meminfo").read_text().splitlines())
        found = int({name: value for name, _, value in lines}["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        try:
            found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, AttributeError):  # AttributeError: a system that has no sysconf
            return None
    return max(0, min([found, *left_in_groups(root)]))


def left_in_groups(root: Path) -> Iterator[int]:
    """What is free under the limits of this process's control group and of those above it; a container is one."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for _, kinds, group in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        for kind, place, most, used in VERSIONS:
            # In a container the path may be the host's. Then the top one, which is always looked at, is its own.
            inside = PurePosixPath(group.lstrip("/"))
            for folder in (root / place / p for p in (inside, *inside.parents) if kind in kinds.split(",")):
                with suppress(OSError, ValueError):  # no limit here
                    limit, taken = int((folder / most).read_text()), int((folder / used).read_text())
                    yield limit - taken + given_back(folder)


def given_back(group: Path) -> int:
    pairs = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    return sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in GIVEN_BACK)


def check_fits(needed: int, what: str, todo: str) -> None:
    """Refuses what needs more bytes than are free."""
    free = available()
    if free is not None and needed > free:
        raise PlaitError(f"{what} needs about {size(needed)}, and {size(free)} of memory is free: {todo}.")


def check_layer(B: int, T: int, I: int, H: int, gates: int, layers: int = 1, *, of: int = 1) -> None:
    """Asked before layers are built and run, forward and back; `of`: how many there are at once. gates is G*H."""
    weights = layers * gates * (max(I, H) + H)
    step = T * B * (2 * I + 2 * H + layers * 2 * (gates + H))
    what = f"batch {B}, {T} steps, {I} inputs, {layers} x {H} units"
    check_fits(FLOAT * of * (2 * weights + step), what, "lower one of them")


def check_training(s: NetworkSettings, build: Callable[[], nn.Module], tokens: int) -> None:
    """Asked before a network is built, with the number of tokens (or values) that are in a batch.

    It takes weights, gradients, the optimizer's state, the best weights, a checkpoint, and what a step keeps.
    """
    weights = weights_of(build)
    state = 2 if s.optimizer != "sgd" else 1 if s.momentum else 0  # numbers for each weight
    copies = 1 + 1 + state  # weights, best weights, state: in memory, and once more as the bytes of a checkpoint
    # Gates and states, and their gradients.
    step = tokens * s.layers * s.hidden * 2 * (len(cells.get(s.cell).gates) + 1)
    needed = FLOAT * (weights * (2 * copies + 1) + step)
    check_fits(needed, f"training {weights:,} weights on batches of {tokens:,}", "lower --hidden, --layers or --batch")


def check_use(build: Callable[[], nn.Module]) -> None:
    """Asked before a network is built that is not trained: it takes the weights, and those in the file."""
    weights = weights_of(build)
    check_fits(FLOAT * 2 * weights, f"a network of {weights:,} weights", "end other programs, and try again")


def weights_of(build: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):  # sizes without numbers
        return sum(p.numel() for p in build().parameters())


def size(bytes: int) -> str:
    return f"{bytes / 2**30:,.1f} GB" if bytes >= 2**30 else f"{bytes / 2**20:,.0f} MB"
