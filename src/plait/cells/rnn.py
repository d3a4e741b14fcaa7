from .base import Cell


class RNN(Cell):
    """h' = tanh(W x + b + R h + c)

    A longer step is the same step: the cell has no time scale of its own.
    """

    gates, states, mode = ("a",), ("h",), "RNN_TANH"

    def step(wx, rh, state, ops):
        return ops.tanh(wx[0] + rh[0])


class RNNRelu(Cell):
    """h' = max(0, W x + b + R h + c)"""

    gates, states, mode = ("a",), ("h",), "RNN_RELU"

    def step(wx, rh, state, ops):
        return ops.relu(wx[0] + rh[0])
