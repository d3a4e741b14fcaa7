"""The equations, once. Everything else in plait is derived from a cell's `step` or tested against it."""

from ..errors import unknown
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


__all__ = ["CELLS", "GRU", "LSTM", "RNN", "Cell", "ImplicitGRU", "Ops", "RNNRelu", "get"]
