"""SharedMemory that the ranks of a host share."""

import fcntl
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from .collectives import broadcast_bytes

LINE = 64  # bytes that two processors never write at the same time without a cost


class SharedMemory:
    """A slot for each rank's gradients, and flags. Rank r locks byte r while it lives."""

    def __init__(self, file: Path, numbers: int, dtype: torch.dtype, rank: int, ranks: int, flags: int) -> None:
        per_rank = -(-flags * 8 // LINE) * LINE
        slot = -(-numbers * dtype.itemsize // LINE) * LINE
        self.size = size_of(numbers, dtype, ranks, flags)
        self.file = file.open("r+b")
        self.map = mmap.mmap(self.file.fileno(), self.size)
        fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        everything = torch.frombuffer(self.map, dtype=torch.uint8)
        begin = per_rank * ranks
        self.flags = np.frombuffer(self.map, np.int64, begin // 8).reshape(ranks, -1)
        self.slots = [everything[begin + r * slot :][: numbers * dtype.itemsize].view(dtype) for r in range(ranks)]

    def is_gone(self, rank: int) -> bool:
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1, rank)
        return True


def size_of(numbers: int, dtype: torch.dtype, ranks: int, flags: int) -> int:
    return ranks * (-(-flags * 8 // LINE) * LINE + -(-numbers * dtype.itemsize // LINE) * LINE)


def make_shared_memory(numbers: int, dtype: torch.dtype, flags: int, group: dist.ProcessGroup) -> SharedMemory | str:
    """Called by all ranks of one host together -> the memory, or why there is none"""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    why, name = "", ""
    if rank == 0:
        size = size_of(numbers, dtype, ranks, flags)
        try:
            folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            handle, name = tempfile.mkstemp(prefix="plait-", dir=folder)
            try:
                os.posix_fallocate(handle, 0, size)  # a write beyond free memory would kill the process
            finally:
                os.close(handle)
        except OSError as e:
            why = f"{size / 2**20:,.0f} MB of shared memory are not free ({e.strerror})"
    why, name = broadcast_bytes(f"{why}\n{name}".encode(), group).decode().split("\n", 1)
    memory = None
    if not why:
        try:
            memory = SharedMemory(Path(name), numbers, dtype, rank, ranks, flags)
        except OSError as e:  # a host of the same name that is another one
            why = f"what the first rank of this host shares cannot be opened ({e.strerror})"
    dist.barrier(group)
    if name and rank == 0:
        Path(name).unlink(missing_ok=True)  # it stays mapped, and nobody else would clear it away
    return why if memory is None else memory
