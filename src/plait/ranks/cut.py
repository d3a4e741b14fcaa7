"""How a network is cut: layers into stages, sequences into micro-batches, time into chunks."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor

from ..errors import PlaitError
from ..layout import Layout
from .schedule import Schedule, balance, wavefront


class Cut(NamedTuple):
    split: Sequence[int]  # layers of each stage
    chunks: int
    micro: int = 1
    early: int = 0  # chunks that are decoded in the forward pass
    step_cost: float = 0.0  # of a step, in rows: chunks are balanced by steps * step_cost + rows

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "split": list(self.split)}

    @classmethod
    def of(cls, value: Any) -> "Cut":
        try:
            chunks, micro, early = (int(value[name]) for name in ("chunks", "micro", "early"))
            cut = cls(tuple(map(int, value["split"])), chunks, micro, early, float(value["step_cost"]))
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise PlaitError(f"a cut into stages cannot be read ({type(e).__name__}: {e}).") from None
        if min(*cut.split, cut.chunks, cut.micro, 1 + cut.early) < 1 or not 0 <= cut.step_cost < 1e9:
            raise PlaitError(f"a cut into stages makes no sense: {cut}.")
        return cut

    def bounds(self, layout: Layout) -> Sequence[int]:
        """Where the chunks of a batch begin, and the end: 0, ..., T."""
        return balance([self.step_cost + size for size in layout.sizes], self.chunks)

    def micros(self, layout: Layout) -> "list[MicroBatch]":
        count = min(self.micro, layout.B)
        return [MicroBatch(self, *layout.every(m, count), m, count) for m in range(count)]

    def schedule(self, micros: "Sequence[MicroBatch]") -> Schedule:
        return made(tuple(len(m.chunks) for m in micros), len(self.split), self.early)


made = lru_cache(64)(wavefront)


class MicroBatch:
    def __init__(self, cut: Cut, layout: Layout, rows: Tensor, number: int, count: int) -> None:
        bounds = cut.bounds(layout)
        self.layout, self.rows = layout, rows  # rows: where its rows are in the batch
        self.columns = slice(number, None, count)  # its sequences, counted from the longest
        self.chunks = [layout.cut(t0, t1) for t0, t1 in pairwise(bounds)]
        self.slices = [layout.rows(t0, t1) for t0, t1 in pairwise(bounds)]
