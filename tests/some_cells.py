"""Cells that plait does not have, as a user would write them."""

from plait.cells import Cell


class MGU(Cell):
    """f = sigmoid(W x + b + R h + c)    n = tanh(W x + b + f (R h + c))    h' = h + f (n - h)"""

    gates, states = ("f", "n"), ("h",)

    def step(wx, rh, state, ops):
        (h,) = state
        f = ops.sigmoid(wx[0] + rh[0])
        n = ops.tanh(wx[1] + f * rh[1])
        return h + f * (n - h)


class BackwardsMGU(Cell):
    """The same, with the gates in the other order: the first one is not shared."""

    gates, states = ("n", "f"), ("h",)

    def step(wx, rh, state, ops):
        return MGU.step(wx[::-1], rh[::-1], state, ops)


class PeepholeLSTM(Cell):
    """i, f = sigmoid(W x + b + R h + c + p c)    g = tanh(W x + b + R h + c)    c' = f c + i g
    o = sigmoid(W x + b + R h + c + p c')    h' = o tanh(c')

    An LSTM whose gates look at its cell state: i and f at the old one, o at the new one.
    """

    gates, states, params = ("i", "f", "g", "o"), ("h", "c"), ("p_i", "p_f", "p_o")

    def step(wx, rh, state, params, ops):
        (_, c), (p_i, p_f, p_o) = state, params
        i, f = ops.sigmoid(wx[0] + rh[0] + p_i * c), ops.sigmoid(wx[1] + rh[1] + p_f * c)
        c = f * c + i * ops.tanh(wx[2] + rh[2])
        o = ops.sigmoid(wx[3] + rh[3] + p_o * c)
        return o * ops.tanh(c), c


class Decay(Cell):
    """s = W x + b + R h + c    n = tanh(W x + b + R h + c)    h' = n + exp(-dt softplus(s)) (h - n)

    The time that a unit forgets in depends on the input.
    """

    gates, states = ("s", "n"), ("h",)

    def step(wx, rh, state, dt, ops):
        (h,) = state
        n = ops.tanh(wx[1] + rh[1])
        return n + ops.exp(-dt * ops.softplus(wx[0] + rh[0])) * (h - n)


class Choosy(Cell):
    """maximum, minimum, abs, where, log, sqrt and a power: for the rules, not for use."""

    gates, states, params = ("a", "b"), ("h", "m"), ("p",)

    def step(wx, rh, state, params, ops):
        (h, m), (p,) = state, params
        a, b = wx[0] + rh[0], wx[1] - rh[1]
        top = ops.minimum(ops.maximum(a, b), 2.0)
        size = ops.sqrt(1 + abs(b) + top**2)
        m = ops.where(a < b, 0.5 * m + p, ops.log(size))
        return ops.tanh(ops.where(m > 0.3, 0.7, 0.1) * top / size + 0.25 * h), m


class Awkward(Cell):
    """The gates whose W x and R h stay apart come first and third."""

    gates, states = ("n", "r", "m", "z"), ("h",)

    def step(wx, rh, state, ops):
        (h,) = state
        r, z = ops.sigmoid(wx[1] + rh[1]), ops.sigmoid(wx[3] + rh[3])
        return z * h + (1 - z) * ops.tanh(wx[0] + r * rh[0]) * ops.sigmoid(wx[2] * rh[2])


class Apart(Cell):
    """In no gate are W x and R h a sum."""

    gates, states = ("a", "b"), ("h",)

    def step(wx, rh, state, ops):
        return ops.tanh(wx[0] + 0.5 * rh[0]) * ops.sigmoid(wx[1] - rh[1])


class Leaky(Cell):
    """f = sigmoid(W x + b + R h + c)    n = tanh(W x + b + f (R h + c))    c' = c + f (n - c)    h' = f tanh(c')

    Gates of both kinds, and a step that does not read h: it can have a projection, too.
    """

    gates, states = ("n", "f"), ("h", "c")

    def step(wx, rh, state, ops):
        _, c = state
        f = ops.sigmoid(wx[1] + rh[1])
        c = c + f * (ops.tanh(wx[0] + f * rh[0]) - c)
        return f * ops.tanh(c), c


SOME = (MGU, BackwardsMGU, PeepholeLSTM, Decay, Choosy)
