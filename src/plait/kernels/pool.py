"""Memory that survives a step and serves the next one. The first access to fresh pages costs more than small kernels.

A block is one torch storage. The pool keeps a reference to every block that it hands out, on a shelf with others of
about the same size. A block is free when nothing else refers to its storage: no tensor, view, graph or array. So a
tensor that outlives a step is safe, and no code has to say when it is no longer needed. A tensor for which its own
shelf has no block gets one of up to twice its size, if one is free: what the upper layer needed then serves the lower.

There is no lock. A thread that pops a block off its shelf has it alone until it puts the block back, and two threads
cannot pop the same one. A block that is not put back, after an exception, is like the memory of any other tensor.
"""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from sys import getrefcount
from threading import Thread
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import deterministic

from .. import system
from . import libc

LEAST = 1 << 17  # bytes: glibc's malloc takes smaller blocks from memory that it keeps
LEAST_WORKSPACE = 1 << 20  # bytes
LOOKED_AT = 32  # blocks of a shelf that are tried
TWICE = 8  # shelves from a size to twice that size
MOST_LARGER = 16  # times what a call needs: a workspace that is larger stays free for other calls
IDLE = 10.0  # seconds without use before a block goes back to the system
NAME = "plait pool"  # of the thread that gives blocks back
PLAIN = (Tensor, nn.Parameter)  # other kinds of tensors may have no memory of their own

# The number of references to a storage. torch 2.6 and 2.7 have it only if they were built for CUDA.
use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
is_deterministic = torch._C._get_deterministic_algorithms


class Block:
    __slots__ = ("address", "handle", "refs", "shelf", "size", "storage", "used")

    def __init__(self, size: int, shelf: int) -> None:
        self.size, self.shelf, self.used = size, shelf, 0.0  # used: when it was last put on the shelf
        self.storage = torch.UntypedStorage(size, device="cpu")
        self.handle, self.address = self.storage._cdata, self.storage.data_ptr()
        self.refs = getrefcount(self.storage)
        libc.ask_for_large_pages(self.address, size)

    def is_free(self) -> bool:
        """torch counts the tensors. Python counts the references to the storage object, which is the same for all."""
        return getrefcount(self.storage) == self.refs and (use_count is None or use_count(self.handle) == 1)


@cache
def is_on() -> bool:
    """Whether torch counts references as is_free expects. If not, the pool has only workspaces, not tensors."""
    if use_count is None:
        return False
    block, found = Block(LEAST, 0), []
    holder: Any = torch.empty(0, dtype=torch.uint8, device="cpu").set_(block.storage)
    for following in (lambda tensor: tensor[1:], Tensor.untyped_storage, lambda storage: None):
        found.append(block.is_free())
        holder = following(holder)
    return found == [False] * 3 and holder is None and block.is_free()


SMALL = 0  # in place of a shelf: the list of small workspaces
WORKSPACES = -1  # the shelf of the other workspaces; those of tensors are positive


class Pool:
    def __init__(self) -> None:
        """A forked child calls this again: it has copies of its parent's tensors, but not its threads."""
        self.shelves: dict[int, deque[Block]] = {}
        self.small: list[Block] = []  # workspaces of small calls, one for each thread: they stay
        self.watched = False  # there is a thread that gives back unused blocks
        self.made = self.held = 0  # bytes of new blocks since all blocks were last counted, and of all blocks then
        self.peak = self.peak_before = 0  # most bytes in use at once: since the thread last woke up, and before that
        self.left = 0  # bytes that the system has left, at least

    # --- for tensors
    def empty(self, like: Tensor, *shape: int, exact: bool = False) -> Tensor:
        """As like.new_empty(*shape). Its block may be twice as large. exact: it is larger by an eighth at most, for a
        result that may be stored.
        """
        size = math.prod(shape) * like.itemsize
        if size < LEAST or type(like) not in PLAIN or not like.is_cpu:
            return like.new_empty(shape)
        fills = is_deterministic() and deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        if fills or not is_on():
            plain = like.new_empty(shape)
            libc.ask_for_large_pages(plain.data_ptr(), size)
            return plain
        bits = size.bit_length()
        own = TWICE * bits + (size >> bits - 4)  # eight shelves from a power of two to the next, in the order of sizes
        block = self.find(own, size, sys.maxsize)
        for shelf in range(own + 1, own + 1 if block or exact else own + 1 + TWICE):  # the smallest that is free
            if block := self.find(shelf, size, 2 * size):
                break
        if block is None:
            discard(self.find(own, 0, size))  # one that is too small: the new one will serve both
            block = self.make(own, size)
        tensor: Tensor = like.new_empty(0).set_(block.storage, 0, shape)  # type: ignore[call-overload]
        self.put(block)
        return tensor

    def empty_like(self, tensor: Tensor) -> Tensor:
        """As torch.empty_like(tensor), of one that is contiguous."""
        return torch.empty_like(tensor) if tensor.nbytes < LEAST else self.empty(tensor, *tensor.shape)

    # --- for the time of a call
    def workspace(self, size: int) -> Block:
        """At least `size` bytes, for the caller alone until they are put back. A call takes any free block that is not
        far too large for it, and a new block takes the place of the smaller ones: so one serves all calls of a thread.
        """
        if size <= LEAST_WORKSPACE:
            try:
                return self.small.pop()
            except IndexError:  # there is none yet, or other threads use them
                return Block(LEAST_WORKSPACE, SMALL)
        if block := self.find(WORKSPACES, size, MOST_LARGER * size):
            return block
        while block := self.find(WORKSPACES, size // MOST_LARGER, size):
            discard(block)  # the new one will serve in its place
        return self.make(WORKSPACES, size)

    def find(self, shelf: int, least: int, most: int) -> Block | None:
        """A free block of `least` to `most` bytes. It is no longer on the shelf."""
        blocks = self.shelves.get(shelf) or deque[Block]()
        for _ in range(min(len(blocks), LOOKED_AT)):
            try:
                block = blocks.pop()
            except IndexError:  # other threads took the rest
                break
            # as is_free says, without a call
            is_free = getrefcount(block.storage) == block.refs and (use_count is None or use_count(block.handle) == 1)
            # after resize_, and after share_memory_, other processes may still read it: then it leaves the pool
            if is_free and (block.storage.data_ptr() != block.address or block.storage.nbytes() != block.size):
                continue
            if is_free and least <= block.size <= most:
                return block
            blocks.appendleft(block)
        return None

    def make(self, shelf: int, size: int) -> Block:
        self.make_room(size)
        try:
            return Block(size, shelf)
        except RuntimeError:  # no memory is left, except in the pool
            self.release()
            return Block(size, shelf)

    def put(self, block: Block) -> None:
        if block.shelf == SMALL:
            self.small.append(block)
            return
        block.used = time.monotonic()
        self.shelves.setdefault(block.shelf, deque()).append(block)
        if not self.watched:  # this test must come after the block is on the shelf: see watch
            self.watched = True
            try:
                Thread(target=self.watch, name=NAME, daemon=True).start()
            except RuntimeError:  # Python is about to exit, or there can be no more threads: the next call tries again
                self.watched = False

    # --- giving back
    def blocks(self) -> list[Block]:
        return [block for shelf in list(self.shelves.values()) for block in list(shelf)]

    def make_room(self, size: int) -> None:
        """Before a new block is made. The free blocks together may not be larger than what was in use at once a short
        time ago, nor than half of what the system has left. Those that were not used for longest go first.
        """
        self.made += size
        self.left -= size
        if self.made < self.held // 8:  # counting all blocks takes time
            return
        blocks = self.blocks()
        free = sorted((block for block in blocks if block.is_free()), key=lambda block: block.used)
        held, lying = (sum(block.size for block in some) for some in (blocks, free))
        self.peak = max(self.peak, held - lying + size)
        if lying > self.left // 2:
            left = system.available()
            self.left = sys.maxsize if left is None else left - size
        most = min(max(self.peak, self.peak_before), self.left // 2)
        for block in free:
            if lying > most:
                self.remove(block)
                lying -= block.size
                held -= block.size
        self.made, self.held = 0, held

    def remove(self, block: Block) -> None:
        with suppress(KeyError, ValueError):  # another thread has just taken it
            self.shelves[block.shelf].remove(block)

    def watch(self) -> None:
        """In a thread of its own, until the pool is empty. It also drops blocks that were handed out long ago and are
        still in use: those go back to the system with their last tensor.
        """
        while True:
            time.sleep(IDLE / 2)
            self.forget(time.monotonic() - IDLE)
            if self.peak:  # else no new block was needed since
                self.peak, self.peak_before = 0, max(self.peak, self.peak_before // 2)
            if not self.shelves:
                libc.trim()
                self.watched = False
                if not self.shelves:  # else a block came before `watched` was false, and no other thread watches it
                    return
                self.watched = True

    def forget(self, before: float) -> None:
        for key, shelf in list(self.shelves.items()):
            for block in list(shelf):
                if block.used < before:
                    self.remove(block)
            if not shelf:
                self.shelves.pop(key, None)

    def release(self) -> int:
        """-> bytes that were free. A block in use is freed with its last tensor; a workspace in use comes back."""
        blocks = [*self.blocks(), *self.small]
        self.shelves, self.small = {}, []
        self.made = self.held = 0
        released = sum(block.size for block in blocks if block.is_free())
        del blocks
        libc.trim()
        return released


def discard(block: Block | None) -> None:
    """Gives the pages of a free block, which must be off its shelf, back to the system. The block is not used again.

    malloc keeps them when the block is freed, and a larger block has no room there: so both would be there at once.
    """
    if block is not None:
        libc.drop_pages(block.address, block.size)


_pool = Pool()
empty, empty_like = _pool.empty, _pool.empty_like
workspace, put = _pool.workspace, _pool.put


def maker(size: int, *, exact: bool = False) -> Callable[..., Tensor]:
    """`empty` for tensors of at most `size` bytes: torch's own, if the pool has none that are so small."""
    return Tensor.new_empty if size < LEAST else partial(empty, exact=exact)


def release() -> int:
    """Gives the memory that plait keeps for the next step back to the system, and returns how many bytes that was.

    Tensors that you still have are not touched. Without this call, memory goes back by itself when it was not used for
    10 seconds. The next step takes what it needs again, and so it is a little slower.
    """
    return _pool.release()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_pool.__init__)  # type: ignore[misc]
