"""How a pass through time went."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Solve:
    iterations: int = 1  # passes over all pieces, or some of them, until they fit
    residual: float = 0.0  # the largest relative gap left between two pieces
    converged: bool = True  # whether that is within the tolerance
    work: float = 1.0  # steps taken for each step of the sequences; one walk is 1
    split: bool = False  # whether time was cut into pieces; if not, it was one exact walk

    @classmethod
    def worst(cls, some: Sequence["Solve"]) -> "Solve":
        return cls(
            max(s.iterations for s in some),
            max(s.residual for s in some),
            all(s.converged for s in some),
            sum(s.work for s in some) / len(some),
            any(s.split for s in some),
        )


EXACT = Solve()


class Solves(NamedTuple):
    """Of a layer's last call. backward: None before it has run."""

    forward: Solve
    backward: Solve | None
