"""The weights of a direction as the kernels read them: in panels (kernels/tile.py), and by their addresses."""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cells import Cell
from ..errors import PlaitError
from ..kernels import pool
from ..kernels.choices import Packs
from ..kernels.target import Form
from .base import Prepared, Weights
from .checks import check_weights
from .ready_call import ReadyCall

NOT_LASTING, NO_PANELS = Packs(), [0, 0, 0]
MOST_KINDS = 1024
KINDS: dict[tuple[Any, ...], "Kind"] = {}


class Kind:
    """All that a call must know of the weights of a direction, except where they are. There is one object of each: a
    call finds what was made ready for its weights by this object.
    """

    def __init__(self, p: Prepared, shapes: Sequence[torch.Size | None]) -> None:
        check_weights(p)
        self.shapes, self.dtype = shapes, p.weights.w_ih.dtype
        self.sizes = p.H, p.P, p.widths

    @classmethod
    def of(cls, cell: type[Cell], w: Weights, reverse: bool) -> tuple["Kind", bool]:
        """-> the kind, and whether all weights are contiguous. An error if they do not go together."""
        dtype, is_alike, is_contiguous = w.w_ih.dtype, True, True
        shapes: list[torch.Size | None] = []
        for t in w.places:
            if t is None:
                shapes.append(None)
                continue
            shapes.append(t.shape)
            if t.dtype is not dtype or not t.is_cpu:
                is_alike = False
            if not t.is_contiguous():
                is_contiguous = False
        key = (cell, reverse, dtype, *shapes)
        kind = KINDS.get(key)
        if kind is None or not is_alike:
            if len(KINDS) >= MOST_KINDS:
                KINDS.clear()
            kind = KINDS[key] = cls(Prepared(cell, w, reverse), shapes)
        return kind, is_contiguous


class Packed(Prepared):
    """Panels of R, W and the projection, forward and back.

    If it is lasting, they have memory of their own, and a kernel packs them when it first needs them. Otherwise every
    call packs them again, in its workspace. It belongs to the Python thread that made it: another one could read the
    panels while they are packed.
    """

    def __init__(self, cell: type[Cell], weights: Weights, reverse: bool, lasting: bool) -> None:
        self.kind, is_contiguous = Kind.of(cell, weights, reverse)
        self.cell, self.reverse, self.lasting = cell, reverse, lasting
        self.weights = weights if is_contiguous else contiguous(weights)
        self.H, self.P, self.widths = self.kind.sizes
        if lasting:
            self.panels: dict[tuple[str, bool], Tensor] = {}  # of r, f (r and w), w, p; forward or back
            self.ready: set[tuple[str, bool]] = set()
            self.thread = threading.get_ident()
            self.ready_calls: dict[tuple[Any, ...], ReadyCall] = {}  # of the layer whose first direction this is

    def check_usable(self) -> None:
        """After `w.data = ...` a weight may be shorter, or have another type or other strides: kernels would write past
        its end, or read the wrong numbers.
        """
        if self.lasting and self.thread != threading.get_ident():
            raise PlaitError("these weights were prepared by another Python thread: let each thread prepare its own.")
        kind = self.kind
        dtype = kind.dtype
        for t, shape in zip(self.weights.places, kind.shapes, strict=True):
            if t is None:
                continue
            if t.shape != shape or t.dtype is not dtype or not t.is_cpu or not t.is_contiguous():
                now = f"{tuple(t.shape)} in {t.dtype} on {t.device} with strides {t.stride()}"
                raise PlaitError(
                    f"a weight is {now}, and was {tuple(shape or ())} in {dtype} on cpu when it was prepared: "
                    "prepare the weights again."
                )

    def packs(self, back: bool, folded: bool = False) -> Packs:
        if not self.lasting:
            return NOT_LASTING
        return Packs(True, ("f" if folded else "r", back) in self.ready, ("w", back) in self.ready)

    def mark_ready(self, back: bool, *, with_w: bool, folded: bool = False) -> None:
        """A kernel has now packed the panels that were not ready."""
        if self.lasting:
            self.ready.add(("f" if folded else "r", back))
            if with_w:
                self.ready.add(("w", back))

    def weights_at(self) -> list[int]:
        """w_ih, w_hh, b_ih, b_hh, w_hr"""
        return [0 if t is None else t.data_ptr() for t in self.weights[:5]]

    def params_at(self) -> list[int]:
        return [v.data_ptr() for v in self.weights.params]

    def panels_at(self, form: Form, back: bool, folded: bool = False) -> list[int]:
        """The addresses of those of R, or of R and W for a walk that adds W x itself; of W; of the projection."""
        if not self.lasting:
            return NO_PANELS
        names = ("f" if folded else "r", "w", "p") if form.projected else ("f" if folded else "r", "w")
        found = [self.panel(form, name, back).data_ptr() for name in names]
        return found if form.projected else [*found, 0]

    def panel(self, form: Form, name: str, back: bool) -> Tensor:
        """Its memory is taken at the first call."""
        found = self.panels.get((name, back))
        if found is None:
            GH, H, P, I, width = form.G * self.H, self.H, self.P, self.weights.w_ih.shape[1], form.target.width
            shapes = {
                ("r", False): (form.G, H, P),
                ("f", False): (form.G + len(form.apart), H, P + I),
                ("w", False): (1, GH, I),
                ("p", False): (1, P, H),
                ("r", True): (1, P, GH),
                ("w", True): (1, I, GH),
                ("p", True): (1, H, P),
            }
            each, columns, depth = shapes[name, back]
            size = -(-columns // width) * each * (depth + 1) * width
            found = self.panels[name, back] = pool.empty(self.weights.w_ih, size)
        return found


def packs_of(ps: Sequence[Packed], back: bool, folded: bool = False) -> Packs:
    """Of all directions: ready is what is ready in each."""
    if len(ps) == 1:
        return ps[0].packs(back, folded)
    return Packs(*map(all, zip(*(p.packs(back, folded) for p in ps), strict=True)))


def contiguous(w: Weights) -> Weights:
    """The same weights, with copies of those that are not contiguous."""
    b_ih, b_hh, w_hr = (None if t is None else t.contiguous() for t in w[2:5])
    params = tuple(v.contiguous() for v in w.params)
    return Weights(w.w_ih.contiguous(), w.w_hh.contiguous(), b_ih, b_hh, w_hr, params)
