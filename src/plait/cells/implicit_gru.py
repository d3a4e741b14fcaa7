from .base import Cell


class ImplicitGRU(Cell):
    """r, z = sigmoid(W x + b + R h + c)    n = tanh(W x + b + r (R h + c))
    h' = (h + dt (1 - z) n) / (1 + dt (1 - z))

    The backward Euler step of h' = (1 - z)(n - h) with the gates at the old state: stable for every dt > 0.
    """

    gates, states = ("r", "z", "n"), ("h",)

    def step(wx, rh, state, dt, ops):
        (h,) = state
        r, z = ops.sigmoid(wx[0] + rh[0]), ops.sigmoid(wx[1] + rh[1])
        n = ops.tanh(wx[2] + r * rh[2])
        a = dt * (1 - z)
        return (h + a * n) / (1 + a)
