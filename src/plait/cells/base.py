"""What a cell is: its equations, written once, for anything that has + - * / and three functions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol


class Ops(Protocol):
    """The functions a step may use beside + - * /, for one kind of number (see ops.py)."""

    def sigmoid(self, x: Any, /) -> Any: ...
    def tanh(self, x: Any, /) -> Any: ...
    def relu(self, x: Any, /) -> Any: ...
    def masked(self, d: Any, x: Any, /) -> Any: ...  # 0 where x <= 0, else d: what the derivative of relu needs


class Cell(ABC):
    """One recurrent cell. `wx = W x + b` and `rh = R h + c` arrive computed, one value per gate, and stay apart.

    The first state is h, the one that is multiplied by R and that is the layer's output. `dt` is the length of a step,
    1 but on coarse grids in time. What `step` returns as saved is what its author keeps for the backward pass; the
    derivative itself is traced from `step` (trace.py) and recomputes whatever else it needs.
    """

    name: ClassVar[str]
    gates: ClassVar[tuple[str, ...]]  # in torch's order
    states: ClassVar[tuple[str, ...]]
    saved: ClassVar[tuple[str, ...]]

    @staticmethod
    @abstractmethod
    def step(
        wx: Sequence[Any], rh: Sequence[Any], state: Sequence[Any], dt: float, ops: Ops
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """-> new state, saved"""


def geometric(f: Any, dt: float) -> tuple[Any, Any]:
    """f**dt and 1 + f + ... + f**(dt-1), by doubling and from + and * alone, so that both can be traced."""
    if dt < 1 or dt % 1:
        raise ValueError(f"dt {dt}: this cell's step can be lengthened by whole numbers only (1, 2, 3, ...).")
    if dt == 1:
        return f, 1.0
    if dt % 2:
        power, total = geometric(f, dt - 1)
        return power * f, total + power
    power, total = geometric(f, dt // 2)
    return power * power, total * (1.0 + power)
