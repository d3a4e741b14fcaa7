"""What ranks tell each other beside gradients: bytes and JSON, sent as tensors. Nothing received is unpickled."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

NO_BYTES = torch.empty(0, dtype=torch.uint8)


def all_ranks() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None  # some code has made it
    return world


def new_group(ranks: Sequence[int], timeout: float) -> dist.ProcessGroup:
    """Made by these ranks together. Without a timeout torch would take half an hour, whatever the default group has.

    torch names a group by the number of groups that a process has made, so all processes must make as many: one that
    has no part in any makes one of its own.
    """
    group: dist.ProcessGroup = dist.new_group(
        list(ranks), timeout=timedelta(seconds=timeout), use_local_synchronization=True
    )
    return group


def all_gather_json(value: Any, group: dist.ProcessGroup) -> list[Any]:
    """What each rank of a group says, on all of them. Anything that JSON can hold."""
    mine = as_tensor(json.dumps(value).encode())
    sizes = sizes_of(mine, group)
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: len(mine)] = mine
    rows = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(rows, padded, group=group)
    return [json.loads(row[:size].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True)]


def broadcast_bytes(content: bytes, group: dist.ProcessGroup) -> bytes:
    """What the first rank of a group says, on all of them."""
    first = dist.get_global_rank(group, 0)
    size = torch.tensor([len(content)])
    dist.broadcast(size, first, group=group)
    data = as_tensor(content) if dist.get_rank(group) == 0 else torch.empty(int(size), dtype=torch.uint8)
    if len(data):
        dist.broadcast(data, first, group=group)
    return data.numpy().tobytes()


def gather_bytes(content: bytes, group: dist.ProcessGroup) -> list[bytes]:
    """What each rank of a group says, on the first one; nothing on the others."""
    mine, first = as_tensor(content), dist.get_global_rank(group, 0)
    sizes = sizes_of(mine, group)
    if dist.get_rank(group) != 0:
        if len(mine):
            dist.send(mine, first, group=group)
        return []
    found = [content]
    for r, size in enumerate(sizes[1:], 1):
        data = torch.empty(size, dtype=torch.uint8)
        if size:
            dist.recv(data, dist.get_global_rank(group, r), group=group)
        found.append(data.numpy().tobytes())
    return found


def sizes_of(mine: Tensor, group: dist.ProcessGroup) -> list[int]:
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(mine)]), group=group)
    return [int(size) for size in sizes]


def as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else NO_BYTES
