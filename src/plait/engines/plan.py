"""A plan: what runs a call, made once for all calls with the same key.

It is a short list of segments, forward and backward, the memory map of its tape, and one table of bindings: which
tensor's address, or which size, goes into which word. Making a plan decides; running it decides nothing, but for a
ragged batch who computes which product, because that depends on its rows.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import pool
from ..kernels.emit.target import Form
from ..kernels.launch.choices import LENIENT, Sized
from ..kernels.launch.costs import Costs
from ..kernels.launch.key import Key
from ..kernels.launch.schedule import Schedule
from ..layout import Layout
from .bound import Bound
from .checks import check_saved, check_shapes, check_weights_of, kind_of
from .packed import Packed
from .plan_map import PlanMap
from .plan_writer import Variant, Writer
from .segments import Frame, Launch, drawn_masks

MOST_PASSES = 256


class Out(NamedTuple):
    """Where the results of a chunk of steps go."""

    rows: Tensor  # (all rows, .)
    states: list[Tensor]
    firsts: Sequence[int]  # per direction: its first row of x and of the output


class Back(NamedTuple):
    """The results of a backward pass."""

    x: Tensor | None
    states: list[Tensor]  # per state (L*D, B, .), if one was wanted
    weights: list[Tensor | None]
    frame: Frame
    variant: Variant


class Pass:
    """What runs batches of exactly one size: what is left is to allocate, to bind and to run."""

    def __init__(self, plan: "Plan", variant: Variant, N: int, back: bool) -> None:
        self.variant, self.segments, self.gathers = variant, variant.segments, variant.gathers
        only = variant.segments[0] if len(variant.segments) == 1 else None
        self.launch = only if isinstance(only, Launch) else None
        self.scratch, self.tapes = variant.scratch.size(N), plan.tape_shapes(N)
        self.of_tapes = [(shape, plan.key.dtype, True) for shape in self.tapes]
        size = plan.form.target.size
        self.new_rows = pool.maker(N * plan.wide * size, exact=True)
        self.new_scratch = pool.maker(self.scratch * size)
        self.new_tapes = [pool.maker(math.prod(shape) * size) for shape in self.tapes]
        self.counts = [choices.threads for choices in variant.choices]
        each = zip(plan.layers, self.counts, strict=True)
        self.chunks = [layer.chunk(N, count, back) for layer, count in each] if plan.key.ragged else []


class Plan:
    def __init__(self, key: Key, schedule: Schedule, form: Form, costs: Costs) -> None:
        self.key, self.schedule, self.form, self.costs = key, schedule, form, costs
        self.bounds: Sequence[int] = ()  # of the slabs of the batch: the order of rows in the tape (launch/slabs.py)
        self.layers = self.sized(lenient=False)
        if key.slabs and not (key.ragged or key.pinned or key.projected or key.cell.params or key.rounded):
            self.take_slabs()
        self.slabs = max(1, len(self.bounds) - 1)
        with torch.inference_mode(False):
            self.order = torch.tensor([self.slabs], device="cpu")  # saved with the tapes: how their rows are ordered
        self.map = PlanMap(key)
        self.variants: dict[Any, Variant] = {}  # by what is decided for a batch
        self.passes: dict[Any, Pass] = {}  # by the size of a batch
        self.D, self.wide, S = key.D, key.wide, len(key.widths)
        LD, size = key.layers * key.D, form.target.size
        shapes = [shape for k in range(key.layers) for _ in key.reverse for shape in key.shapes(k)]
        self.kinds = [(shape, key.dtype, True) for shape in shapes]
        self.new_weights = [new_like(math.prod(shape) * size) for shape in shapes]
        self.of_states = [(key.B, width) if key.step else (LD, key.B, width) for width in key.widths]
        self.new_state = pool.maker(max(LD * key.B * width for width in key.widths) * size, exact=True)
        self.no_states, self.no_tapes, self.firsts = [0] * S, [0] * key.D, [0] * key.D
        self.dense = [0, 0, 0]  # the first bindings of a dense batch

    # --- what is decided once
    def sized(self, *, lenient: bool) -> list[Sized]:
        key, found = self.key, []
        for k in range(key.layers):
            most = 1.0 if not lenient else LENIENT if k or key.learns_x else float("inf")
            found.append(Sized(key, k, self.form, self.schedule, self.costs, self.bounds, most))
        return found

    def take_slabs(self) -> None:
        """If the launch can compute all products of a dense batch, it does, and the batch may be in slabs."""
        key, layers = self.key, self.sized(lenient=True)
        N, T, most = key.T * key.B, key.T, min(key.B, -(-key.threads // key.D))
        if most > 1 and all(layer.separates(most) for layer in layers):
            self.bounds = Layout(T, key.B).shares(most)
            layers = self.sized(lenient=True)
        forward, backward = ([layer.choices(N, T, back=back) for layer in layers] for back in (False, True))
        is_whole = all(layer.folded or c.is_ours for layer, c in zip(layers, forward, strict=True))
        if is_whole and all(c.is_ours and c.over_rows for c in backward):
            self.layers = layers

    def tape_shapes(self, N: int) -> list[tuple[int, ...]]:
        return [(tape.size(N),) for tape in self.map.tapes]

    def bytes(self, N: int) -> int:
        """Of the tapes."""
        return sum(tape.size(N) for tape in self.map.tapes) * self.form.target.size

    def masks(self, like: Tensor, N: int, dropout: float) -> list[Tensor]:
        return [*drawn_masks(like, N, self.wide, self.key.layers - 1, dropout)]

    # --- what is decided for a batch
    def make(self, layout: Layout, stride: int, needs: tuple[bool, ...] | None = None) -> Pass:
        """Finds the pass for such a batch, or makes it.

        stride: numbers from one row of the output, or of its gradient, to the next
        needs: which gradients are wanted, backward
        """
        name = layout.N, layout.T, stride, needs
        found = self.passes.get(name)
        if found is None:
            if len(self.passes) >= MOST_PASSES:
                self.passes.clear()
            variant = self.variant(layout.N, layout.T, stride, needs)
            found = self.passes[name] = Pass(self, variant, layout.N, needs is not None)
        return found

    def variant(self, N: int, T: int, stride: int, needs: tuple[bool, ...] | None) -> Variant:
        choices = [layer.choices(N, T, back=needs is not None) for layer in self.layers]
        name = (stride, needs, *choices)
        found = self.variants.get(name)
        if found is None:
            if len(self.variants) >= MOST_PASSES:
                self.variants.clear()
            writer = Writer(self.map, self.layers, choices, stride)
            found = self.variants[name] = writer.forward() if needs is None else writer.backward(needs)
        return found

    def head(self, layout: Layout, its: Pass, back: bool) -> list[int]:
        """The first bindings of a ragged batch: all its sizes."""
        padding = layout.padding
        found = [0, 0, layout.N, layout.bounds.data_ptr(), layout.T]
        found += (0, 0, 0, 0) if padding is None else padding.bindings
        for reverse in (False, True):
            found.append(layout.rows_before(reverse).data_ptr() if back and reverse in self.key.reverse else 0)
        for layer, count in zip(self.layers, its.counts, strict=True):
            found.append(layer.slices_at(layout, count))
        return found + its.chunks

    # --- running it
    def forward(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        layout: Layout,
        *,
        masks: Sequence[Tensor] = (),
        pins: Sequence[Packed] = (),
        out: "Out | None" = None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """-> rows (., D*P), last states (L*D, B, .), of a cell (B, .), the tapes

        The tensors are contiguous. pins: per layer and direction the panels of the weights, if those stand still. out:
        where rows and last states go, if they exist
        """
        key, frame = self.key, Frame()
        if [*map(kind_of, weights)] != self.kinds:
            check_weights_of(key, weights, self.kinds)
        stride = self.wide if out is None else out.rows.stride(0)
        its = self.passes.get((layout.N, layout.T, stride, None)) or self.make(layout, stride)
        if key.padded:
            assert layout.padding is not None
            states = layout.padding.sorted(states)
        if out is None:
            of_rows: Sequence[int] = x.shape[:-1] if its.gathers or not key.padded else (layout.N,)
            new = pool.empty if key.padded else its.new_rows
            frame.rows, frame.firsts, frame.states = new(x, *of_rows, self.wide), self.firsts, []
            for shape in self.of_states:
                is_h = key.step and not frame.states
                frame.states.append(frame.rows if is_h else self.new_state(x, *shape))
        else:
            frame.rows, frame.states, frame.firsts = out.rows, out.states, out.firsts
        frame.tapes = tapes = []
        for new, of_tape in zip(its.new_tapes, its.tapes, strict=True):
            tapes.append(new(x, *of_tape))
        frame.scratch = its.new_scratch(x, its.scratch) if its.scratch else None
        frame.x, frame.weights, frame.masks, frame.layout, frame.N = x, weights, masks, layout, layout.N
        frame.values = self.bindings(its, frame, states, pins)
        if out is not None:
            self.shift(frame.values, out)
        for segment in its.segments:
            segment.run(frame)
        for pin, panels in zip(pins, its.variant.packs, strict=False):
            pin.mark_ready(False, panels)
        return frame.rows, frame.states, tapes

    def bindings(self, its: Pass, frame: Frame, states: Sequence[Tensor], pins: Sequence[Packed]) -> list[int]:
        """Of a forward pass, in their order."""
        values = self.head(frame.layout, its, False) if self.key.ragged else [*self.dense]
        values += map(Tensor.data_ptr, states) if states else self.no_states
        values += map(Tensor.data_ptr, frame.states)
        values += (frame.x.data_ptr(), frame.rows.data_ptr()) * self.D
        values += 0, 0 if frame.scratch is None else frame.scratch.data_ptr()
        values += map(Tensor.data_ptr, frame.tapes) if frame.tapes else self.no_tapes
        values += self.no_tapes
        values += map(Tensor.data_ptr, frame.weights)
        for pin, panels in zip(pins, its.variant.packs, strict=False):
            values += pin.bindings(self.form, False, "f" in panels)
        return values

    def bound(
        self,
        layout: Layout,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        weights: Sequence[Tensor],
        pins: Sequence[Packed],
    ) -> Bound | None:
        """For calls like this one, of one step without gradients; None if such a call is more than one launch."""
        if layout.T != 1 or self.key.ragged or self.key.dropout:
            return None
        its, frame, (x, *states) = self.make(layout, self.wide), Frame(), tensors
        if its.launch is None:
            return None
        frame.x, frame.rows, frame.states = x, outputs[0], [*outputs[0 if self.key.step else 1 :]]
        frame.weights, frame.tapes, frame.scratch = weights, (), None
        return Bound(self, its, frame, states, outputs, pins)

    def backward(
        self,
        x: Tensor,
        weights: Sequence[Tensor],
        tapes: Sequence[Tensor],
        d_outputs: Sequence[Tensor | None],
        layout: Layout,
        needs: tuple[bool, ...],
        *,
        spend: bool = False,
        masks: Sequence[Tensor] = (),
        pins: Sequence[Packed] = (),
    ) -> Back:
        """d_outputs: of the rows and the last states. needs: of x, of each state, of each weight.

        spend: the tapes may be overwritten
        """
        key, frame = self.key, Frame()
        if [*map(kind_of, weights)] != self.kinds:
            check_weights_of(key, weights, self.kinds)
        rows = layout.N if layout.padding is None else math.prod(layout.padding.shape)
        if x.dtype is not key.dtype or not x.is_cpu or x.numel() != rows * key.I or masks:
            check_saved(key, x, rows, masks, layout.N)
        frame.rows, stride = rows_of(d_outputs[0], x, self.wide)
        its = self.passes.get((layout.N, layout.T, stride, needs)) or self.make(layout, stride, needs)
        if [*map(kind_of, tapes)] != its.of_tapes:
            found = zip(["a saved tensor"] * len(tapes), tapes, its.tapes, strict=True)
            check_shapes(found, key.dtype)
        first = len(needs) - len(weights)  # of the weights
        of_x: Sequence[int] = x.shape[:-1] if its.gathers or not key.padded else (layout.N,)
        frame.d_x = pool.empty(x, *of_x, key.I) if needs[0] else None
        frame.states, frame.gradients = [], []
        if True in needs[1:first]:
            for shape in self.of_states:
                frame.states.append(self.new_state(x, *shape))
        for t, new, is_wanted in zip(weights, self.new_weights, needs[first:], strict=True):
            frame.gradients.append(new(t) if is_wanted else None)
        frame.tapes = frame.d_tapes = tapes
        if not spend:
            frame.d_tapes = [new(x, *shape) for new, shape in zip(its.new_tapes, its.tapes, strict=True)]
        frame.scratch = its.new_scratch(x, its.scratch) if its.scratch else None
        frame.x, frame.weights, frame.masks, frame.layout, frame.N = x, weights, masks, layout, layout.N
        frame.firsts = self.firsts
        ends = ends_of(d_outputs[1:], layout if key.padded else None)
        frame.values = self.bindings_back(its, frame, ends, pins)
        for segment in its.segments:
            segment.run(frame)
        for pin, panels in zip(pins, its.variant.packs, strict=False):
            pin.mark_ready(True, panels)
        return Back(frame.d_x, frame.states, frame.gradients, frame, its.variant)

    def bindings_back(
        self, its: Pass, frame: Frame, ends: Sequence[Tensor | None], pins: Sequence[Packed]
    ) -> list[int]:
        """Of a backward pass, in their order. ends: the gradients of the last states"""
        values = self.head(frame.layout, its, True) if self.key.ragged else [*self.dense]
        for end in ends:
            values.append(0 if end is None else end.data_ptr())
        values += map(Tensor.data_ptr, frame.states) if frame.states else self.no_states
        values += (frame.x.data_ptr(), frame.rows.data_ptr()) * self.D
        values += (
            0 if frame.d_x is None else frame.d_x.data_ptr(),
            0 if frame.scratch is None else frame.scratch.data_ptr(),
        )
        values += map(Tensor.data_ptr, frame.tapes)
        values += map(Tensor.data_ptr, frame.d_tapes)
        values += map(Tensor.data_ptr, frame.weights)
        for pin in pins:
            values += pin.bindings(self.form, True, False)
        for gradient in frame.gradients:
            values.append(0 if gradient is None else gradient.data_ptr())
        return values

    def shift(self, values: list[int], out: "Out") -> None:
        """Lets each direction begin at its own first row of x and of the output."""
        size, stride = self.form.target.size, out.rows.stride(0)
        for d, first in enumerate(out.firsts):
            at = self.map.numbers[f"x.{d}"]
            values[at] += first * self.key.I * size
            values[at + 1] += first * stride * size

    def walk(self, found: dict[str, int], p: Packed, layout: Layout, stride: int, *, back: bool = False) -> None:
        """One direction from given W x. found: the address of each matrix, by its name"""
        S, names = len(self.of_states), self.map.bindings.names
        its = self.make(layout, stride, (False, *[True] * S, *[False] * len(p.tensors)) if back else None)
        values = self.head(layout, its, back) if self.key.ragged else [*self.dense]
        values += [found.get(name, 0) for name in names[len(values) : self.map.numbers["0.0.w_ih"]]]
        values += map(Tensor.data_ptr, p.tensors)
        if p.lasting:
            values += p.bindings(self.form, back, False)
        frame = Frame()
        frame.values = values
        for segment in its.segments:
            segment.run(frame)
        if p.lasting:
            p.mark_ready(back, "r")

    def __str__(self) -> str:
        """What it does, for the batches that it was made for so far."""
        lines = [str(self.key)]
        for (_, needs, *_), variant in self.variants.items():
            lines.append("forward" if needs is None else f"backward, gradients of {sum(needs)} of {len(needs)} tensors")
            lines += [f"  {segment}" for segment in variant.segments]
        return "\n".join(lines)


def new_like(size: int) -> Callable[[Tensor], Tensor]:
    """Makes a tensor like another one of that many bytes."""
    return torch.empty_like if size < pool.LEAST else pool.empty_like


def ends_of(d_finals: Sequence[Tensor | None], layout: Layout | None) -> list[Tensor | None]:
    """The gradients of the last states, as a kernel reads them. layout: of a padded batch, which sorts its sequences"""
    if layout is not None and layout.padding is not None:
        sort = layout.padding.sorted
        d_finals = [None if d is None else sort([d])[0] for d in d_finals]
    return [None if d is None else d.contiguous() for d in d_finals]


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def rows_of(d_rows: Tensor | None, x: Tensor, width: int) -> tuple[Tensor, int]:
    """d_ of the output in a form that a kernel can read, and the numbers from one row to the next."""
    if d_rows is None:
        return x.new_zeros(width), 0
    if d_rows.is_contiguous() or d_rows.dim() != 2 or d_rows.stride(1) != 1:
        return d_rows.contiguous(), width
    return d_rows, d_rows.stride(0)
