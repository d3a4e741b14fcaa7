"""Whether what a kernel is given fits together. Kernels know addresses only: past the end of a tensor that is too short
they would read, and write, what is not theirs.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..errors import PlaitError
from ..layout import Layout
from .base import Prepared, States
from .tape import Tape

Expected = tuple[str, Tensor | None, tuple[int, ...]]  # what it is called, what was found, the shape it must have


def check_forward(ps: Sequence[Prepared], x: Tensor, state0: Sequence[Tensor] | None, layout: Layout) -> None:
    layout.check_rows(x, ps[0].weights.w_ih.shape[1])
    found = [*of_weights(ps), *of_states("initial state", ps, state0 or (), layout.B)]
    check(found, x)
    if not x.is_cpu:
        raise PlaitError(f"the input is on {x.device}, the layer on the CPU: move one of them.")


def check_backward(
    ps: Sequence[Prepared],
    x: Tensor,
    kept: Sequence[Tensor],
    sizes: Sequence[int],
    d_rows: Tensor | None,
    d_finals: States,
    layout: Layout,
) -> None:
    """Also of what came out of the forward pass: hooks on saved tensors, and callers of the op, may give others."""
    S = len(ps[0].cell.states)
    if len(kept) != len(ps) or len(d_finals) != S:
        found = f"{len(kept)} and {len(d_finals)} tensors"
        raise PlaitError(f"what was kept and d_ of the last states are {found}: expected {len(ps)} and {S}.")
    check_forward(ps, x, None, layout)
    tapes: list[Expected] = [("what was kept", t, (size,)) for t, size in zip(kept, sizes, strict=True)]
    rows: Expected = ("d_ of the output", d_rows, (*x.shape[:-1], len(ps) * ps[0].P))
    check([*of_states("d_ of the last state", ps, d_finals, layout.B), *tapes, rows], x)


def of_weights(ps: Sequence[Prepared]) -> Iterable[Expected]:
    for p in ps:
        w, GH = p.weights, len(p.cell.gates) * p.H
        shapes = ((GH, w.w_ih.shape[-1]), (GH, p.P), (GH,), (GH,), (p.P, p.H))
        for name, t, shape in zip(w._fields, w[:5], shapes, strict=False):
            yield f"weight {name}", t, shape
        if w.w_hr is None and p.P != p.H:
            yield "weight w_hh", w.w_hh, (GH, p.H)
        for name, t in zip(p.cell.params, w.params, strict=True):
            yield f"weight {name}", t, (p.H,)


def of_states(name: str, ps: Sequence[Prepared], states: States, B: int) -> Iterable[Expected]:
    for k, s in enumerate(states):
        yield f"{name} {ps[0].cell.states[k]}", s, (len(ps), B, ps[0].H if k else ps[0].P)


def check(found: Iterable[Expected], x: Tensor) -> None:
    dtype: torch.dtype = x.dtype
    for name, t, shape in found:
        if t is not None and (t.shape != shape or t.dtype != dtype or not t.is_cpu):
            kind = f"{tuple(t.shape)} in {t.dtype} on {t.device}"
            raise PlaitError(
                f"{name} is {kind}: expected {shape} in {x.dtype} on the CPU, to go with the rest of the layer."
            )


def check_recur(
    p: Prepared,
    wx: Tensor,
    state0: Sequence[Tensor] | None,
    layout: Layout,
    source: Sequence[Tensor] | None,
    keep: bool,
    out: States | None,
) -> None:
    if keep and source is not None:
        raise ValueError("a walk with a source keeps no tape: pass keep=False, and linearise at its states.")
    N, B, widths = layout.N, layout.B, p.weights.widths(p.cell)
    found: list[Expected] = [*of_weights([p]), ("wx", wx, (N, len(p.cell.gates) * p.H))]
    for name, states, rows in (("initial state", state0, B), ("source of", source, N), ("out of", out, N)):
        for state, t, width in zip(p.cell.states, states or (), widths, strict=False):
            found.append((f"{name} {state}", t, (rows, width)))
    check(found, wx)


def check_recur_vjp(p: Prepared, tape: Tape, d_states: States, d_last: States) -> None:
    N, B, G = tape.layout.N, tape.layout.B, len(p.cell.gates)
    found: list[Expected] = [*of_weights([p]), ("gates of the tape", tape.gates, (N, G * p.H))]
    for k, (state, width) in enumerate(zip(p.cell.states, p.weights.widths(p.cell), strict=True)):
        found += [(f"state {state} of the tape", t, (N, width)) for t in (tape.states[k], tape.path[k])]
        found.append((f"initial state {state} of the tape", tape.initial[k], (B, width)))
        found += [(f"d_ of {state}", d_states[k], (N, width)), (f"d_ of the last {state}", d_last[k], (B, width))]
    check(found, tape.gates)
