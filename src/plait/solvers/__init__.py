"""How a sequence is solved over time. Autograd calls a solver, and the solver calls an engine."""

from ..errors import PlaitError
from .base import Solver
from .serial import Serial

SOLVERS: dict[str, type[Solver]] = {"serial": Serial}


def find(text: str, key: int = 0) -> Solver:
    """The solver of a layer, by its key; or a new one with the same options, if that does not exist any more."""
    found = Solver.known.get(key)
    return found if found is not None and found.text == text else parse(text)


def parse(text: str) -> Solver:
    """The solver of a text such as name:option=value,option=value."""
    name, _, rest = text.partition(":")
    if name not in SOLVERS:
        raise PlaitError(f"solver '{name}': expected one of {', '.join(SOLVERS)}.")
    options = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    return SOLVERS[name].of(options)


__all__ = ["SOLVERS", "Serial", "Solver", "find", "parse"]
