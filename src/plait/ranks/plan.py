"""How a network is cut: layers into stages, sequences into micro-batches, time into chunks."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor

from ..errors import PlaitError
from ..layout import Layout
from .schedule import Schedule, cut, wavefront


class Plan(NamedTuple):
    """How a network is cut. It decides the order of sums, so a run keeps it."""

    split: Sequence[int]  # layers of each stage
    chunks: int
    micro: int = 1
    early: int = 0  # chunks that are decoded on the way forward
    step_cost: float = 0.0  # of a step, in rows: chunks have about the same number of rows, counted so

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "split": list(self.split)}

    @classmethod
    def of(cls, value: Any) -> "Plan":
        """What as_dict gave, as it came back from JSON."""
        try:
            chunks, micro, early = (int(value[name]) for name in ("chunks", "micro", "early"))
            plan = cls(tuple(map(int, value["split"])), chunks, micro, early, float(value["step_cost"]))
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise PlaitError(f"a plan of stages cannot be read ({type(e).__name__}: {e}).") from None
        if min(*plan.split, plan.chunks, plan.micro, 1 + plan.early) < 1 or not 0 <= plan.step_cost < 1e9:
            raise PlaitError(f"a plan of stages makes no sense: {plan}.")
        return plan

    def bounds(self, layout: Layout) -> Sequence[int]:
        """Where the chunks of a batch begin, and the end: 0, ..., T."""
        return cut([self.step_cost + size for size in layout.sizes], self.chunks)

    def micros(self, layout: Layout) -> "list[Micro]":
        count = min(self.micro, layout.B)
        return [Micro(self, *layout.part(m, count), m, count) for m in range(count)]

    def schedule(self, micros: "Sequence[Micro]") -> Schedule:
        return made(tuple(len(m.chunks) for m in micros), len(self.split), self.early)


made = lru_cache(64)(wavefront)


class Micro:
    """A micro-batch: some sequences of a batch, cut into chunks of time."""

    def __init__(self, plan: Plan, layout: Layout, rows: Tensor, number: int, count: int) -> None:
        bounds = plan.bounds(layout)
        self.layout, self.rows = layout, rows  # rows: where its rows are in the batch
        self.columns = slice(number, None, count)  # its sequences, counted from the longest
        self.chunks = [layout.cut(t0, t1) for t0, t1 in pairwise(bounds)]
        self.slices = [layout.rows(t0, t1) for t0, t1 in pairwise(bounds)]
