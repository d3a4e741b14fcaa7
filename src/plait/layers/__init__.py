"""torch.nn's recurrent layers with another forward: the same arguments, parameters and results, and `lengths=`."""

from . import neighbours  # noqa: F401  # they are awaited from now on
from .arguments import state_of, states_of
from .cell_layer import CellLayer, ImplicitGRU, layer
from .drop_in import GRU, LSTM, RNN
from .layer_report import report
from .new_layers import everywhere
from .pinned import packed
from .recurrent import Recurrent
from .step_cells import GRUCell, LSTMCell, RNNCell
from .swap import accelerate, restore

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "CellLayer",
    "GRUCell",
    "ImplicitGRU",
    "LSTMCell",
    "RNNCell",
    "Recurrent",
    "accelerate",
    "everywhere",
    "layer",
    "packed",
    "report",
    "restore",
    "state_of",
    "states_of",
]
