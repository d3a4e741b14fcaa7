"""What a solver is, and what it says about its work."""

import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import count
from typing import Any, ClassVar, NamedTuple, Self
from weakref import WeakValueDictionary

from torch import Tensor

from ..engines import Engine, Gradients, Layout, Needs, Prepared
from ..errors import PlaitError, PlaitWarning
from .past import Visit


@dataclass(frozen=True)
class Solve:
    """How a pass through time went, forward or backward."""

    iterations: int = 1  # passes over all pieces, or a part of them, until they fitted together
    residual: float = 0.0  # the largest gap left between two pieces, relative to the states (or their gradients)
    converged: bool = True  # whether that is within the tolerance
    work: float = 1.0  # steps taken for each step of the sequences: 1 is what one walk takes
    split: bool = False  # whether time was cut into pieces; if not, it was one exact walk

    @classmethod
    def together(cls, some: Sequence["Solve"]) -> "Solve":
        """Of several layers and directions: the worst of each, and the mean of the work."""
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


class Solver(ABC):
    """Runs one layer through time, forward and back, by calling an engine. Arguments and results are those of
    Engine.forward and Engine.backward.
    """

    name: ClassVar[str]
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
    def text(self) -> str:
        """Its name and the options that are not the default. `solvers.parse` makes an equal solver from it."""
        options = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]  # type: ignore[arg-type]
        return self.name + (":" + ",".join(f"{name}={value}" for name, value in options) if options else "")

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From the options of its text."""
        known: dict[str, Any] = {f.name: f for f in fields(cls)} if is_dataclass(cls) else {}
        for name in options:
            if name not in known:
                has = f"it has {', '.join(known)}" if known else "it has no options"
                raise PlaitError(f"solver {cls.name}: option '{name}' is not known; {has}.")
        return cls(**{name: read(cls.name, name, text, known[name].default) for name, text in options.items()})

    def check_steps(self, T: int) -> None:  # noqa: B027
        """Refuses sequences of T steps if it cannot solve them. A task asks before it writes anything."""

    def is_exact(self, H: int, layout: Layout, visits: Sequence[Visit], keep: bool) -> bool:
        """Whether this call is one exact walk, which may then be done in any way. If it is done without `forward` and
        `backward`, then `was_exact` is called after the way there, and `was_exact_back` after the way back.
        """
        return False

    def was_exact(self, visits: Sequence[Visit]) -> None:  # noqa: B027
        """The way there was one exact walk."""

    def was_exact_back(self, visits: Sequence[Visit]) -> None:  # noqa: B027
        """The way back was one exact walk."""

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
        visits: Sequence[Visit] = (),
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """-> rows, last states, what is kept

        visits: of each direction, what the solver knows and finds out. `backward` is given the same.
        """

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
        visits: Sequence[Visit] = (),
    ) -> Gradients: ...

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Solver) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def read(solver: str, name: str, text: str, default: Any) -> Any:
    """An option of a solver, in the kind that its default has. A default of 'auto' or None stands for a number."""
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
    """Once for each layer and topic."""
    if topic not in visit.past.said:
        visit.past.said.add(topic)
        warnings.warn(sentence, PlaitWarning, stacklevel=2)
