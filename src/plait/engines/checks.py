"""Checks of the arguments of a kernel. A kernel has only addresses: it would read and write past the end of a tensor
that is too short.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from ..cells.trace import trace
from ..errors import PlaitError
from ..layout import Layout
from .base import Prepared, States
from .tape import Tape

Expected = tuple[str, Tensor | None, tuple[int, ...]]  # what it is called, what was found, the shape it must have


def check_forward(ps: Sequence[Prepared], x: Tensor, state0: Sequence[Tensor] | None, layout: Layout) -> None:
    I = ps[0].weights.w_ih.shape[1]
    check_count("initial states: of", state0, ps[0])
    sizes = list(zip(state0 or (), state_sizes(ps, layout.B), strict=False))
    if x.dim() >= 2 and x.shape[-1] == I and fit(ps, x, [(x, layout.N * I), *sizes]):
        return
    layout.check_rows(x, I)
    check_shapes([*of_weights(ps), *of_states("initial state", ps, state0 or (), layout.B)], x)
    if not x.is_cpu:
        raise PlaitError(f"the input is on {x.device}, the layer on the CPU: move one of them.")


def check_backward(
    ps: Sequence[Prepared],
    x: Tensor,
    kept: Sequence[Tensor],
    total: int,
    d_rows: Tensor | None,
    d_finals: States,
    layout: Layout,
) -> None:
    """Also checks the results of the forward pass: hooks on saved tensors, and callers of the op, may pass others.

    total: how many numbers each direction keeps.
    """
    S, D, P = len(ps[0].cell.states), len(ps), ps[0].P
    if len(kept) == D and len(d_finals) == S:
        sizes = [(x, layout.N * ps[0].weights.w_ih.shape[1]), (d_rows, layout.N * D * P)]
        sizes += [(t, total) for t in kept]
        if fit(ps, x, [*sizes, *zip(d_finals, state_sizes(ps, layout.B), strict=True)]):
            return
    else:
        found = f"{len(kept)} and {len(d_finals)} tensors"
        raise PlaitError(f"what was kept and d_ of the last states are {found}: expected {D} and {S}.")
    layout.check_rows(x, ps[0].weights.w_ih.shape[1])
    tapes: list[Expected] = [("what was kept", t, (total,)) for t in kept]
    rows: Expected = ("d_ of the output", d_rows, (*x.shape[:-1], D * P))
    check_shapes([*of_weights(ps), *of_states("d_ of the last state", ps, d_finals, layout.B), *tapes, rows], x)


def state_sizes(ps: Sequence[Prepared], B: int) -> list[int]:
    return [len(ps) * B * width for width in ps[0].widths]


def fit(ps: Sequence[Prepared], x: Tensor, sizes: Sequence[tuple[Tensor | None, int]]) -> bool:
    """Whether all tensors have the right size and type. It is quick, for small steps."""
    dtype, p = x.dtype, ps[0]
    (GH, I), H, P = p.weights.w_ih.shape, p.H, p.P
    if len(p.cell.gates) * H != GH:
        return False
    for t, size in sizes:
        if t is not None and (t.numel() != size or t.dtype is not dtype or not t.is_cpu):
            return False
    shapes = ((GH, I), (GH, P), (GH,), (GH,), (P, H))
    for q in ps:
        w = q.weights
        if w.w_hr is None and P != H:
            return False
        for t, shape in zip(w[:5], shapes, strict=True):
            if t is not None and (t.shape != shape or t.dtype is not dtype or not t.is_cpu):
                return False
        for v in w.params:
            if v.shape != (H,) or v.dtype is not dtype or not v.is_cpu:
                return False
    return True


# --- which tensor is wrong, and what was expected ---------------------------------------------------------------------
def of_weights(ps: Sequence[Prepared]) -> Iterator[Expected]:
    for p in ps:
        w, GH = p.weights, len(ps[0].cell.gates) * ps[0].H
        shapes = ((GH, ps[0].weights.w_ih.shape[-1]), (GH, p.P), (GH,), (GH,), (p.P, p.H))
        for name, t, shape in zip(w._fields, w[:5], shapes, strict=False):
            yield f"weight {name}", t, shape
        if w.w_hr is None:
            yield "weight w_hh", w.w_hh, (GH, p.H)
        for name, v in zip(p.cell.params, w.params, strict=True):
            yield f"weight {name}", v, (p.H,)


def of_states(name: str, ps: Sequence[Prepared], states: States, B: int) -> Iterator[Expected]:
    for k, s in enumerate(states):
        yield f"{name} {ps[0].cell.states[k]}", s, (len(ps), B, ps[0].widths[k])


def check_shapes(found: Sequence[Expected], x: Tensor) -> None:
    for name, t, shape in found:
        if t is not None and (t.shape != shape or t.dtype != x.dtype or not t.is_cpu):
            kind = f"{tuple(t.shape)} in {t.dtype} on {t.device}"
            raise PlaitError(
                f"{name} is {kind}: expected {shape} in {x.dtype} on the CPU, to go with the rest of the layer."
            )


# --- one direction ---------------------------------------------------------------------------------------------------
def check_recur(
    p: Prepared,
    wx: Tensor,
    state0: Sequence[Tensor] | None,
    layout: Layout,
    source: Sequence[Tensor] | None,
    out: States | None,
) -> None:
    N, B = layout.N, layout.B
    found: list[Expected] = [*of_weights([p]), ("wx", wx, (N, len(p.cell.gates) * p.H))]
    for name, states, rows in (("initial state", state0, B), ("source of", source, N), ("out of", out, N)):
        check_count(name, states, p)
        for state, t, width in zip(p.cell.states, states or (), p.widths, strict=False):
            found.append((f"{name} {state}", t, (rows, width)))
    check_shapes(found, wx)


def check_count(name: str, states: States | None, p: Prepared) -> None:
    if states is not None and len(states) != len(p.cell.states):
        expected = f"expected {len(p.cell.states)} ({', '.join(p.cell.states)})"
        raise PlaitError(f"{name} the states: found {len(states)} tensors, {expected}.")


def check_recur_vjp(p: Prepared, tape: Tape, d_states: States, d_last: States) -> None:
    N, B, G = tape.layout.N, tape.layout.B, len(p.cell.gates)
    check_count("d_ of", d_states, p)
    check_count("d_ of the last of", d_last, p)
    if tape.reverse != p.reverse:
        raise PlaitError("the tape is of a walk in the other direction than the weights were prepared for.")
    E = trace(p.cell, tape.dt).extra
    found: list[Expected] = [*of_weights([p]), ("gates of the tape", tape.gates, (N, G * p.H))]
    found += [("extra of the tape", tape.extra, (N, E * p.H)), ("raw of the tape", tape.raw, (N, p.H))]
    for t in (tape.gates, tape.extra, tape.raw, *tape.initial, *tape.states, *tape.path):
        if t is not None and not t.is_contiguous():
            raise PlaitError(
                f"a matrix of the tape has strides {t.stride()}: expected contiguous ones, use t.contiguous()."
            )
    for k, (state, width) in enumerate(zip(p.cell.states, p.widths, strict=True)):
        found += [(f"state {state} of the tape", t, (N, width)) for t in (tape.states[k], tape.path[k])]
        found.append((f"initial state {state} of the tape", tape.initial[k], (B, width)))
        found += [(f"d_ of {state}", d_states[k], (N, width)), (f"d_ of the last {state}", d_last[k], (B, width))]
    check_shapes(found, tape.gates)
