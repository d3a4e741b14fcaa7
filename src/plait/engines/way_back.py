"""What a kernel writes on the way back, and how it is told where things are."""

from torch import Tensor

from ..kernels import pool
from ..kernels.target import Form
from ..layout import Layout
from .base import Derivative, Prepared
from .tape import Tape


class WayBack:
    """What a kernel writes on the way back of one direction: into the tape, if that is spent, or into other memory."""

    def __init__(self, p: Prepared, form: Form, layout: Layout, spent: Tensor | Tape | None, like: Tensor) -> None:
        N, GH, EH = layout.N, form.G * p.H, form.E * p.H
        self.p, self.form, self.N, self.GH, self.EH, self.spent = p, form, N, GH, EH, spent
        if isinstance(spent, Tape):
            self.gates_at, self.extra_at = spent.gates.data_ptr(), spent.extra.data_ptr()
        else:  # the memory of a tape begins with gates and extra
            self.memory = pool.empty(like, N * (GH + EH)) if spent is None else spent
            self.gates_at = self.memory.data_ptr()
            self.extra_at = self.gates_at + N * GH * like.element_size()
        self.d_projected = pool.empty(like, N, p.P) if form.projected else None
        self.d_params = [like.new_empty(layout.B, p.H) for _ in range(form.K)]

    def derivative(self) -> Derivative:
        H, N, GH = self.p.H, self.N, self.GH
        if isinstance(self.spent, Tape):
            places = {"gates": self.spent.gates, "extra": self.spent.extra}
        else:
            places = {"gates": matrix(self.memory, 0, N, GH), "extra": matrix(self.memory, N * GH, N, self.EH)}
        d_rh = [places[name][:, first * H : (first + count) * H] for name, first, count in self.form.runs]
        if all(self.form.trace.shared):
            d_rh = [places["gates"]]
        return Derivative(places["gates"], d_rh, self.d_projected, [t.sum(0) for t in self.d_params])


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def matrix(tensor: Tensor, start: int, rows: int, columns: int) -> Tensor:
    return tensor.as_strided((rows, columns), (columns, 1), tensor.storage_offset() + start)


def rows_of(d_rows: Tensor | None, x: Tensor, width: int) -> tuple[Tensor, int]:
    """d_ of the output in a form that a kernel can read, and the numbers from one row to the next."""
    if d_rows is None:
        return x.new_zeros(width), 0
    if d_rows.is_contiguous() or d_rows.dim() != 2 or d_rows.stride(1) != 1:
        return d_rows.contiguous(), width
    return d_rows, d_rows.stride(0)
