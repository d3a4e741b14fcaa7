"""What the sections of `bench ladder` are asked, and what they share."""

from dataclasses import dataclass, field
from typing import Any

from .ladder_problem import Problem, problem

Row = dict[str, Any]
EPOCHS = 5  # as in the paper


@dataclass
class Order:
    hidden: int
    quick: bool
    repeats: int
    seed: int
    remarks: list[str] = field(default_factory=list)

    def problem(self, epochs: int = EPOCHS) -> Problem:
        return problem(self.hidden, epochs, self.seed)
