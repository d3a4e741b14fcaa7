"""Memory that the ranks of a host share."""

import fcntl
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from .talk import told

LINE = 64  # bytes that two processors never write at the same time without a cost


class Memory:
    """A slot for the gradients of each rank of a host, and the flags.

    Rank r holds a lock on byte r of the file, which ends with its process, however that ends.
    """

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
        """Whether the process of another rank has ended."""
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1, rank)
        return True


def size_of(numbers: int, dtype: torch.dtype, ranks: int, flags: int) -> int:
    return ranks * (-(-flags * 8 // LINE) * LINE + -(-numbers * dtype.itemsize // LINE) * LINE)


def make_memory(numbers: int, dtype: torch.dtype, flags: int, group: dist.ProcessGroup) -> Memory | str:
    """All ranks of the group, which are on one host, call this together. -> the memory, or why there can be none."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    why, name = "", ""
    if rank == 0:
        size = size_of(numbers, dtype, ranks, flags)
        try:
            folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            handle, name = tempfile.mkstemp(prefix="plait-", dir=folder)
            try:
                os.posix_fallocate(handle, 0, size)  # a write to memory that is not there would kill the process
            finally:
                os.close(handle)
        except OSError as e:
            why = f"{size / 2**20:,.0f} MB of shared memory are not free ({e.strerror})"
    why, name = told(f"{why}\n{name}".encode(), group).decode().split("\n", 1)
    memory = None
    if not why:
        try:
            memory = Memory(Path(name), numbers, dtype, rank, ranks, flags)
        except OSError as e:  # a host of the same name that is another one
            why = f"what the first rank of this host shares cannot be opened ({e.strerror})"
    dist.barrier(group)
    if name and rank == 0:
        Path(name).unlink(missing_ok=True)  # whoever has mapped it still has it; nobody is left to clear it away later
    return why if memory is None else memory
