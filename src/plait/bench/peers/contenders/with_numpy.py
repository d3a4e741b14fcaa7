"""NumPy: whole training steps, as someone who knows NumPy well writes them.

Units come first and the batch last, (T, G, H, B): a gate of a step is then one block of memory, and so are adjacent
gates. The input is multiplied once for all steps. A sigmoid is tanh of half its argument, and the halves are in the
weights, so that one tanh serves all gates. What the backward pass can know beforehand is computed for all steps at
once: in its loop, a few products remain. The gradient of a weight is one product over all steps. Buffers are made once.
"""

import numpy as np

from .network import WEIGHTS, Array, Network, Stepper, Weights


def buffer(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def slope(y: Array, out: Array) -> None:
    """1 - y y: the derivative of tanh."""
    np.multiply(y, y, out=out)
    np.subtract(1, out, out=out)


class Layer:
    """The recurrence of one cell, its buffers and its weights, whose gates are in the cell's own order."""

    gates: tuple[int, ...]  # where W's are in torch's weights; the one that is no sigmoid is the last
    gates_r: tuple[int, ...]  # the same for R
    tanh: int  # which of torch's is no sigmoid
    parts: int  # gradients for each unit and step: R's are the first of them, W's the last

    def __init__(self, weights: Weights, B: int, T: int) -> None:
        G, P, (GH, H) = len(self.gates), self.parts, weights["w_hh"].shape
        self.B, self.T, self.H, self.GH, self.given = B, T, H, GH, weights
        self.rows = [np.arange(GH).reshape(G, H)[list(gates)].ravel() for gates in (self.gates, self.gates_r)] * 2
        self.half = [np.where(rows // H == self.tanh, 1, np.float32(0.5))[:, None] for rows in self.rows]
        found = zip(weights.values(), self.rows, self.half, strict=False)
        self.own = [weight.reshape(GH, -1)[rows] * half for weight, rows, half in found]
        # Those of sigmoids are kept halved: (G*H, I), (G*H, H), (G*H, 1), (G*H, 1)
        self.w, self.r, self.b_ih, self.b_hh = self.own
        self.d_w, self.d_r, self.r_whole = map(np.empty_like, (self.w, self.r, self.r))
        self.z, self.rh, self.h = buffer(T, G, H, B), buffer(G, H, B), buffer(T + 1, H, B)  # h[0] stays 0
        self.known, self.d = buffer(T, P, H, B), buffer(T, P, H, B)
        self.d_h, self.some = buffer(H, B), buffer(H, B)
        self.d_rows, self.h_rows = buffer(P, H, T, B), buffer(T, B, H)

    def weights(self) -> dict[str, Array]:
        found = {}
        for name, own, rows, half in zip(WEIGHTS, self.own, self.rows, self.half, strict=False):
            found[name] = np.empty_like(self.given[name])
            found[name][rows] = (own / half).reshape(found[name].shape)
        return found

    def forward(self, x: Array) -> Array:  # (T, B, I) -> (H, B)
        z, rh = self.z.reshape(self.T, self.GH, self.B), self.rh.reshape(self.GH, self.B)
        np.matmul(self.w, x.transpose(0, 2, 1), out=z)
        z += self.bias()
        for t in range(self.T):
            np.matmul(self.r, self.h[t], out=rh)
            self.step(t)
        last: Array = self.h[self.T]
        return last

    def backward(self, x: Array, lr: float) -> None:
        """From d_h, the gradient of the last state. The weights move."""
        GH, N = self.GH, self.T * self.B
        self.know()
        np.divide(self.r, self.half[1], out=self.r_whole)
        of_r = self.d.reshape(self.T, -1, self.B)[:, :GH]
        for t in range(self.T - 1, -1, -1):
            self.step_back(t)
            if t:
                np.matmul(self.r_whole.T, of_r[t], out=self.d_h)
        np.copyto(self.d_rows, self.d.transpose(1, 2, 0, 3))
        np.copyto(self.h_rows, self.h[:-1].transpose(0, 2, 1))
        d = self.d_rows.reshape(-1, N)
        d_b = d.sum(1, keepdims=True)
        np.matmul(d[-GH:], x.reshape(N, -1), out=self.d_w)
        np.matmul(d[:GH], self.h_rows.reshape(N, -1), out=self.d_r)
        for own, half, gradient in zip(self.own, self.half, (self.d_w, self.d_r, d_b[-GH:], d_b[:GH]), strict=True):
            own -= lr * half * gradient

    def bias(self) -> Array:
        return self.b_ih + self.b_hh

    def step(self, t: int) -> None:
        """h of a step, from z and rh."""

    def know(self) -> None:
        """`known`: derivatives of every step that need nothing from later ones."""

    def step_back(self, t: int) -> None:
        """d of a step, from `known` and d_h."""


class RNN(Layer):
    gates = gates_r = (0,)
    tanh, parts = 0, 1

    def step(self, t: int) -> None:
        np.add(self.z[t], self.rh, out=self.rh)
        np.tanh(self.rh[0], out=self.h[t + 1])

    def know(self) -> None:
        slope(self.h[1:], self.known[:, 0])

    def step_back(self, t: int) -> None:
        np.multiply(self.d_h, self.known[t], out=self.d[t])


class LSTM(Layer):
    gates = gates_r = (3, 0, 1, 2)  # o i f g
    tanh, parts = 2, 4

    def __init__(self, weights: Weights, B: int, T: int) -> None:
        super().__init__(weights, B, T)
        self.c, self.tanh_c = buffer(T + 1, self.H, B), buffer(T, self.H, B)
        self.through, self.d_c = buffer(T, self.H, B), buffer(self.H, B)

    def step(self, t: int) -> None:
        z, c = self.z[t], self.c[t + 1]
        z += self.rh
        np.tanh(z, out=z)
        sigmoids = z[:3]
        sigmoids *= 0.5
        sigmoids += 0.5
        o, i, f, g = z
        np.multiply(f, self.c[t], out=c)
        np.multiply(i, g, out=self.some)
        c += self.some
        np.tanh(c, out=self.tanh_c[t])
        np.multiply(o, self.tanh_c[t], out=self.h[t + 1])

    def know(self) -> None:
        (o, i, _, g), (d_o, d_i, d_f, d_g) = self.z.swapaxes(0, 1), self.known.swapaxes(0, 1)
        sigmoids, known = self.z[:, :3], self.known[:, :3]
        np.subtract(1, sigmoids, out=known)
        known *= sigmoids
        d_o *= self.tanh_c
        d_i *= g
        d_f *= self.c[:-1]
        slope(g, d_g)
        d_g *= i
        slope(self.tanh_c, self.through)
        self.through *= o  # the derivative of h by c
        self.d_c.fill(0)

    def step_back(self, t: int) -> None:
        d, known = self.d[t], self.known[t]
        np.multiply(self.d_h, self.through[t], out=self.some)
        self.d_c += self.some
        np.multiply(self.d_h, known[0], out=d[0])
        np.multiply(self.d_c, known[1:], out=d[1:])
        self.d_c *= self.z[t, 2]


class GRU(Layer):
    gates, gates_r = (0, 1, 2), (2, 0, 1)  # the gradient of n, for R times r, comes first; for W, without it, last
    tanh, parts = 2, 4

    def __init__(self, weights: Weights, B: int, T: int) -> None:
        super().__init__(weights, B, T)
        self.rh_n = buffer(T, self.H, B)

    def bias(self) -> Array:
        total = self.b_ih.copy()
        total[: 2 * self.H] += self.b_hh[self.H :]
        return total

    def step(self, t: int) -> None:
        (r, z, n), sigmoids, h = self.z[t], self.z[t, :2], self.h[t + 1]
        sigmoids += self.rh[1:]
        np.tanh(sigmoids, out=sigmoids)
        sigmoids *= 0.5
        sigmoids += 0.5
        np.add(self.rh[0], self.b_hh[: self.H], out=self.rh_n[t])
        np.multiply(r, self.rh_n[t], out=self.some)
        n += self.some
        np.tanh(n, out=n)
        np.subtract(self.h[t], n, out=h)
        h *= z
        h += n

    def know(self) -> None:
        (r, z, n), (d_rh, d_r, d_z, d_n) = self.z.swapaxes(0, 1), self.known.swapaxes(0, 1)
        slope(n, d_n)
        np.subtract(1, z, out=d_z)
        d_n *= d_z
        d_z *= z
        np.subtract(self.h[:-1], n, out=d_r)
        d_z *= d_r
        np.multiply(d_n, r, out=d_rh)
        np.subtract(1, r, out=d_r)
        d_r *= d_rh
        d_r *= self.rh_n
        self.some.fill(0)

    def step_back(self, t: int) -> None:
        self.d_h += self.some  # past the gates, from the step after this
        np.multiply(self.d_h, self.known[t], out=self.d[t])
        np.multiply(self.d_h, self.z[t, 1], out=self.some)


CELLS: dict[str, type[Layer]] = {"lstm": LSTM, "gru": GRU, "rnn": RNN}


class NumPy(Stepper):
    def __init__(self, net: Network) -> None:
        super().__init__(net)
        B, T, *_ = net.sizes
        self.layer = CELLS[net.cell](net.weights, B, T)
        self.v, self.b = net.weights["w_out"].copy(), net.weights["b_out"].copy()

    def step(self, x: Array, y: Array) -> float:
        h = self.layer.forward(x)
        d_p = self.v @ h  # (O, B)
        d_p += self.b[:, None]
        d_p -= y.T
        loss = float(np.vdot(d_p, d_p)) / d_p.size
        d_p *= 2 / d_p.size
        np.matmul(self.v.T, d_p, out=self.layer.d_h)
        self.v -= self.rate * (d_p @ h.T)
        self.b -= self.rate * d_p.sum(1)
        self.layer.backward(x, self.rate)
        return loss

    def weights(self) -> Weights:
        return {**self.layer.weights(), "w_out": self.v.copy(), "b_out": self.b.copy()}


def prepare(net: Network, variant: str) -> NumPy:
    return NumPy(net)
