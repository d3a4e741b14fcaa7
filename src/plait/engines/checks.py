"""Checks of the arguments of a kernel. A kernel has only addresses: it would read and write past the end of a tensor
that is too short.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ..cells.trace import trace
from ..errors import PlaitError
from ..kernels.launch.key import Key
from ..layout import Layout
from .base import Prepared, States
from .tape import Tape

Expected = tuple[str, Tensor | None, tuple[int, ...]]  # what it is called, what was found, the shape it must have


def check_weights_of(key: Key, weights: Sequence[Tensor], kinds: Sequence[tuple[Any, ...]]) -> None:
    """Hooks on saved tensors may pass other weights, and `w.data = ...` changes one unseen."""
    names = [f"weight {name}" for name in key.names] * (key.layers * key.D)
    if len(weights) != len(names):
        raise PlaitError(f"the layers have {len(weights)} weights: expected {len(names)}.")
    check_shapes(zip(names, weights, [shape for shape, *_ in kinds], strict=True), key.dtype)


def check_saved(key: Key, x: Tensor, rows: int, masks: Sequence[Tensor], N: int) -> None:
    """Of the tensors that autograd has saved: hooks may pass others."""
    shape = x.shape if x.numel() == rows * key.I else (rows, key.I)
    check_shapes([("input", x, shape), *[("a saved mask", mask, (N, key.wide)) for mask in masks]], key.dtype)


def check_forward(ps: Sequence[Prepared], x: Tensor, state0: Sequence[Tensor] | None, layout: Layout) -> None:
    w = ps[0].weights.w_ih
    layout.check_rows(x, w.shape[1])
    if not x.is_cpu:
        raise PlaitError(f"the input is on {x.device}, the layer on the CPU: move one of them.")
    if x.dtype is not w.dtype:
        raise PlaitError(f"the input is in {x.dtype}, the layer in {w.dtype}: convert one of them.")
    if state0 is not None:
        check_count("initial states", state0, ps[0])
        names, widths = ps[0].cell.states, ps[0].widths
        shapes = [(len(ps), layout.B, width) for width in widths]
        check_shapes(zip([f"initial state {name}" for name in names], state0, shapes, strict=True), w.dtype)


def check_backward(
    ps: Sequence[Prepared], x: Tensor, kept: Sequence[Tensor], d_rows: Tensor | None, d_finals: States, layout: Layout
) -> None:
    """Also checks the results of the forward pass: hooks on saved tensors, and callers of the op, may pass others."""
    S, D, w = len(ps[0].cell.states), len(ps), ps[0].weights.w_ih
    if len(kept) != D or len(d_finals) != S:
        counts = f"{len(kept)} and {len(d_finals)} tensors"
        raise PlaitError(f"the saved tensors and the gradients of the last states are {counts}: expected {D} and {S}.")
    layout.check_rows(x, w.shape[1])
    found: list[Expected] = [("input", x, x.shape)]
    found.append(("the gradient of the output", d_rows, (*x.shape[:-1], D * ps[0].P)))
    for k, d in enumerate(d_finals):
        if d is not None:
            found.append((f"the gradient of the last state {ps[0].cell.states[k]}", d, (D, layout.B, ps[0].widths[k])))
    check_shapes(found, w.dtype)


def check_weights(p: Prepared) -> None:
    """Once, when they are prepared."""
    w, GH, H, P = p.weights, len(p.cell.gates) * p.H, p.H, p.P
    if (w.b_ih is None) != (w.b_hh is None):
        raise PlaitError("one bias of a direction is missing: give both b_ih and b_hh, or neither.")
    shapes = ((GH, w.w_ih.shape[-1]), (GH, H if w.w_hr is None else P), (GH,), (GH,), (P, H), *[(H,)] * len(w.params))
    names = [f"weight {name}" for name in (*w._fields[:5], *p.cell.params)]
    check_shapes(zip(names, w.places, shapes, strict=True), w.w_ih.dtype)


def check_alike(ps: Sequence[Prepared]) -> None:
    """The directions of a layer have the same sizes."""
    first, *others = [(p.weights.w_ih.dtype, [tuple(t.shape) for t in p.weights.tensors]) for p in ps]
    for other in others:
        if other != first:
            kinds = " and ".join(f"{shapes} in {dtype}" for dtype, shapes in (first, other))
            raise PlaitError(f"the weights of the two directions are {kinds}: expected the same.")


# --- which tensor is wrong, and what was expected ---------------------------------------------------------------------
def check_shapes(found: Iterable[Expected], dtype: torch.dtype) -> None:
    for name, t, shape in found:
        if t is not None and (t.shape != shape or t.dtype is not dtype or not t.is_cpu):
            kind = f"{tuple(t.shape)} in {t.dtype} on {t.device}"
            raise PlaitError(f"{name} is {kind}: expected {tuple(shape)} in {dtype} on the CPU, as the weights are.")


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
    found: list[Expected] = [("wx", wx, (N, len(p.cell.gates) * p.H))]
    for name, states, rows in (("initial", state0, B), ("source of the", source, N), ("out of the", out, N)):
        check_count(f"{name} states", states, p)
        for state, t, width in zip(p.cell.states, states or (), p.widths, strict=False):
            found.append((f"{name} state {state}", t, (rows, width)))
    check_shapes(found, p.weights.w_ih.dtype)


def check_count(name: str, states: States | None, p: Prepared) -> None:
    if states is not None and len(states) != len(p.cell.states):
        expected = f"expected {len(p.cell.states)} ({', '.join(p.cell.states)})"
        raise PlaitError(f"{name}: found {len(states)} tensors, {expected}.")


def check_recur_vjp(p: Prepared, tape: Tape, d_states: States, d_last: States) -> None:
    N, B, G = tape.layout.N, tape.layout.B, len(p.cell.gates)
    check_count("gradients of the states", d_states, p)
    check_count("gradients of the last states", d_last, p)
    if tape.reverse != p.reverse:
        raise PlaitError("the tape is of a walk in the other direction than the weights were prepared for.")
    if (tape.raw is None) != (p.weights.w_hr is None):
        has = "lacks" if tape.raw is None else "has"
        raise PlaitError(f"the tape {has} the h before a projection, unlike its weights: use the weights of its walk.")
    E = trace(p.cell, tape.dt).extra
    found: list[Expected] = [("gates of the tape", tape.gates, (N, G * p.H))]
    found += [("extra of the tape", tape.extra, (N, E * p.H)), ("raw of the tape", tape.raw, (N, p.H))]
    for t in (tape.gates, tape.extra, tape.raw, *tape.initial, *tape.states, *tape.path):
        if t is not None and not t.is_contiguous():
            raise PlaitError(f"a matrix of the tape has strides {t.stride()}: expected contiguous, use t.contiguous().")
    for k, (state, width) in enumerate(zip(p.cell.states, p.widths, strict=True)):
        found += [(f"state {state} of the tape", t, (N, width)) for t in (tape.states[k], tape.path[k])]
        found.append((f"initial state {state} of the tape", tape.initial[k], (B, width)))
        found.append((f"the gradient of {state}", d_states[k], (N, width)))
        found.append((f"the gradient of the last {state}", d_last[k], (B, width)))
    check_shapes(found, p.weights.w_ih.dtype)


kind_of = attrgetter("shape", "dtype", "is_cpu")
