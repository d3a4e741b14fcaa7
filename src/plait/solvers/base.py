"""What a solver is, and what it says about its work."""

import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import count
from typing import Any, ClassVar, NamedTuple, Self
from weakref import WeakValueDictionary

from torch import Tensor

from ..engines import Engine, Gradients, Layout, Needs, Prepared
from ..errors import PlaitError, PlaitWarning
from .warm_start import Visit


class Problem(NamedTuple):
    """One layer of one call, as both passes are given it."""

    engine: Engine
    ps: Sequence[Prepared]  # per direction
    layout: Layout
    visits: Sequence[Visit] = ()  # per direction; without them time is never cut


class Solver(ABC):
    """Runs one layer through time by calling an engine."""

    name: ClassVar[str]
    known: ClassVar["WeakValueDictionary[int, Solver]"] = WeakValueDictionary()
    numbers: ClassVar["count[int]"] = count(1)
    sweeps = False  # whether it calls the engine several times: then weights are packed to last
    key: int  # a number that is unique in this process: torch.compile's op finds the solver by it

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        self.key = next(Solver.numbers)
        Solver.known[self.key] = self
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "key"}  # a copy has another

    @property
    def text(self) -> str:
        """Its name and the options that are not the default: `solvers.parse` reads it."""
        options = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]  # type: ignore[arg-type]
        return self.name + (":" + ",".join(f"{name}={value}" for name, value in options) if options else "")

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        known: dict[str, Any] = {f.name: f for f in fields(cls)} if is_dataclass(cls) else {}
        for name in options:
            if name not in known:
                has = f"it has {', '.join(known)}" if known else "it has no options"
                raise PlaitError(f"solver {cls.name}: option '{name}' is not known; {has}.")
        return cls(**{name: read(cls.name, name, text, known[name].default) for name, text in options.items()})

    def check_steps(self, T: int) -> None:  # noqa: B027
        """Refuses sequences of T steps if it cannot solve them."""

    def is_cut(self, H: int, layout: Layout, visits: Sequence[Visit], keep: bool) -> bool:
        """Whether the solver runs this call itself. If not, the engine's serial plan runs it, and the visits say so."""
        return True

    @abstractmethod
    def forward(
        self, problem: Problem, x: Tensor, state0: Sequence[Tensor] | None, *, keep: bool
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """-> rows, last states, what is saved for backward"""

    @abstractmethod
    def backward(
        self,
        problem: Problem,
        x: Tensor,
        saved: Sequence[Tensor],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
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


def read(solver: str, name: str, text: str, default: Any) -> Any:
    """An option, of its default's type; 'auto' and None stand for a number."""
    if text == str(default):
        return default
    if isinstance(default, bool):
        if text not in ("True", "False", "true", "false", "yes", "no"):
            raise PlaitError(f"solver {solver}: {name}={text}: expected yes or no.")
        return text in ("True", "true", "yes")
    if name in ("relax", "start"):
        return text
    is_whole = isinstance(default, int) or default == "auto"
    if is_whole and re.fullmatch(r"-?\d{1,9}", text, re.ASCII):
        return int(text)
    try:
        if is_whole:
            raise ValueError
        return float(text)
    except ValueError:
        kind = "a whole number" if is_whole else "a number"
        also = f", or {default}" if default in ("auto", None) else ""
        raise PlaitError(f"solver {solver}: {name}={text}: expected {kind}{also}.") from None


def check_number(solver: str, name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise PlaitError(f"solver {solver}: {name}={value!r}: expected a whole number from {least} to {most}.")


def check_tolerance(solver: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        zero = " (for exact gradients use plait.Serial())" if value == 0 else ""
        raise PlaitError(f"solver {solver}: tolerance={value!r}: expected a number above 0 and below 1{zero}.")


class NotFinite(PlaitError):
    """States, or their gradients, that are not numbers any more."""


def check_flag(solver: str, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise PlaitError(f"solver {solver}: {name}={value!r}: expected True or False.")


def check_finite(residual: float, what: str) -> None:
    if not math.isfinite(residual):
        raise NotFinite(
            f"{what} are not finite: look for NaN in the input and the weights, or lower the learning rate."
        )


def say(visit: Visit, topic: str, sentence: str) -> None:
    if topic not in visit.warm_start.said:
        visit.warm_start.said.add(topic)
        warnings.warn(sentence, PlaitWarning, stacklevel=2)
