"""Layers that are one plan, walked some steps at a time: forward in little memory, and backward from kept states.

A stretch starts from the running states (layout.py), and has a tape of its own, which the next stretch overwrites. The
backward pass takes the stretches in the opposite order. It walks each again, from the states that were kept there.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ..kernels import pool
from ..kernels.launch.bindings import JOINT_HEAD
from ..kernels.launch.key import Key
from ..layout import Layout
from .packed import Packed
from .plan import Back, Out, Plan

TORCH_ROWS = 1024  # torch.mm rounds a row as among many rows, if there are as many or more

Masks = Callable[[slice], Sequence[Tensor]]  # of some rows -> per gap between two layers (rows, D*P)


def no_masks(rows: slice) -> Sequence[Tensor]:
    return ()


@dataclass(frozen=True)
class Stretches:
    plan: Callable[[Key], Plan]
    key: Key  # of them all, but for what depends on the stretch and the direction
    ps: Sequence[Packed]  # per layer and direction
    layout: Layout
    steps: int

    def cuts(self, reverse: bool) -> list[tuple[int, int]]:
        """The stretches in the order of a walk. Those in which torch computes a product have many rows."""
        cuts = self.layout.cuts(self.steps, reverse)
        if all(forward and back for forward, back in self.key.ours):
            return cuts
        found, rows = list[tuple[int, int]](), 0
        for t0, t1 in cuts:
            if found and rows < TORCH_ROWS:
                last = found.pop()
                t0, t1 = min(t0, last[0]), max(t1, last[1])
            found.append((t0, t1))
            some = self.layout.rows(t0, t1)
            rows = some.stop - some.start
        if len(found) > 1 and rows < TORCH_ROWS:
            (t0, t1), last = found.pop(), found.pop()
            found.append((min(t0, last[0]), max(t1, last[1])))
        return found

    @property
    def count(self) -> int:
        """The same in both directions, unless they have another number of rows."""
        return max(len(self.cuts(reverse)) for reverse in self.key.reverse)

    def of(self, directions: range, chunk: Layout, stateful: bool) -> tuple[Plan, list[Packed]]:
        """The plan of a stretch, and its weights."""
        key, D, ragged = self.key, self.key.D, not chunk.is_dense
        some = [*self.ps] if len(directions) == D else [self.ps[d] for d in directions]
        plan = self.plan(
            key._replace(
                ragged=ragged,
                T=0 if ragged else chunk.T,
                B=chunk.B,
                reverse=tuple(key.reverse[d] for d in directions),
                stateful=stateful,
                whole=self.layout.B,
            )
        )
        return plan, some

    def forward(
        self, x: Tensor, given: Sequence[Tensor], kept: Sequence[Tensor] = (), masks: Masks = no_masks
    ) -> tuple[Tensor, list[Tensor]]:
        """-> rows (., D*P), last states (L*D, B, .). kept: per state (count, L*D, B, .), for those before each stretch

        Stretches of ragged sequences are not the same in both directions, so these come one after the other.
        """
        key, layout, B = self.key, self.layout, self.layout.B
        LD, D, P = key.layers * key.D, key.D, key.P
        y = pool.empty(x, *x.shape[:-1], key.wide, exact=True)
        running = [s.clone() for s in given] or [x.new_zeros(LD, B, width) for width in key.widths]
        flat = y.view(layout.N, -1)
        for group in [range(D)] if layout.is_dense else [range(d, d + 1) for d in range(D)]:
            own, stateful = slice(None) if D == 1 else slice(group.start, group.stop), bool(given)
            states, rows = [s[own] for s in running], flat[:, group.start * P :]
            for k, cuts in enumerate(zip(*[self.cuts(key.reverse[d]) for d in group], strict=True)):
                for place, s in zip(kept, states, strict=False):
                    place[k, own] = s
                chunk, some_rows = layout.cut(*cuts[0]), [layout.rows(*cut) for cut in cuts]
                plan, some = self.of(group, chunk, stateful)
                live = [s[:, : chunk.B].contiguous() for s in states]
                out = Out(rows, live, [r.start for r in some_rows])
                weights, its = tensors_of(some), masks(some_rows[0])
                plan.forward(x, live if stateful else (), weights, chunk, masks=its, pins=some, out=out)
                give_back(live, states)
                stateful = True
        return y, running

    def backward(
        self, walked: "Walked", d_rows: Tensor | None, d_states: Sequence[Tensor], needs: tuple[bool, ...]
    ) -> "Found":
        """d_rows (N, D*P) or (T, B, D*P); d_states: of the last states, which those of the initial ones replace.

        needs: of x and of each weight. One direction after the other, as their gradients of x are added.
        """
        key, x, names = self.key, walked.x, len(self.key.names) * self.key.layers
        d_x, d_weights = pool.empty(x, self.layout.N, key.I) if needs[0] else None, list[Tensor | None]()
        for d in range(key.D):
            wanted = needs[1 + d * names : 1 + (d + 1) * names]
            # torch adds the second direction's d_x as it multiplies
            adds = d > 0 and not key.ours[0][1]
            asked = needs[0] and not adds, *[True] * len(d_states), *wanted
            totals: list[Tensor | None] = [None] * names
            joint = Joint(self.layout, key.reverse[d])
            for k, cut in reversed([*enumerate(self.cuts(key.reverse[d]))]):
                rows = self.layout.rows(*cut)
                back = self.stretch_back(walked, d, k, joint.at(cut), d_rows, d_states, asked)
                totals = [added(total, part) for total, part in zip(totals, back.weights, strict=True)]
                if d_x is not None and adds:
                    d_wx = back.variant.torch.d_wx(back.frame, 0, 0)
                    d_x[rows].addmm_(d_wx, self.ps[d].weights.w_ih)
                elif d_x is not None and back.x is not None:
                    d_x[rows] = back.x if d == 0 else back.x.add_(d_x[rows])
                del back  # its tape is that of the next stretch
            d_weights += totals
        return Found(d_x, d_weights)

    def stretch_back(
        self,
        walked: "Walked",
        d: int,
        k: int,
        joint: "Joint",
        d_rows: Tensor | None,
        d_states: Sequence[Tensor],
        needs: tuple[bool, ...],
    ) -> Back:
        """Stretch number k of a direction, forward once more, and backward. d_ of its states replaces that after it."""
        key, P, cut = self.key, self.key.P, joint.cut
        rows, chunk = self.layout.rows(*cut), self.layout.cut(*cut)
        own = slice(None) if key.D == 1 else slice(d, d + 1)
        plan, some = self.of(range(d, d + 1), chunk, k > 0 or key.stateful)
        x, masks, weights = walked.x[rows], walked.masks(rows), tensors_of(some)
        entering = [s[k, own, : chunk.B].contiguous() for s in walked.kept] if plan.key.stateful else []
        tapes = plan.forward(x, entering, weights, chunk, masks=masks, pins=some)[2]
        d_own = None
        if d_rows is not None:
            part = d_rows[rows] if d_rows.dim() == 2 else d_rows[slice(*cut)].flatten(0, 1)
            d_own = part[:, d * P : (d + 1) * P]
        after = [s[own, : chunk.B].contiguous() for s in d_states]
        joint.give(plan, tapes[0], chunk)
        back = plan.backward(x, weights, tapes, (d_own, *after), chunk, needs, spend=True, masks=masks, pins=some)
        joint.take(plan, tapes[0], chunk)
        give_back(back.states, [s[own] for s in d_states])
        return back


class Joint:
    """Where a stretch of a backward pass meets the one after it. A walk through all steps adds R' d_rh of a step to the
    gradient of the h before it last. So that a sum has the same order, and the same bits, d_ of the states goes on
    without that product, and d_rh of the step beside it.
    """

    def __init__(self, layout: Layout, reverse: bool) -> None:
        self.layout, self.reverse, self.cut = layout, reverse, (0, layout.T)
        self.rows: list[list[Tensor]] = []  # per layer: of d_gates and of d_extra (B, .)

    def at(self, cut: tuple[int, int]) -> "Joint":
        self.cut = cut
        return self

    @property
    def counts(self) -> tuple[int, int]:
        """How many sequences come from the stretch after this one, and how many go on to the one before it."""
        (t0, t1), T, sizes = self.cut, self.layout.T, self.layout.sizes
        first, end = sizes[t0] if t0 else 0, sizes[t1] if t1 < T else 0
        return (first, end) if self.reverse else (end, first)

    def give(self, plan: Plan, tape: Tensor, chunk: Layout) -> None:
        """To the tape of a stretch."""
        for layer, matrices in enumerate(self.rows or [[]] * plan.key.layers):
            fixed, per_row = plan.map.tapes[0].starts[f"joint.{layer}"]
            start = fixed + per_row * chunk.N
            address = tape.data_ptr() + start * tape.itemsize
            (ctypes.c_int64 * 2).from_address(address)[:] = [*self.counts]
            start += int(tape.storage_offset()) + JOINT_HEAD
            for rows in matrices:
                n, width = min(len(rows), chunk.B), rows.shape[1]
                tape.as_strided((n, width), (width, 1), start).copy_(rows[:n])
                start += chunk.B * width

    def take(self, plan: Plan, tape: Tensor, chunk: Layout) -> None:
        """From the tape of a stretch, of its first step in the order of the walk."""
        t, self.rows = chunk.T - 1 if self.reverse else 0, []
        for layer in range(plan.key.layers):
            found = []
            for name, (_, width) in zip(("gates", "extra"), plan.map.rooms[0][0].shapes, strict=False):
                spot = plan.map.in_tape(layer, 0, name)
                start = spot.numbers + spot.per_row * chunk.N + chunk.starts[t] * width
                place = tape.as_strided((chunk.sizes[t], width), (width, 1), tape.storage_offset() + start)
                found.append(place.clone())
            self.rows.append(found)


class Walked(NamedTuple):
    """What a backward pass starts from."""

    x: Tensor  # (N, I)
    kept: Sequence[Tensor]  # per state (count, L*D, B, .)
    masks: Masks = no_masks


class Found(NamedTuple):
    """What it finds."""

    x: Tensor | None  # (N, I)
    weights: list[Tensor | None]


def give_back(live: Sequence[Tensor], running: Sequence[Tensor]) -> None:
    """The states of the sequences that are alive, to those of all sequences, unless they are the same memory."""
    for new, s in zip(live, running, strict=True):
        if new.data_ptr() != s.data_ptr():
            s[:, : new.shape[1]] = new


def added(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    return part if total is None or part is None else total.add_(part)


def tensors_of(ps: Sequence[Packed]) -> list[Tensor]:
    return [t for p in ps for t in p.tensors]
