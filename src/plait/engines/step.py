"""One step a call, without gradients: a generator, an agent, a detector. All but its tensors is bound once."""

import threading
from array import array
from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

from ..kernels import pool
from ..kernels.launch import threads
from ..kernels.launch.bindings import WORKSPACE
from ..layout import Layout
from .packed import Packed
from .plan import Plan, kind_of
from .segments import Launch

LINE = 64  # bytes: the tape in the workspace begins at a multiple


class Step:
    """Runs a plan for calls like one that it has run. The tape, which nobody reads, is in the workspace.

    outputs: of that call. The first is the rows; h is written there alone if it is no output of its own, as in a cell.
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        weights: Sequence[Tensor],
        pins: Sequence[Packed],
    ) -> None:
        its, at, D, S = plan.make(layout, plan.wide), plan.map.numbers, plan.D, len(plan.of_states)
        (launch,) = its.segments
        assert isinstance(launch, Launch)
        self.chain, self.dtype, self.pins, self.thread = launch.chain, plan.key.dtype, pins, threading.get_ident()
        self.threads = torch.get_num_threads()
        self.tensors = [shape_of(t) for t in tensors]  # of x and the initial states
        self.weights = [kind_of(t) for t in weights]
        makers = [its.new_rows, *[plan.new_state] * (len(outputs) - 1)]
        self.outputs = [(new, tuple(t.shape)) for new, t in zip(makers, outputs, strict=True)]
        # bindings
        self.given, self.last, self.rows, self.first = at["given.0"], at["last.0"], at["x.0"], at["0.0.w_ih"]
        self.directions, self.shares_h = D, len(outputs) == S
        values = [0] * self.first + [t.data_ptr() for t in weights]
        for pin, panels in zip(pins, its.variant.packs, strict=False):
            values += pin.bindings(plan.form, False, "f" in panels)
        self.values, self.addresses = array("q", values), values[self.first : self.first + len(weights)]
        self.places, self.bytes = list[tuple[int, int]](), launch.chain.bytes
        sizes = [(at[f"tape.{d}"], shape[0]) for d, shape in enumerate(its.tapes)]
        for number, size in [*sizes, (at["scratch"], its.scratch)]:
            self.bytes += -self.bytes % LINE
            self.places.append((number, self.bytes))
            self.bytes += size * plan.form.target.size

    @staticmethod
    def is_for(plan: Plan, layout: Layout) -> bool:
        """Whether such a call is one launch."""
        key = plan.key
        if layout.T != 1 or key.ragged or key.dropout:
            return False
        return [type(segment) for segment in plan.make(layout, plan.wide).segments] == [Launch]

    def takes(self, tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> bool:
        """Whether these ordinary tensors are like those of the call that it was made from, as a kernel reads them."""
        if [*map(shape_of, tensors)] != self.tensors or [*map(kind_of, weights)] != self.weights:
            return False
        if torch.get_num_threads() != self.threads or (self.chain.count > 1 and threads.threads() != self.threads):
            return False
        for t in tensors:
            if t.dtype is not self.dtype or not (t.is_cpu and t.is_contiguous()) or t.is_neg():
                return False
        for t in weights:
            if not t.is_contiguous() or t.is_neg():
                return False
        if not self.pins:
            return True
        return threading.get_ident() == self.thread and [*map(Tensor.data_ptr, weights)] == self.addresses

    def run(self, tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        x, values, outputs = tensors[0], self.values[:], list[Tensor]()
        for new, shape in self.outputs:
            outputs.append(new(x, *shape))
        for k in range(1, len(tensors)):
            values[self.given + k - 1] = tensors[k].data_ptr()
        rows, last = outputs[0].data_ptr(), self.last
        if self.shares_h:
            values[last] = rows
            last += 1
        for k in range(1, len(outputs)):
            values[last + k - 1] = outputs[k].data_ptr()
        for d in range(self.directions):
            values[self.rows + 2 * d], values[self.rows + 2 * d + 1] = x.data_ptr(), rows
        if not self.pins:
            values[self.first :] = array("q", map(Tensor.data_ptr, weights))
        workspace = pool.workspace(self.bytes)
        values[WORKSPACE] = workspace.address
        for number, at in self.places:
            values[number] = workspace.address + at
        self.chain.run(values, workspace.address)
        pool.put(workspace)
        return outputs


shape_of = attrgetter("shape")
