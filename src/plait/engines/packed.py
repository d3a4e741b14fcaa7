"""The weights of a direction as kernels read them: contiguous, and in panels (kernels/emit/tile.py) if they last."""

import threading
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from ..cells import Cell
from ..errors import PlaitError
from ..kernels import pool
from ..kernels.emit.target import Form
from .base import Prepared, Weights
from .checks import check_weights


class Packed(Prepared):
    """Panels of R, W and the projection, forward and backward.

    If it is lasting, they have memory of their own, and a kernel packs them when it first needs them. Otherwise every
    call packs them again, in its workspace. It belongs to the Python thread that made it: another one could read the
    panels while they are packed.
    """

    def __init__(self, cell: type[Cell], weights: Weights, reverse: bool, lasting: bool, rounded: bool = False) -> None:
        super().__init__(cell, contiguous(weights), reverse)
        check_weights(self)
        self.lasting, self.rounded, self.tensors = lasting, rounded, self.weights.tensors
        self.shapes = [t.shape for t in self.tensors]
        self.panels: dict[tuple[str, bool], Tensor] = {}  # of r, f (r and w), w, p; forward or backward
        self.ready: set[tuple[str, bool]] = set()
        self.thread = threading.get_ident()

    def check_usable(self) -> None:
        """After `w.data = ...` a weight may be shorter, or have another type or other strides: kernels would write past
        its end, or read the wrong numbers.
        """
        if self.lasting and self.thread != threading.get_ident():
            raise PlaitError("these weights were prepared by another Python thread: let each thread prepare its own.")
        dtype = self.weights.w_ih.dtype
        for t, shape in zip(self.tensors, self.shapes, strict=True):
            if t.shape != shape or t.dtype is not dtype or not t.is_cpu or not t.is_contiguous():
                now = f"{tuple(t.shape)} in {t.dtype} on {t.device} with strides {t.stride()}"
                raise PlaitError(
                    f"a weight is {now}, and was {tuple(shape)} in {dtype} on cpu when it was prepared: "
                    "prepare the weights again."
                )

    def mark_ready(self, back: bool, panels: Sequence[str]) -> None:
        """A kernel has now packed those that were not ready."""
        for name in panels:
            self.ready.add((name, back))

    def bindings(self, form: Form, back: bool, folded: bool) -> Sequence[int]:
        """For R, or for R and W in a walk that adds W x itself; for W; for the projection: the address of the panels,
        and whether they are packed.
        """
        first = "f" if folded else "r"
        r, w = (first, back) in self.ready, ("w", back) in self.ready
        r_at, w_at = self.panel(form, first, back), self.panel(form, "w", back)
        return r_at, r, w_at, w, self.panel(form, "p", back) if form.projected else 0, r

    def panel(self, form: Form, name: str, back: bool) -> int:
        """Its memory is taken at the first call."""
        found = self.panels.get((name, back))
        if found is None:
            H, P, I, width, words = self.H, self.P, self.weights.w_ih.shape[1], form.target.width, form.target.words
            shapes = {
                ("r", False): (form.G, H, words(P)),
                ("f", False): (form.G + len(form.apart), H, words(P) + words(I)),
                ("w", False): (1, form.G * H, words(I)),
                ("p", False): (1, P, words(H)),
                ("r", True): (1, P, form.G * words(H)),
                ("w", True): (1, I, form.G * words(H)),
                ("p", True): (1, H, words(P)),
            }
            each, columns, depth = shapes[name, back]
            size = -(-columns // width) * each * (depth + 1) * width
            found = self.panels[name, back] = pool.empty(self.weights.w_ih, size)
        return found.data_ptr()


def as_read(tensors: Iterable[Tensor]) -> list[Tensor]:
    """As a kernel reads them: contiguous, not negated lazily, as z.conj().imag is, and zeros that have memory."""
    found = [*map(Tensor.contiguous, tensors)]
    if True in map(Tensor.is_neg, found) or True in map(is_lazy_zero, found):
        return [*map(evaluated, found)]
    return found


def evaluated(t: Tensor) -> Tensor:
    return t.clone() if is_lazy_zero(t) else t.resolve_neg()


def contiguous(w: Weights) -> Weights:
    """The same weights, with copies of those that are not contiguous, or negated lazily."""
    b_ih, b_hh, w_hr = (None if t is None else plain(t) for t in w[2:5])
    return Weights(plain(w.w_ih), plain(w.w_hh), b_ih, b_hh, w_hr, tuple(map(plain, w.params)))


def plain(t: Tensor) -> Tensor:
    return as_read([t])[0]


is_lazy_zero: Callable[[Tensor], bool] = Tensor._is_zerotensor  # such as torch._efficientzerotensor(3, 4)
