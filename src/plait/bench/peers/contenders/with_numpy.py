"""NumPy: whole training steps, as someone who knows NumPy well writes them.

Units come first and the batch last, (T, G*H, B): a gate of a step is then one block of memory, and so are adjacent
gates. The input is multiplied once for all steps. A sigmoid is tanh of half its argument, and the halves are in the
weights, so that one tanh serves all gates. What the backward pass can know beforehand is computed for all steps at
once: in its loop, a few products remain. The gradient of a weight is one product over all steps. Buffers are made once.
"""

from abc import ABC, abstractmethod

import numpy as np

from .network import WEIGHTS, Array, Network, Stepper, Weights


def buffer(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


class Layer(ABC):
    """The recurrence of one cell, its buffers and its weights, whose gates are in the cell's own `order`."""

    order: tuple[int, ...]  # where torch's gates are
    sigmoids: int  # so many gates, the first ones
    parts: int  # gradients for each unit and step: one for a gate, and more where W and R get different ones

    def __init__(self, weights: Weights, B: int, T: int) -> None:
        w_ih, w_hh = weights["w_ih"], weights["w_hh"]
        self.B, self.T, self.H, self.I, self.G = B, T, w_hh.shape[1], w_ih.shape[1], len(self.order)
        H, GH = self.H, self.G * self.H
        self.w, self.r = self.ordered(w_ih), self.ordered(w_hh)  # (G*H, I), (G*H, H)
        self.b_ih, self.b_hh = (self.ordered(weights[name]) for name in ("b_ih", "b_hh"))  # (G*H,)
        self.half = np.ones((GH, 1), np.float32)
        self.half[: self.sigmoids * H] = 0.5
        self.w_half, self.r_half = buffer(GH, self.I), buffer(GH, H)
        self.z, self.rh, self.h = buffer(T, GH, B), buffer(GH, B), buffer(T + 1, H, B)  # h[0] stays 0
        self.known, self.d = buffer(T, self.parts * H, B), buffer(T, self.parts * H, B)
        self.d_h, self.some = buffer(H, B), buffer(H, B)
        self.d_rows, self.h_rows = buffer(self.parts * H, T, B), buffer(T, B, H)
        self.d_w, self.d_r = buffer(GH, self.I), buffer(GH, H)

    def ordered(self, values: Array) -> Array:
        """Torch's order of gates as the cell's, and back."""
        gates = values.reshape(self.G, self.H, *values.shape[1:])
        return np.ascontiguousarray(gates[list(self.order)]).reshape(values.shape)

    def weights(self) -> dict[str, Array]:
        return {n: self.ordered(v) for n, v in zip(WEIGHTS, (self.w, self.r, self.b_ih, self.b_hh), strict=False)}

    def forward(self, x: Array) -> Array:  # (T, B, I) -> (H, B)
        np.multiply(self.w, self.half, out=self.w_half)
        np.multiply(self.r, self.half, out=self.r_half)
        np.matmul(self.w_half, x.transpose(0, 2, 1), out=self.z)
        self.z += self.bias()[:, None] * self.half
        self.recur()
        last: Array = self.h[self.T]
        return last

    def backward(self, x: Array, lr: float) -> None:
        """From d_h, the gradient of the last state. The weights move."""
        self.know()
        self.recur_back()
        H, N = self.H, self.T * self.B
        np.copyto(self.d_rows, self.d.transpose(1, 0, 2))
        np.copyto(self.h_rows, self.h[:-1].transpose(0, 2, 1))
        d, x_rows, h_rows = self.d_rows.reshape(-1, N), x.reshape(N, self.I), self.h_rows.reshape(N, H)
        of_r, shared = d[: self.G * H], (self.G - (self.parts - self.G)) * H  # the last gates may have a part for W
        np.matmul(of_r, h_rows, out=self.d_r)
        np.matmul(d[:shared], x_rows, out=self.d_w[:shared])
        np.matmul(d[self.G * H :], x_rows, out=self.d_w[shared:])
        d_b = d.sum(1)
        d_b *= lr
        self.b_hh -= d_b[: self.G * H]
        self.b_ih[:shared] -= d_b[:shared]
        self.b_ih[shared:] -= d_b[self.G * H :]
        for weight, gradient in ((self.w, self.d_w), (self.r, self.d_r)):
            gradient *= lr
            weight -= gradient

    def bias(self) -> Array:
        return self.b_ih + self.b_hh

    def gate(self, block: Array, first: int, count: int = 1) -> Array:
        return block[..., first * self.H : (first + count) * self.H, :]

    @abstractmethod
    def recur(self) -> None:
        """Fills h from z, step after step."""

    @abstractmethod
    def know(self) -> None:
        """Fills `known`: derivatives of every step that need nothing from later ones."""

    @abstractmethod
    def recur_back(self) -> None:
        """Fills d from the last step to the first."""


class RNN(Layer):
    order, sigmoids, parts = (0,), 0, 1

    def recur(self) -> None:
        for t in range(self.T):
            np.matmul(self.r_half, self.h[t], out=self.rh)
            np.add(self.z[t], self.rh, out=self.rh)
            np.tanh(self.rh, out=self.h[t + 1])

    def know(self) -> None:
        np.multiply(self.h[1:], self.h[1:], out=self.known)
        np.subtract(1, self.known, out=self.known)

    def recur_back(self) -> None:
        np.multiply(self.d_h, self.known[-1], out=self.d[-1])
        for t in range(self.T - 2, -1, -1):
            np.matmul(self.r.T, self.d[t + 1], out=self.d_h)
            np.multiply(self.d_h, self.known[t], out=self.d[t])


class LSTM(Layer):
    order, sigmoids, parts = (0, 1, 3, 2), 3, 4  # i f o g

    def __init__(self, weights: Weights, B: int, T: int) -> None:
        super().__init__(weights, B, T)
        self.c, self.tanh_c = buffer(T + 1, self.H, B), buffer(T, self.H, B)
        self.through, self.d_c = buffer(T, self.H, B), buffer(self.H, B)

    def recur(self) -> None:
        for t in range(self.T):
            z, c = self.z[t], self.c[t + 1]
            np.matmul(self.r_half, self.h[t], out=self.rh)
            z += self.rh
            np.tanh(z, out=z)
            sigmoids = self.gate(z, 0, 3)
            sigmoids *= 0.5
            sigmoids += 0.5
            np.multiply(self.gate(z, 1), self.c[t], out=c)
            np.multiply(self.gate(z, 0), self.gate(z, 3), out=self.some)
            c += self.some
            np.tanh(c, out=self.tanh_c[t])
            np.multiply(self.gate(z, 2), self.tanh_c[t], out=self.h[t + 1])

    def know(self) -> None:
        i, f, o, g = (self.gate(self.known, k) for k in range(4))
        np.subtract(1, self.gate(self.z, 0, 3), out=self.gate(self.known, 0, 3))
        self.gate(self.known, 0, 3)[:] *= self.gate(self.z, 0, 3)
        i *= self.gate(self.z, 3)
        f *= self.c[:-1]
        o *= self.tanh_c
        np.multiply(self.gate(self.z, 3), self.gate(self.z, 3), out=g)
        np.subtract(1, g, out=g)
        g *= self.gate(self.z, 0)
        np.multiply(self.tanh_c, self.tanh_c, out=self.through)
        np.subtract(1, self.through, out=self.through)
        self.through *= self.gate(self.z, 2)  # the derivative of h by c

    def recur_back(self) -> None:
        self.d_c.fill(0)
        shape = (2, self.H, self.B)
        for t in range(self.T - 1, -1, -1):
            d, known = self.d[t], self.known[t]
            np.multiply(self.d_h, self.through[t], out=self.some)
            self.d_c += self.some
            np.multiply(self.d_c, known[: 2 * self.H].reshape(shape), out=d[: 2 * self.H].reshape(shape))
            np.multiply(self.d_h, self.gate(known, 2), out=self.gate(d, 2))
            np.multiply(self.d_c, self.gate(known, 3), out=self.gate(d, 3))
            if t:
                np.matmul(self.r.T, d, out=self.d_h)
                self.d_c *= self.gate(self.z[t], 1)


class GRU(Layer):
    order, sigmoids, parts = (0, 1, 2), 2, 4  # r z n, and n once more: for R it is times r, for W it is not

    def __init__(self, weights: Weights, B: int, T: int) -> None:
        super().__init__(weights, B, T)
        self.rh_n = buffer(T, self.H, B)

    def bias(self) -> Array:
        total = super().bias()
        total[2 * self.H :] = self.b_ih[2 * self.H :]
        return total

    def recur(self) -> None:
        b_n = self.b_hh[2 * self.H :, None]
        for t in range(self.T):
            z, h = self.z[t], self.h[t + 1]
            sigmoids, n = self.gate(z, 0, 2), self.gate(z, 2)
            np.matmul(self.r_half, self.h[t], out=self.rh)
            sigmoids += self.gate(self.rh, 0, 2)
            np.tanh(sigmoids, out=sigmoids)
            sigmoids *= 0.5
            sigmoids += 0.5
            np.add(self.gate(self.rh, 2), b_n, out=self.rh_n[t])
            np.multiply(self.gate(z, 0), self.rh_n[t], out=self.some)
            n += self.some
            np.tanh(n, out=n)
            np.subtract(self.h[t], n, out=h)
            h *= self.gate(z, 1)
            h += n

    def know(self) -> None:
        d_r, d_z, d_rh, d_n = (self.gate(self.known, k) for k in range(4))
        r, z, n = (self.gate(self.z, k) for k in range(3))
        np.multiply(n, n, out=d_n)
        np.subtract(1, d_n, out=d_n)
        np.subtract(1, z, out=d_z)
        d_n *= d_z
        d_z *= z
        np.subtract(self.h[:-1], n, out=d_r)
        d_z *= d_r
        np.multiply(d_n, r, out=d_rh)
        np.subtract(1, r, out=d_r)
        d_r *= d_rh
        d_r *= self.rh_n

    def recur_back(self) -> None:
        known, d = (block.reshape(self.T, 4, self.H, self.B) for block in (self.known, self.d))
        for t in range(self.T - 1, -1, -1):
            np.multiply(self.d_h, known[t], out=d[t])
            if t:
                self.d_h *= self.gate(self.z[t], 1)
                np.matmul(self.r.T, self.gate(self.d[t], 0, 3), out=self.some)
                self.d_h += self.some


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
