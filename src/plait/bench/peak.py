"""The peak: what the register tile reaches on this machine from its first cache, on as many threads as the layers.

It is the limit of what plait's kernels can reach, and is measured in the same run. Other work on the machine can only
lower a sample, so the best of many counts.
"""

import time
from array import array
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

from .. import cells
from ..kernels import compiler, threads
from ..kernels.records import peak as PEAK
from ..kernels.schedule import DEFAULT
from ..kernels.target import Form

Item = TypeVar("Item")

FIRST_CACHE = 24 << 10  # bytes for rows and panel; all processors that plait knows have 32 KiB or more
BURSTS = 15  # of a sample
WORK = 1e8  # multiplications and additions of a thread in a burst: about a millisecond, so that some are undisturbed
EACH = 32  # tiles that a thread computes at a time


class Peak:
    """sample() measures, `best` is the most that was seen, in GFLOP/s."""

    def __init__(self, cell: str) -> None:
        """cell: any; the tile is the same for all, but its code is stored with a cell's."""
        form = Form(cells.get(cell), 1, DEFAULT.target(double=False))
        target = form.target
        depth = FIRST_CACHE // ((target.rows + target.width) * target.size) // 16 * 16
        self.rows, self.panel = torch.rand(target.rows, depth), torch.rand(depth + 1, target.width)
        self.block = torch.zeros(PEAK.PEAK_SIZE, dtype=torch.int64)
        self.count, self.best = threads.threads(), 0.0
        piece = 2 * target.rows * target.width * depth * EACH
        pieces = self.count * round(WORK / piece)
        self.work = pieces * piece
        words = [0] * PEAK.PEAK_SIZE
        for word, value in (
            (PEAK.TILE, compiler.leaves(form)["plait_product"]),
            (PEAK.KEY, 32 * target.rows + 2),  # all rows, one panel (tile.py)
            (PEAK.A, self.rows.data_ptr()),
            (PEAK.ROW, depth * target.size),
            (PEAK.STEP, target.size),
            (PEAK.DEPTH, depth),
            (PEAK.PANEL, self.panel.data_ptr()),
            (PEAK.PIECES, pieces),
            (PEAK.EACH, EACH),
        ):
            words[word] = value
        # no slots and no inner pointers: the addresses are known (launched.py)
        self.program = array("q", [compiler.peak(), self.count, len(words), 0, 0, *words])

    def burst(self) -> float:
        """-> seconds"""
        start = time.perf_counter()
        threads.run(self.program.buffer_info()[0], 0, self.block.data_ptr(), self.count)
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
        threads = f"{self.count} thread{'s' if self.count > 1 else ''}"
        return f"peak: {self.best:.1f} GFLOP/s, of the register tile from the first cache, on {threads}."
