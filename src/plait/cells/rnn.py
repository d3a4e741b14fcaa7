from .base import Cell


class RNN(Cell):
    """h' = tanh(W x + b + R h + c)

    A longer step is the same step: the cell has no time scale of its own.
    """

    name, gates, states, saved = "rnn", ("a",), ("h",), ()

    @staticmethod
    def step(wx, rh, state, dt, ops):  # type: ignore[no-untyped-def]
        return (ops.tanh(wx[0] + rh[0]),), ()


class RNNRelu(Cell):
    """h' = max(0, W x + b + R h + c)"""

    name, gates, states, saved = "rnn_relu", ("a",), ("h",), ()

    @staticmethod
    def step(wx, rh, state, dt, ops):  # type: ignore[no-untyped-def]
        return (ops.relu(wx[0] + rh[0]),), ()
