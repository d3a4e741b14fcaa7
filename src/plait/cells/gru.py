from .base import Cell, geometric


class GRU(Cell):
    """r, z = sigmoid(W x + b + R h + c)    n = tanh(W x + b + r (R h + c))
    h' = z h + (1 - z) n

    A step of dt is z**dt h + (1 - z**dt) n: exact while the gates stand still, and stable.
    """

    gates, states, mode = ("r", "z", "n"), ("h",), "GRU"

    def step(wx, rh, state, dt, ops):
        (h,) = state
        r, z = ops.sigmoid(wx[0] + rh[0]), ops.sigmoid(wx[1] + rh[1])
        n = ops.tanh(wx[2] + r * rh[2])
        keep, _ = geometric(z, dt)
        return keep * h + (1 - keep) * n
