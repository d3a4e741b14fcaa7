"""A small stack of layers, made ready once for all calls with the same shapes: few tensors, few addresses, one launch.

Where the arithmetic takes microseconds, so does every line of Python around it. So nothing here is decided in a call:
the tapes of all layers, and the rows from layer to layer, are one tensor, and a launch runs all layers. It computes
every product itself: stacks for which torch.mm is faster go the usual way (fused.py). The results are the same to the
last bit, but for gradients of weights where the batch is in parts (kernels/parts.py): their sums have another order.
"""

import ctypes
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..cells import Cell
from ..errors import PlaitError
from ..kernels import costs, pool
from ..kernels.addresses import OfStack
from ..kernels.areas import ALIGNED, aligned
from ..kernels.choices import Packs, folds
from ..kernels.launched import Chain, Launched
from ..kernels.layer import Layer
from ..kernels.program import Program
from ..kernels.schedule import Schedule
from ..kernels.target import Form
from ..layout import Layout
from .base import Prepared, States
from .checks import check_shapes
from .way_back import address, rows_of

LENIENT = 1.25  # times as long as torch.mm's may the launch's own d_x take. Then it computes all, and can be in parts


class Sizes(NamedTuple):
    """All that it depends on, except the weights' shapes."""

    cell: type[Cell]
    dtype: torch.dtype
    T: int
    B: int
    I: int
    D: int  # directions
    bias: bool
    stateful: bool  # initial states are given
    dropout: bool  # the rows from layer to layer are multiplied by masks
    learns_x: bool  # the gradient of x will be wanted. If not, how long it would take does not matter
    threads: int


class SmallStack:
    def __init__(self, sizes: Sizes, schedule: Schedule, form: Form, ps: Sequence[Prepared]) -> None:
        """ps: per layer and direction"""
        self.sizes, self.schedule, self.form = sizes, schedule, form
        self.L, D, p = len(ps) // sizes.D, sizes.D, ps[0]
        self.layout, self.widths = Layout(sizes.T, sizes.B), p.widths
        self.N, self.wide = self.layout.N, D * p.P
        self.H, self.inputs = p.H, [sizes.I, *[self.wide] * (self.L - 1)]
        self.shapes = [t.shape for q in ps for t in q.weights.tensors]
        self.names = p.weights.names
        self.of_states = [(self.L * D, sizes.B, width) for width in self.widths]
        self.rooms = [q.room(self.layout, 1) for q in ps[:D]]
        numbers = [*[room.total for room in self.rooms] * self.L, *[self.N * self.wide] * (self.L - 1)]
        *starts, self.mark = accumulate(map(aligned, numbers), initial=0)
        self.total = self.mark + ALIGNED  # the number of parts comes last
        self.tapes, self.rows = starts[: self.L * D], starts[self.L * D :]
        size = p.weights.w_ih.itemsize
        self.bytes = self.total * size
        self.of_rows, states = (sizes.T, sizes.B, self.wide), sizes.cell.states
        self.make_rows = pool.maker(math.prod(self.of_rows) * size, exact=True)
        self.make_state = pool.maker(max(map(math.prod, self.of_states)) * size, exact=True)
        self.scratch = pool.maker(self.bytes)
        self.called = [f"weight {name}" for name in self.names] * len(ps) + ["input", "the gradient of the output"]
        self.called += [f"the gradient of the last state {name}" for name in states] + ["a saved tensor"] * self.L
        self.of_masks = [self.of_rows] * (self.L - 1 if sizes.dropout else 0)
        self.expected = [*self.shapes, (sizes.T, sizes.B, sizes.I), self.of_rows, *self.of_states, (self.total,)]
        self.expected += self.of_masks
        self.parts = 1  # of the batch
        most, layers = min(sizes.B, -(-sizes.threads // D)), [self.layer(k) for k in range(self.L)]
        if most > 1 and all(layer.separates(most) for layer in layers):
            self.parts = most
        there, count = self.forward_programs(), 1 + len(self.widths) * sizes.stateful + len(self.shapes)
        is_alike = [q.weights.w_ih.shape[1] for q in ps[::D]] == self.inputs and len({(q.H, q.P) for q in ps}) == 1
        self.is_whole = is_alike and not any(program.left for program in there)  # then the launch computes all products
        if self.is_whole:
            back = self.backward_programs((True,) * count, self.wide, self.parts)
            self.is_whole = not any(program.left for program in back)
        self.there = self.launches(there)
        self.back: dict[tuple[Any, ...], list[Launched]] = {}

    # --- made once
    def layer(self, k: int, parts: int = 1, *, back: bool = False) -> Layer:
        s, N, wide = self.sizes, self.N, self.wide
        in_parts = not s.dropout  # the rows between layers; masks are drawn for rows as they come
        table = OfStack(
            self.form,
            layer=k,
            layers=self.L,
            D=s.D,
            B=s.B,
            widths=self.widths,
            weights=self.names,
            tapes=self.tapes,
            rows=self.rows,
            d_rows=[j % 2 * N * wide for j in range(self.L - 1)],  # a layer reads one and writes the other
            in_tape=[room.matrices for room in self.rooms],
            mark=self.mark,
            back=back,
        )
        return Layer(
            self.schedule,
            costs.of_this_process(self.form),
            self.layout,
            table,
            self.form,
            count=s.threads,
            I=self.inputs[k],
            H=self.H,
            P=self.widths[0],
            bias=s.bias,
            reverse=[False, True][: s.D],
            packs=Packs(),
            folded=folds(self.schedule, self.form, s.B, self.inputs[k], self.H, self.widths[0]),
            bounds=self.layout.shares(parts) if parts > 1 else (),
            marked=k == 0,
            x_in_parts=in_parts and k > 0,
            rows_in_parts=in_parts and k < self.L - 1,
            lenient=LENIENT if k or s.learns_x else math.inf,
        )

    def forward_programs(self) -> list[Program]:
        options: dict[str, Any] = {"stateful": self.sizes.stateful, "stride": self.wide}
        layers = [self.layer(k, self.parts) for k in range(self.L)]
        return [layer.forward(layer.choices(False, True), project=True, **options) for layer in layers]

    def backward_programs(self, needs: Sequence[bool], stride: int, parts: int) -> list[Program]:
        """From the last layer down to the first that is needed. stride: from row to row of d_ of the output."""
        D, L, each = self.sizes.D, self.L, len(self.names)
        S = len(self.widths) if self.sizes.stateful else 0
        of_states, of_weights = any(needs[1 : 1 + S]), needs[1 + S :]
        groups = [tuple(of_weights[j * each : (j + 1) * each]) for j in range(L * D)]
        below = [needs[0] or of_states or any(map(any, groups[: k * D])) for k in range(L + 1)]
        layers = [self.layer(k, parts, back=True) for k in range(L)]
        return [
            layers[k].backward(
                layers[k].choices(True, False),
                stride=stride if k == L - 1 else self.wide,
                needs_x=below[k] if k else needs[0],
                needs_states=of_states,
                needs=groups[k * D : (k + 1) * D],
            )
            for k in range(L - 1, -1, -1)
            if below[k + 1]
        ]

    def launches(self, programs: Sequence[Program]) -> list[Launched]:
        """One, if nothing has to happen between two layers."""
        if len(programs) > 1 and not self.sizes.dropout and len({p.count for p in programs}) == 1:
            return [Chain(programs)]
        return list(programs)

    # --- a call
    def fits(self, tensors: Sequence[Tensor], states: Sequence[Tensor]) -> bool:
        """If not, the usual way reports what is wrong. The shapes of x and of the weights are known to be right."""
        dtype = self.sizes.dtype
        for t in tensors:
            if t.dtype is not dtype or not t.is_cpu:
                return False
        return [s.shape for s in states] == (self.of_states if self.sizes.stateful else [])

    def masks(self, like: Tensor, dropout: float) -> list[Tensor]:
        """What torch.nn.functional.dropout multiplies the rows between two layers with."""
        return [mask(like.new_ones(shape), dropout) for shape in self.of_masks]

    def between(self, memory: Tensor, start: int) -> Tensor:
        return memory[start : start + self.N * self.wide].view(self.of_rows)

    def forward(
        self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], masks: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """-> rows (T, B, D*P), last states (L*D, B, .), the memory"""
        y, memory = self.make_rows(x, *self.of_rows), self.scratch(x, self.total)
        finals = [self.make_state(x, *shape) for shape in self.of_states]
        addresses = [0, *([t.data_ptr() for t in states] or [0] * len(finals)), *[t.data_ptr() for t in finals]]
        addresses += [x.data_ptr(), y.data_ptr(), 0, memory.data_ptr(), 0, 0, *[t.data_ptr() for t in weights]]
        addresses += [0] * len(weights)
        for k, launch in enumerate(self.there):
            if k and masks:
                self.between(memory, self.rows[k - 1]).mul_(masks[k - 1])
            launch.run(addresses)
        return y, finals, memory

    def parts_of(self, memory: Tensor) -> int:
        """In how many parts a tape is. It may not be this object's: torch.utils.checkpoint computes it once more on the
        way back, maybe with another number of threads.
        """
        kind = ctypes.c_double if memory.itemsize == 8 else ctypes.c_float
        found = kind.from_address(memory.data_ptr() + self.mark * memory.itemsize).value
        if found not in range(1, self.sizes.B + 1):
            raise PlaitError(f"a saved tensor says that it has {found:g} parts: it is not what the layer has saved.")
        return int(found)

    def backward(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        masks: Sequence[Tensor],
        memory: Tensor,
        d_rows: Tensor | None,
        d_finals: States,
        needs: Sequence[bool],
        *,
        spend: bool,
    ) -> list[Tensor | None]:
        """-> d_x, d_ of the states and of the weights, None for those not needed"""
        # hooks on saved tensors may pass others, and `w.data = ...` changes a weight unseen
        found = *weights, x, d_rows, *d_finals, memory, *masks
        check_shapes(zip(self.called, found, self.expected, strict=False), self.sizes.dtype)
        d_rows, stride = rows_of(d_rows, x, self.wide)
        parts = self.parts_of(memory)
        key = (parts, stride, *needs)
        launches = self.back.get(key)
        if launches is None:
            launches = self.back[key] = self.launches(self.backward_programs(needs, stride, parts))
        S = len(states)
        of_states, of_weights = needs[1 : 1 + S], needs[1 + S :]
        d_last = [None if d is None else d.contiguous() for d in d_finals]
        d_x = pool.empty_like(x) if needs[0] else None
        d_states = [pool.empty(x, *shape) for shape in self.of_states] if True in of_states else []
        d_weights = [pool.empty_like(t) if n else None for t, n in zip(weights, of_weights, strict=True)]
        d_memory = memory if spend else pool.empty(x, self.total)
        between = pool.empty(x, 2 * self.N * self.wide) if self.L > 1 else None
        addresses = [0, *map(address, d_last), *([t.data_ptr() for t in d_states] or [0] * len(d_last))]
        addresses += [x.data_ptr(), d_rows.data_ptr(), address(d_x), memory.data_ptr(), d_memory.data_ptr()]
        addresses += [address(between), *[t.data_ptr() for t in weights], *map(address, d_weights)]
        for k, launch in enumerate(launches):
            if k and between is not None and masks:
                self.between(between, (self.L - 1 - k) % 2 * self.N * self.wide).mul_(masks[-k])
            launch.run(addresses)
        return [d_x, *[d if n else None for d, n in zip(d_states or states, of_states, strict=True)], *d_weights]


def mask(ones: Tensor, dropout: float) -> Tensor:
    """What torch.nn.functional.dropout multiplies with."""
    return torch.nn.functional.dropout(ones, dropout)
