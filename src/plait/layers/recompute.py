"""A call that keeps the states at some steps only, and walks each stretch between them again in the backward pass.

A stack of one direction is walked as a whole, so nothing between its layers is kept. With two directions a layer needs
the rows of the one below it at all steps: it goes layer by layer, and these rows are kept. Masks are kept as bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import isqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .. import engines
from ..cells import Cell
from ..engines import Prepared
from ..engines.checks import check_shapes
from ..engines.fused import FusedEngine
from ..engines.packed import as_read
from ..engines.segments import drawn_masks
from ..engines.stretches import Masks, Stretches, Walked
from ..engines.tape import Room
from ..errors import PlaitError
from ..kernels import pool

if TYPE_CHECKING:
    from .call import Call


# With "auto": for fewer rows, adding up the gradients of the weights takes too long (5 % of a step of 256 units).
LEAST_ROWS = 1024


def check_checkpoint(value: Any) -> Any:
    if value is None or value == "auto" or (type(value) is int and value > 0):
        return value
    raise PlaitError(f"checkpoint={value!r}: expected None, 'auto', or a whole number of steps, at least 1.")


# --- how many steps a stretch has
def steps_of(call: Call, checkpoint: int | str) -> int:
    """0: the tapes are kept, as "auto" would save nothing.

    With "auto", the states at all boundaries and the tape of one stretch are smallest together:
    T / steps * boundary + steps * step is so at steps = sqrt(T * boundary / step). But a stretch has LEAST_ROWS rows.
    """
    if checkpoint != "auto":
        return int(checkpoint)
    cell: type[Cell] = call.cell
    T, L, D, H, P = call.layout.T, call.layers, call.directions, call.H, call.projection or call.H
    row, walked = Room(cell, 1, 1, 0, H, P, call.projection > 0, False, call.rounded).total, L if D == 1 else 1
    boundary = L * D * (P + (len(cell.states) - 1) * H)  # numbers of a sequence
    step, between = walked * row + (walked - 1) * P, (L - walked) * D * P * T
    steps = min(T, max(isqrt(T * boundary // step), -(-LEAST_ROWS // call.layout.B)))
    whole = T * (L * D * row + (L - 1) * D * P)
    return steps if -(-T // steps) * boundary + steps * step + between < whole else 0


class Kept(NamedTuple):
    """What is kept, in the order in which autograd saves it."""

    bits: Sequence[Tensor]  # per gap between two layers: its mask
    states: Sequence[Sequence[Tensor]]  # per group of layers and state: (count, L*D, B, .)
    rows: Sequence[Tensor]  # per gap between two groups: (., D*P)

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.bits, *[s for some in self.states for s in some], *self.rows]


class Walk:
    """The layers of a call, in groups: the layers of a group are walked together, one group after the other."""

    def __init__(self, call: Call, x: Tensor, tensors: Sequence[Tensor], pins: Sequence[Prepared]) -> None:
        engine: FusedEngine = engines.get("fused")  # type: ignore[assignment]
        if not call.ours:
            call.ours = decided(call, engine, x, bool(pins))
        ps: list[Any] = [*(pins or call.prepare(tensors, True))]
        self.call, self.layout = call, call.layout
        self.groups = 1 if call.directions == 1 else call.layers
        each = call.layers // self.groups
        self.each = each * call.directions  # layers and directions of a group
        whole = call.key(x, True)._replace(padded=False, slabs=False, layers=each)
        self.wide, self.widths = whole.wide, whole.widths
        self.stretches = []
        for g in range(self.groups):
            ours = tuple(call.ours[g * each : (g + 1) * each])
            masked = call.dropout > 0 and self.groups == 1
            key = whole._replace(I=self.wide if g else whole.I, dropout=masked, ours=ours)
            own = ps[g * self.each : (g + 1) * self.each]
            self.stretches.append(Stretches(engine.plan, key, own, self.layout, call.steps))

    def of(self, g: int) -> slice:
        """The layers and directions of a group, among all of them."""
        return slice(g * self.each, (g + 1) * self.each)

    def shapes(self, g: int) -> list[tuple[int, ...]]:
        """Of the states that are kept."""
        return [(self.stretches[g].count, self.each, self.layout.B, width) for width in self.widths]

    def kept(self, saved: Sequence[Tensor]) -> Kept:
        S, gaps = len(self.widths), self.call.layers - 1 if self.call.dropout else 0
        bits, rest = saved[:gaps], saved[gaps:]
        found = Kept(bits, [rest[g * S : (g + 1) * S] for g in range(self.groups)], rest[self.groups * S :])
        for g, states in enumerate(found.states):  # hooks on saved tensors may pass others
            names = [f"a saved state {name}" for name in self.call.cell.states]
            check_shapes(zip(names, states, self.shapes(g), strict=True), self.stretches[g].key.dtype)
        N, wide = self.layout.N, self.wide
        rows = [("saved rows", t, t.shape if t.numel() == N * wide else (N, wide)) for t in found.rows]
        check_shapes(rows, self.stretches[0].key.dtype)
        check_shapes((("a saved mask", t, (N, -(-wide // 8))) for t in bits), torch.uint8)
        return found._replace(states=[as_read(s) for s in found.states], rows=as_read(found.rows))

    # --- dropout
    def drawn(self, like: Tensor) -> list[Tensor]:
        """The masks that a call without checkpoint= draws, as bits."""
        gaps = self.call.layers - 1 if self.call.dropout else 0
        return [packed(mask) for mask in drawn_masks(like, self.layout.N, self.wide, gaps, self.call.dropout)]

    def masks(self, bits: Sequence[Tensor], like: Tensor) -> Masks:
        """Those within the group that has all layers."""
        some = bits if self.groups == 1 else ()
        return lambda rows: [unpacked(one[rows], self.wide, self.call.dropout, like) for one in some]

    def mask(self, rows: Tensor, bits: Sequence[Tensor], gap: int) -> None:
        """Those between two groups: on the rows, or their gradients."""
        if bits:
            rows.view(self.layout.N, -1).mul_(unpacked(bits[gap], self.wide, self.call.dropout, rows))


def decided(call: Call, engine: FusedEngine, x: Tensor, pinned: bool) -> list[tuple[bool, bool]]:
    """Who computes W x and d_x of each layer if the tapes are kept, as torch and the launch round in different ways."""
    layout, key, plans = call.layout, call.key(x, pinned), []
    if call.apart:
        for k in range(call.layers):
            learns_x = key.learns_x or k > 0
            plans.append(engine.plan(key._replace(I=key.inputs(k), layers=1, dropout=False, learns_x=learns_x)))
    else:
        plans.append(engine.plan(key))
    found = list[tuple[bool, bool]]()
    for layer in [layer for plan in plans for layer in plan.layers]:
        forward, back = (layer.choices(layout.N, layout.T, back=back).is_ours for back in (False, True))
        found.append((forward or layer.folded, back or not (found or key.learns_x)))
    return found


# --- masks as bits
def places(bits: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=bits.device)


def packed(mask: Tensor) -> Tensor:  # (N, width) -> (N, width / 8): whether it is not 0
    N, width = mask.shape
    bits = torch.zeros(N, -(-width // 8) * 8, dtype=torch.uint8, device=mask.device)
    bits[:, :width] = mask != 0
    result: Tensor = (bits.unflatten(1, (-1, 8)) << places(bits)).sum(2, dtype=torch.uint8)
    return result


def unpacked(bits: Tensor, width: int, dropout: float, like: Tensor) -> Tensor:  # -> (N, width)
    """As torch made it: 0, or 1 / (1 - dropout)."""
    ones = ((bits.unsqueeze(2) >> places(bits)) & 1).flatten(1)[:, :width].to(like.dtype)
    return ones if dropout == 1 else ones.mul_(like.new_ones(1).div_(1 - dropout))


def all_masks(call: Call, bits: Sequence[Tensor], like: Tensor) -> list[Tensor]:
    return [unpacked(one, call.directions * (call.projection or call.H), call.dropout, like) for one in bits]


# --- a call
def forward(
    call: Call, x: Tensor, tensors: Sequence[Tensor], pins: Sequence[Prepared]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """-> rows (., D*P), last states (L*D, B, .), what is kept"""
    if not x.is_cpu:
        raise PlaitError(f"the input is on {x.device}, the layer on the CPU: move one of them.")
    walk, padding = Walk(call, x, tensors, pins), call.layout.padding
    x, *given = as_read((x, *tensors[: call.S]))
    if padding is not None:
        x, given = padding.gathered(x), padding.sorted(given)
    bits, states, rows, finals = walk.drawn(x), [], [], []
    masks = walk.masks(bits, x)
    for g, some in enumerate(walk.stretches):
        if g:
            walk.mask(x, bits, g - 1)
            rows.append(x)
        states.append([pool.empty(x, *shape, exact=True) for shape in walk.shapes(g)])
        x, last = some.forward(x, [s[walk.of(g)] for s in given], states[g], masks)
        finals.append(last)
    ends = finals[0] if len(finals) == 1 else [torch.cat(of) for of in zip(*finals, strict=True)]
    if padding is not None:
        x, ends = padding.scattered(x), padding.unsorted(ends)
    return x, ends, Kept(bits, states, rows).tensors


def check_given(walk: Walk, x: Tensor) -> None:
    """Hooks on saved tensors may pass another input, and `x.data = ...` changes it unseen."""
    layout, I = walk.layout, walk.stretches[0].key.I
    rows = layout.N if layout.padding is None else math.prod(layout.padding.shape)
    check_shapes([("input", x, x.shape if x.numel() == rows * I else (rows, I))], walk.stretches[0].key.dtype)


def backward(
    call: Call,
    x: Tensor,
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    d_outputs: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """-> d_x and d_ of all tensors in order, None for those not needed"""
    walk, padding, shape = Walk(call, x, tensors, call.in_block(tensors)), call.layout.padding, x.shape
    check_given(walk, x)
    kept, x, of_states = walk.kept(saved), as_read([x])[0], call.shapes(x)[1:]
    d_rows, *ends = d_outputs
    d_states = [x.new_zeros(s) if d is None else d.clone() for s, d in zip(of_states, ends, strict=True)]
    if padding is not None:
        x, d_states = padding.gathered(x), padding.sorted(d_states)
        d_rows = None if d_rows is None else padding.gathered(d_rows)
    below, weights = any(needs[: 1 + call.S]), needs[1 + call.S :]
    names, inputs = len(weights) // walk.groups, [x, *kept.rows]
    d_weights: list[Tensor | None] = [None] * len(weights)
    masks = walk.masks(kept.bits, x)
    for g in reversed(range(walk.groups)):
        own, wanted = slice(g * names, (g + 1) * names), weights[g * names : (g + 1) * names]
        is_below = below or any(weights[: g * names])
        walked = Walked(inputs[g].flatten(0, -2), kept.states[g], masks)
        d_some = [s[walk.of(g)] for s in d_states]
        found = walk.stretches[g].backward(walked, d_rows, d_some, (is_below if g else needs[0], *wanted))
        d_rows, d_weights[own] = found.x, found.weights
        if not is_below:
            break
        if g and d_rows is not None:
            walk.mask(d_rows, kept.bits, g - 1)
    d_x = None if d_rows is None or not needs[0] else d_rows
    if padding is not None:
        d_x, d_states = None if d_x is None else padding.scattered(d_x), padding.unsorted(d_states)
    d_given = [d if n else None for d, n in zip(d_states, needs[1 : 1 + call.S], strict=False)]
    return [None if d_x is None else d_x.view(shape), *d_given, *d_weights]
