"""What a solver is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

from torch import Tensor

from ..engines import Engine, Gradients, Layout, Needs, Prepared


class Solver(ABC):
    """Runs one layer through time, forward and back, by calling an engine. Arguments and results are those of
    Engine.forward and Engine.backward.
    """

    known: ClassVar["WeakValueDictionary[int, Solver]"] = WeakValueDictionary()
    numbers: ClassVar["count[int]"] = count(1)
    sweeps = False  # whether it calls the engine more than once a pass: then the weights are packed to last
    key: int  # a number that is unique in this process: torch.compile's op finds the solver by it

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        self.key = next(Solver.numbers)
        Solver.known[self.key] = self
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "key"}  # a copy has another

    @property
    @abstractmethod
    def text(self) -> str:
        """Its name and options, for torch.compile's op. `solvers.parse` makes an equal solver from it."""

    @classmethod
    @abstractmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From the options of its text."""

    @abstractmethod
    def forward(
        self,
        engine: Engine,
        ps: Sequence[Prepared],
        x: Tensor,
        state0: Sequence[Tensor] | None,
        layout: Layout,
        *,
        keep: bool,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """-> rows, last states, what is kept"""

    @abstractmethod
    def backward(
        self,
        engine: Engine,
        ps: Sequence[Prepared],
        x: Tensor,
        kept: Sequence[Tensor],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
        layout: Layout,
        *,
        needs: Needs,
        spend: bool,
    ) -> Gradients: ...

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Solver) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)
