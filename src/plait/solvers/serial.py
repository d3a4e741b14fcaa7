"""One step after another. It is exact. Engine `fused` does it in one launch forward and one back."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..engines import Engine, Gradients, Prepared
from .base import Solver


class Serial(Solver):
    """One step after another: exact, and the default. `plait.LSTM(8, 32, solver=plait.Serial())`"""

    name = text = "serial"

    def is_exact(self, *_: Any) -> bool:
        return type(self) is Serial  # a subclass is asked, whatever it does

    def forward(
        self, engine: Engine, ps: Sequence[Prepared], *arguments: Any, visits: Any = (), **options: Any
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        return engine.forward(ps, *arguments, **options)

    def backward(
        self, engine: Engine, ps: Sequence[Prepared], *arguments: Any, visits: Any = (), **options: Any
    ) -> Gradients:
        return engine.backward(ps, *arguments, **options)
