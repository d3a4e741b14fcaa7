"""A call that is made ready while the weights do not change: only a few of its addresses are new each time.

For generation, one step after another of a small network, the Python around a kernel takes longer than the kernel. A
ready call has one workspace, so only the Python thread that made it may run it.
"""

from array import array
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..kernels import pool, threads
from ..kernels.addresses import FIRST, OF_DIRECTION
from ..kernels.program import Program

X, ROWS = OF_DIRECTION.index("x"), OF_DIRECTION.index("rows")
MOST_READY_CALLS = 16  # per layer: only a few shapes come again and again


class ReadyCall:
    """x, and initial states if the first call had some -> y, last states. It keeps no tape."""

    def __init__(
        self,
        program: Program,
        addresses: Sequence[int],
        ps: Sequence[Any],
        x: Tensor,
        y: Tensor,
        finals: Sequence[Tensor],
        kept: Sequence[Tensor],
    ) -> None:
        # what the addresses point to must stay alive. The first direction does: it has this call
        self.others, self.kept = ps[1:], kept
        self.program, self.workspace = program, pool.workspace(program.bytes)
        self.addresses = array("q", [self.workspace.address, *addresses])
        self.at = self.addresses.buffer_info()[0]
        self.S, self.each, self.D = len(finals), len(OF_DIRECTION) + 2 * program.form.K, len(kept)
        self.width, self.size = y.shape[-1], x.element_size()
        self.of_x, self.dtype = x.shape, x.dtype
        self.of_finals = [f.shape for f in finals]
        self.new = pool.maker(max(t.nbytes for t in (y, *finals)), exact=True)

    def fits(self, x: Tensor, state0: Sequence[Tensor] | None) -> bool:
        """If not, the usual way reports what is wrong."""
        if x.shape != self.of_x or x.dtype is not self.dtype or not x.is_cpu or not x.is_contiguous():
            return False
        if state0 is None:
            return True
        if len(state0) != self.S:
            return False
        for s, shape in zip(state0, self.of_finals, strict=True):
            if s.shape != shape or s.dtype is not self.dtype or not s.is_cpu or not s.is_contiguous():
                return False
        return True

    def run(self, x: Tensor, state0: Sequence[Tensor] | None) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        y = self.new(x, *x.shape[:-1], self.width)
        finals = [self.new(x, *shape) for shape in self.of_finals]
        addresses, S = self.addresses, self.S
        for k, s in enumerate(state0 or ()):
            addresses[FIRST + k] = s.data_ptr()
        for k, f in enumerate(finals):
            addresses[FIRST + S + k] = f.data_ptr()
        first, x_at, y_at = FIRST + 2 * S, x.data_ptr(), y.data_ptr()
        P = self.width // self.D * self.size
        for d in range(self.D):
            addresses[first + X], addresses[first + ROWS] = x_at, y_at + d * P
            first += self.each
        threads.run(self.program.address, self.at, self.workspace.address, self.program.count)
        return y, finals, []
