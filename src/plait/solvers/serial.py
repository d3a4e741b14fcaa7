"""One step after another. It is exact. Engine `fused` does it in one launch forward and one back."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..engines import Engine, Gradients, Prepared
from ..errors import PlaitError
from .base import Solver


class Serial(Solver):
    """One step after another: exact, and the default. `plait.LSTM(8, 32, solver=plait.Serial())`"""

    text = "serial"

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Serial":
        if options:
            raise PlaitError(f"solver serial has no options, found '{next(iter(options))}': leave it out.")
        return cls()

    def forward(
        self, engine: Engine, ps: Sequence[Prepared], *arguments: Any, **options: Any
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        return engine.forward(ps, *arguments, **options)

    def backward(self, engine: Engine, ps: Sequence[Prepared], *arguments: Any, **options: Any) -> Gradients:
        return engine.backward(ps, *arguments, **options)
