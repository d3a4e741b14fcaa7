"""The peak: what the register tile reaches on this machine from its first cache, on as many threads as the layers.

Other work on the machine can only lower a sample, so the best of many counts.
"""

import time
from array import array
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

from ...errors import counted
from ...kernels.launch import compiler, threads
from ...kernels.launch.schedule import DEFAULT
from ...kernels.records import Head, RecordType, word

Item = TypeVar("Item")

FIRST_CACHE = 24 << 10  # bytes for rows and panel; all processors that plait knows have 32 KiB or more
BURSTS = 15  # of a sample
WORK = 1e8  # operations of a thread in a burst: about a millisecond
EACH = 32  # tiles that a thread computes at a time


class Burst(metaclass=RecordType):
    """Stands in the place of a launch."""

    ALONE = word()  # plait_start writes it
    TILE = word()  # address of the tile's code
    KEY = word()  # which of its tiles
    A = word()  # address of the rows,
    ROW = word()  # bytes from row to row
    STEP = word()  # and from term to term
    DEPTH = word()  # terms of a sum
    PANEL = word()  # address
    PIECES = word()  # pieces of work
    EACH = word()  # how often a piece computes the tile
    TAKEN = word(new_line=True)  # ticket: pieces that were taken


class Peak:
    """sample() measures, `best` is the most that was seen, in GFLOP/s. rounded: of products of bfloat16 numbers"""

    def __init__(self, *, rounded: bool = False) -> None:
        from .peak_loop import run  # imports numba, which is slow

        target = DEFAULT.target(double=False, rounded=rounded)
        depth = FIRST_CACHE // ((target.rows + target.width) * target.size) // 16 * 16
        self.rows, self.panel = torch.rand(target.rows, depth), torch.rand(depth + 1, target.width)
        self.block = torch.zeros(Burst.SIZE, dtype=torch.int64)
        self.count, self.best = threads.threads(), 0.0
        piece = 2 * target.rows * target.width * depth * EACH
        pieces = self.count * round(WORK / piece)
        self.work = pieces * piece * (2 if rounded else 1)  # two terms in a word
        words: dict[int, int] = {
            Burst.TILE: compiler.products(target)["plait_product"],
            Burst.KEY: 32 * target.rows + 2,  # all rows, one panel (tile.py)
            Burst.A: self.rows.data_ptr(),
            Burst.ROW: depth * target.size,
            Burst.STEP: target.size,
            Burst.DEPTH: depth,
            Burst.PANEL: self.panel.data_ptr(),
            Burst.PIECES: pieces,
            Burst.EACH: EACH,
        }
        record = [words.get(k, 0) for k in range(Burst.SIZE)]
        head = {Head.KERNEL: run.address or 0, Head.WORDS: len(record)}
        self.program = array("q", [*(head.get(k, 0) for k in range(Head.SIZE)), *record])
        self.bindings = array("q", [0])  # no slots: addresses are known

    def burst(self) -> float:
        """-> seconds"""
        program, bindings = (some.buffer_info()[0] for some in (self.program, self.bindings))
        start = time.perf_counter()
        threads.run(program, bindings, self.block.data_ptr(), self.count)
        return time.perf_counter() - start

    def sample(self) -> None:
        self.burst()  # the threads are awake
        seconds = min(self.burst() for _ in range(BURSTS))
        self.best = max(self.best, self.work / seconds / 1e9)

    def between(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, with a sample before each of them and after the last."""
        for item in items:
            self.sample()
            yield item
        self.sample()

    def __str__(self) -> str:
        threads = counted(self.count, "thread")
        return f"peak: {self.best:.1f} GFLOP/s, of the register tile from the first cache, on {threads}."
