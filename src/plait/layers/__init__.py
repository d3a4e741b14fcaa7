"""torch.nn's recurrent layers with another forward: the same arguments, parameters and results, and `lengths=`."""

from .arguments import state_of, states_of
from .cell_layer import CellLayer, ImplicitGRU, layer
from .drop_in import GRU, LSTM, RNN, accelerate, restore
from .pinned import packed
from .recurrent import Recurrent

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "CellLayer",
    "ImplicitGRU",
    "Recurrent",
    "accelerate",
    "layer",
    "packed",
    "restore",
    "state_of",
    "states_of",
]
