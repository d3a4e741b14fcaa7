"""A plan for one step a call, without gradients, with all but its tensors bound: a generator, an agent, a detector."""

import threading
from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernels.launch import threads
from .checks import kind_of
from .packed import Packed
from .segments import Frame

if TYPE_CHECKING:
    from .plan import Pass, Plan

LINE = 64  # bytes: the tape in the workspace begins at a multiple


class Bound:
    """Runs a plan for calls like one that it has run. The tape, which nobody reads, is in the workspace.

    its: the pass. frame: of that call, without a tape. outputs: its results, first the rows
    """

    def __init__(
        self,
        plan: "Plan",
        its: "Pass",
        frame: Frame,
        states: Sequence[Tensor],
        outputs: Sequence[Tensor],
        pins: Sequence[Packed],
    ) -> None:
        assert its.launch is not None
        self.launch, at, self.dtype, self.pins = its.launch, plan.map.numbers, plan.key.dtype, pins
        self.thread, self.threads = threading.get_ident(), torch.get_num_threads()
        self.shapes, self.kinds = [shape_of(t) for t in (frame.x, *states)], [kind_of(t) for t in frame.weights]
        makers = [its.new_rows, *[plan.new_state] * (len(outputs) - 1)]
        self.outputs = [(new, tuple(t.shape)) for new, t in zip(makers, outputs, strict=True)]
        self.values, self.first = array("q", plan.bindings(its, frame, states, pins)), at["0.0.w_ih"]
        self.addresses = array("q", map(Tensor.data_ptr, frame.weights))
        # which of x, the states and the outputs is bound where
        rows, own = 1 + len(states), len(outputs) - len(frame.states)
        self.places = [(at[f"x.{d}"] + k, rows * k) for d in range(plan.D) for k in (0, 1)]
        self.places += [(at["given.0"] + k, 1 + k) for k in range(len(states))]
        self.places += [(at["last.0"] + k, rows + own + k) for k in range(len(frame.states))]
        self.inside, self.bytes = list[tuple[int, int]](), self.launch.chain.bytes
        sizes = [(at[f"tape.{d}"], shape[0]) for d, shape in enumerate(its.tapes)]
        for number, size in [*sizes, (at["scratch"], its.scratch)]:
            self.bytes += -self.bytes % LINE
            self.inside.append((number, self.bytes))
            self.bytes += size * plan.form.target.size

    def run(self, tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor] | None:
        """The results; None if these ordinary tensors, x first, are not like those of that call for a kernel."""
        if [*map(shape_of, tensors)] != self.shapes or [*map(kind_of, weights)] != self.kinds:
            return None
        count = torch.get_num_threads()
        if count != self.threads or (self.launch.chain.count > 1 and threads.threads() != count):
            return None
        for t in tensors:
            if t.dtype is not self.dtype or not (t.is_cpu and t.is_contiguous()) or t.is_neg():
                return None
        for t in weights:
            if not t.is_contiguous() or t.is_neg():
                return None
        outputs, values, own = list[Tensor](), self.values[:], array("q", map(Tensor.data_ptr, weights))
        for new, shape in self.outputs:
            outputs.append(new(tensors[0], *shape))
        addresses = [*map(Tensor.data_ptr, (*tensors, *outputs))]
        if 0 in addresses or 0 in own:  # zeros without memory
            return None
        if self.pins and (threading.get_ident() != self.thread or own != self.addresses):
            return None
        for place, k in self.places:
            values[place] = addresses[k]
        values[self.first : self.first + len(own)] = own
        self.launch.start(values, self.bytes, self.inside)
        return outputs


shape_of = attrgetter("shape")
