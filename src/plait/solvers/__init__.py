"""How a sequence is solved over time: the seam between autograd and the engines."""

from ..errors import PlaitError
from .base import Solver
from .serial import Serial

SOLVERS: dict[str, type[Solver]] = {"serial": Serial}


def find(text: str, key: int = 0) -> Solver:
    """The solver that a layer has, by its key; or another with the same options, if that one is gone."""
    found = Solver.known.get(key)
    return found if found is not None and found.text == text else parse(text)


def parse(text: str) -> Solver:
    """name:option=value,option=value"""
    name, _, rest = text.partition(":")
    if name not in SOLVERS:
        raise PlaitError(f"solver '{name}': expected one of {', '.join(SOLVERS)}.")
    options = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    return SOLVERS[name].of(options)


__all__ = ["SOLVERS", "Serial", "Solver", "find", "parse"]
