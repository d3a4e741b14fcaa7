"""torch.nn's layers with plait's forward. Those that take their place are listed in twins.py."""

from torch import nn

from .. import cells
from ..cells import Cell
from .recurrent import Recurrent


class RNN(Recurrent, nn.RNN):
    """torch.nn.RNN, run by one of plait's engines. Arguments, parameters and results are the same.

        layer = plait.RNN(
            input_size, hidden_size, num_layers=1, nonlinearity="tanh", bias=True, batch_first=False, dropout=0.0,
            bidirectional=False, device=None, dtype=None, engine="auto", solver=plait.Serial(),
            precision=None, checkpoint=None,
        )
        y, h = layer(x, hx=None, lengths=None, ids=None)

    `engine`, `solver`, `precision`, `checkpoint`, `lengths` and `ids` are those of plait.LSTM.
    """

    @property
    def _plait_cell(self) -> type[Cell]:  # type: ignore[override]
        return cells.BY_MODE[self.mode]  # tanh or relu, which a user may change


class LSTM(Recurrent, nn.LSTM):
    """torch.nn.LSTM, run by one of plait's engines. Arguments, parameters and results are the same.

        layer = plait.LSTM(
            input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0,
            bidirectional=False, proj_size=0, device=None, dtype=None, engine="auto", solver=plait.Serial(),
            precision=None, checkpoint=None,
        )
        y, (h, c) = layer(x, hx=None, lengths=None, ids=None)

    `engine` is what runs it: `plait engines` lists them. `solver` is how a sequence is solved over time, or its name.
    `checkpoint` recomputes the steps in the backward pass (gradient checkpointing), from states that are kept after so
    many steps. With "auto" memory grows about with the root of the number of steps; None keeps everything.
    `lengths` are those of the sequences in a padded batch: nothing is computed for padding, and outputs beyond a length
    are zero.
    `precision="bf16"` multiplies bfloat16 numbers and keeps half as much for the backward pass; sums, gates, parameters
    and their gradients stay float32. None does so inside torch.autocast to bfloat16, and "float32" never.
    `ids` say which sequences these are, for a solver that starts from the states of their last visit.
    """

    _plait_cell = cells.LSTM


class GRU(Recurrent, nn.GRU):
    """torch.nn.GRU, run by one of plait's engines. Arguments, parameters and results are the same.

        layer = plait.GRU(
            input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0,
            bidirectional=False, device=None, dtype=None, engine="auto", solver=plait.Serial(),
            precision=None, checkpoint=None,
        )
        y, h = layer(x, hx=None, lengths=None, ids=None)

    `engine`, `solver`, `precision`, `checkpoint`, `lengths` and `ids` are those of plait.LSTM.
    """

    _plait_cell = cells.GRU
