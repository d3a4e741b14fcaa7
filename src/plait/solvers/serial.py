"""One step after another. It is exact. Engine `fused` does it in one launch forward and one backward."""

from typing import Any

from torch import Tensor

from ..engines import Gradients
from .base import Problem, Solver


class Serial(Solver):
    """One step after another: exact, and the default. `plait.LSTM(8, 32, solver=plait.Serial())`"""

    name = text = "serial"

    def is_cut(self, *_: Any) -> bool:
        return type(self) is not Serial  # a subclass is asked, whatever it does

    def forward(self, problem: Problem, *rows: Any, **options: Any) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        engine: Any = problem.engine
        found: tuple[Tensor, list[Tensor], list[Tensor]] = engine.forward(problem.ps, *rows, problem.layout, **options)
        return found

    def backward(self, problem: Problem, *rows: Any, **options: Any) -> Gradients:
        engine: Any = problem.engine
        found: Gradients = engine.backward(problem.ps, *rows, problem.layout, **options)
        return found
