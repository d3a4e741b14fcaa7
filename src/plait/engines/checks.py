"""Whether what a kernel is given fits together. Kernels know addresses only: past the end of a tensor that is too short
they would read, and write, what is not theirs.
"""

from collections.abc import Sequence

from torch import Tensor

from ..errors import PlaitError
from ..kernels.layer import Kept
from ..kernels.target import Form
from ..layout import Layout
from .base import Weights


def check(
    form: Form,
    x: Tensor,
    name: str,
    states: Sequence[Tensor | None],
    weights: Sequence[Weights],
    layout: Layout,
) -> None:
    GH, I = weights[0].w_ih.shape
    H, D, B = GH // form.G, len(weights), layout.B
    P = weights[0].w_hh.shape[1] if form.projected else H
    layout.check_rows(x, I)
    expected = ((form.G * H, I), (GH, P), (GH,), (GH,), (P, H))
    for w in weights:
        for k, t in enumerate(w):
            if t is not None and (t.shape != expected[k] or t.dtype != x.dtype or not t.is_cpu):
                raise unlike(f"weight {w._fields[k]}", t, expected[k], x)
    for k, s in enumerate(states):
        shape = (D, B, P if k == 0 else H)
        if s is not None and (s.shape != shape or s.dtype != x.dtype or not s.is_cpu):
            raise unlike(f"{name} {form.cell.states[k]}", s, shape, x)
    if not x.is_cpu:
        raise PlaitError(f"the input is on {x.device}, the layer on the CPU: move one of them.")


def check_back(
    where: Kept,
    x: Tensor,
    kept: Sequence[Tensor],
    d_rows: Tensor | None,
    d_finals: Sequence[Tensor | None],
    weights: Sequence[Weights],
    layout: Layout,
) -> None:
    """Also of what came out of the forward pass: hooks on saved tensors, and callers of the op, may give others."""
    if fits(where, x, kept, d_rows, d_finals, weights, layout):
        return
    D = len(weights)
    if len(kept) != 1 or len(d_finals) != where.form.S:
        found = f"{len(kept)} and {len(d_finals)} tensors"
        raise PlaitError(f"what was kept and d_ of the last states are {found}: expected 1 and {where.form.S}.")
    check(where.form, x, "d_ of the last state", d_finals, weights, layout)
    shapes = {"what was kept": (kept[0], (D * where.each,)), "d_ of the output": (d_rows, (*x.shape[:-1], D * where.P))}
    for name, (t, shape) in shapes.items():
        if t is not None and (t.shape != shape or t.dtype != x.dtype or not t.is_cpu):
            raise unlike(name, t, shape, x)


def unlike(name: str, t: Tensor, shape: tuple[int, ...], x: Tensor) -> PlaitError:
    found = f"{tuple(t.shape)} in {t.dtype} on {t.device}"
    return PlaitError(f"{name} is {found}: expected {shape} in {x.dtype} on the CPU, to go with the rest of the layer.")


def fits(
    where: Kept,
    x: Tensor,
    kept: Sequence[Tensor],
    d_rows: Tensor | None,
    d_finals: Sequence[Tensor | None],
    weights: Sequence[Weights],
    layout: Layout,
) -> bool:
    """Whether there are as many numbers of the right kind everywhere: a quick answer, for small steps."""
    (GH, I), H, P, D, N, B = weights[0].w_ih.shape, where.H, where.P, len(weights), where.N, layout.B
    if GH != where.form.G * H or len(kept) != 1 or len(d_finals) != where.form.S:
        return False
    sizes = [(x, N * I), (kept[0], D * where.each), (d_rows, N * D * P)]
    sizes += [(d, D * B * (H if k else P)) for k, d in enumerate(d_finals)]
    for w in weights:
        sizes += zip(w, (GH * I, GH * P, GH, GH, P * H), strict=True)
    dtype = x.dtype
    return all(t is None or (t.numel() == size and t.dtype is dtype and t.is_cpu) for t, size in sizes)
