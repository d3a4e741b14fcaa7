"""The weights of a direction as the kernels read them: in panels (kernels/tile.py), and by their addresses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..kernels import pool
from ..kernels.layer import Packs
from ..kernels.target import Form
from .base import Prepared, Weights

NOT_LASTING = Packs()


@dataclass
class Packed(Prepared):
    """Panels of R, W and the projection, forward and back. Only those that last have memory of their own; a kernel
    packs them when it first needs them. The others it packs anew for each call, in its workspace.
    """

    lasting: bool = False
    panels: dict[tuple[str, bool], Tensor] = field(default_factory=dict)  # of r, w, p; forward or back
    ready: set[tuple[str, bool]] = field(default_factory=set)

    def packs(self, back: bool) -> Packs:
        return Packs(True, ("r", back) in self.ready, ("w", back) in self.ready) if self.lasting else NOT_LASTING

    def done(self, back: bool, *, with_w: bool) -> None:
        """A kernel has packed what was not ready."""
        if self.lasting:
            self.ready.update([("r", back), ("w", back)] if with_w else [("r", back)])

    def addresses(self, form: Form, back: bool) -> dict[str, Any]:
        """By the names that Direction has for them."""
        found: dict[str, Any] = {
            name: t.data_ptr() for name, t in zip(Weights._fields, self.weights[:5], strict=False) if t is not None
        }
        if form.K:
            found["params"] = [v.data_ptr() for v in self.weights.params]
        return {**found, **self.panels_at(form, back)} if self.lasting else found

    def panels_at(self, form: Form, back: bool) -> dict[str, int]:
        """They are made when they are first asked for."""
        GH, H, P, I, width = form.G * self.H, self.H, self.P, self.weights.w_ih.shape[1], form.target.width
        shapes = {"r": (1, P, GH) if back else (form.G, H, P), "w": (1, I, GH) if back else (1, GH, I)}
        if form.projected:
            shapes["p"] = (1, H, P) if back else (1, P, H)
        for name, (each, columns, depth) in shapes.items():
            if (name, back) not in self.panels:
                numbers = -(-columns // width) * each * (depth + 1) * width
                self.panels[name, back] = pool.empty(self.weights.w_ih, numbers)
        return {f"{name}_panels": self.panels[name, back].data_ptr() for name in shapes}


def packed(ps: Sequence[Prepared]) -> list[Packed]:
    """They are ours: an engine runs what it has prepared itself."""
    for p in ps:
        assert isinstance(p, Packed)
    return ps  # type: ignore[return-value]


def contiguous(w: Weights) -> Weights:
    """The same, unless a weight is a view of others."""
    if all(t.is_contiguous() for t in w.tensors):
        return w
    b_ih, b_hh, w_hr = (None if t is None else t.contiguous() for t in w[2:5])
    params = tuple(v.contiguous() for v in w.params)
    return Weights(w.w_ih.contiguous(), w.w_hh.contiguous(), b_ih, b_hh, w_hr, params)
