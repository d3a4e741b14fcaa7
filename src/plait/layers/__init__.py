"""torch.nn's recurrent layers with another forward: the same arguments, parameters and results, and `lengths=`."""

from .arguments import state_of, states_of
from .held import packed
from .own import CellLayer, ImplicitGRU, layer
from .recurrent import Recurrent
from .twins import GRU, LSTM, RNN, accelerate, restore

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
