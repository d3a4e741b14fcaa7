"""The equations, once. Everything else in plait is derived from a cell's `step` or tested against it."""

from functools import cache
from zlib import crc32

from ..errors import PlaitError, unknown
from .base import Cell, Ops
from .gru import GRU
from .implicit_gru import ImplicitGRU
from .lstm import LSTM
from .rnn import RNN, RNNRelu

CELLS: dict[str, type[Cell]] = {cell.name: cell for cell in (RNN, RNNRelu, LSTM, GRU, ImplicitGRU)}


def get(name: str) -> type[Cell]:
    if name not in CELLS:
        raise unknown("cell", name, CELLS)
    return CELLS[name]


BY_MODE = {cell.mode: cell for cell in CELLS.values() if cell.mode is not None}  # as torch.nn's layers call them
_known: dict[str, type[Cell]] = dict(CELLS)


def key(cell: type[Cell]) -> str:
    """A name by which torch.compile's op finds a cell, in a later process too."""
    return _key(cell)  # type: ignore[arg-type]  # mypy takes a class's __hash__ for that of its objects


key._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler's mark, without importing dynamo


@cache
def _key(cell: type[Cell]) -> str:
    from . import trace  # and torch with it, which `plait --help` does without

    if CELLS.get(cell.name) is cell:
        return cell.name
    text = trace.why_untraceable(cell) or trace.trace(cell).step + trace.trace(cell).vjp
    name = f"{cell.__module__}.{cell.__qualname__}:{crc32(text.encode()):08x}"
    while _known.setdefault(name, cell) is not cell:
        name += "'"
    return name


def by_key(name: str) -> type[Cell]:
    if name not in _known:
        raise PlaitError(
            f"cell '{name}' is not known in this process: import the module that has it, and make a layer."
        )
    return _known[name]


__all__ = ["BY_MODE", "CELLS", "GRU", "LSTM", "RNN", "Cell", "ImplicitGRU", "Ops", "RNNRelu", "by_key", "get", "key"]
