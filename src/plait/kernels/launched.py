"""What can run any number of times: a block of words (records/), and which of them are addresses.

From call to call only the addresses differ, and for ragged batches the numbers of steps and rows, which come with them.
plait_start (recurrence.py) copies the block into the workspace of the call and writes these into it.
"""

from array import array
from collections.abc import Sequence
from itertools import chain

from . import compiler, pool, threads
from .addresses import WORKSPACE
from .records import launch as LAUNCH


class Launched:
    """It runs on `count` threads."""

    count: int
    head: int  # bytes of the block in the workspace
    bytes: int  # of the workspace
    words: list[int]
    slots: list[tuple[int, int, int]]  # word, number of the address, bytes after it
    inner: list[tuple[int, int]]  # word, bytes from the beginning of the block to what it points to

    def seal(self) -> None:
        table = chain(*self.slots, *self.inner)
        lead = (compiler.shared()["plait_run"], self.count, len(self.words), len(self.slots), len(self.inner))
        self.memory = array("q", [*lead, *self.words, *table])
        self.address = self.memory.buffer_info()[0]

    def run(self, addresses: Sequence[int]) -> None:
        """With the addresses in the order of the table, without that of the workspace."""
        workspace = pool.workspace(self.bytes)
        memory = workspace.address
        words = array("q", [memory, *addresses])
        threads.run(self.address, words.buffer_info()[0], memory, self.count)
        pool.put(workspace)


class Chain(Launched):
    """Programs that one launch runs, one after the other, with the same addresses and the same number of threads."""

    def __init__(self, programs: Sequence[Launched]) -> None:
        self.count, self.words, self.slots, self.inner = programs[0].count, [], [], []
        self.head = heads = sum(p.head for p in programs)
        for k, p in enumerate(programs):
            first = len(self.words)
            self.words += p.words
            for word, number, after in p.slots:
                moved = heads - p.head if number == WORKSPACE else 0  # all use the same memory behind the blocks
                self.slots.append((first + word, number, after + moved))
            self.inner += [(first + word, 8 * first + to) for word, to in p.inner]
            if k < len(programs) - 1:
                self.inner.append((first + LAUNCH.NEXT, 8 * len(self.words)))
        self.bytes = heads + max(p.bytes - p.head for p in programs)
        self.seal()
