from .base import Cell, geometric


class LSTM(Cell):
    """i, f, o = sigmoid(W x + b + R h + c)    g = tanh(W x + b + R h + c)
    c' = f c + i g    h' = o tanh(c')

    A step of dt holds the gates still: c' = f**dt c + i g (1 + f + ... + f**(dt-1)).
    """

    gates, states, mode = ("i", "f", "g", "o"), ("h", "c"), "LSTM"

    def step(wx, rh, state, dt, ops):
        _, c = state
        i, f = ops.sigmoid(wx[0] + rh[0]), ops.sigmoid(wx[1] + rh[1])
        g, o = ops.tanh(wx[2] + rh[2]), ops.sigmoid(wx[3] + rh[3])
        keep, gain = geometric(f, dt)
        c = keep * c + i * g * gain
        return o * ops.tanh(c), c
