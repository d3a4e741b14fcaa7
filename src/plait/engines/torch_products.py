"""What torch computes of a plan: products over whole sequences where torch.mm is faster, and sums of a few rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels.emit.target import Form
from ..kernels.launch.bindings import MemoryMap, Spot, Where
from ..kernels.launch.program import ByTorch
from .base import Derivative
from .plan_map import Places, PlanMap
from .segments import Frame


class TorchProducts:
    def __init__(self, map: PlanMap, form: Form, scratch: MemoryMap) -> None:
        self.map, self.key, self.form, self.scratch = map, map.key, form, scratch

    def weight(self, tensors: Sequence[Any], k: int, d: int, name: str) -> Any:
        names = self.key.names
        return tensors[(k * self.key.D + d) * len(names) + names.index(name)]

    def rows(self, frame: Frame, k: int, d: int) -> Tensor:  # (N, I)
        """The input of a layer."""
        if k == 0:
            first = frame.firsts[d]
            return frame.x.view(-1, self.key.I)[first : first + frame.N]
        return frame.matrix(frame.tapes[0], self.map.rows(k - 1), frame.N, self.key.wide)

    def project(self, frame: Frame, k: int, what: ByTorch) -> None:
        """W x + b, written to the gates of the tape."""
        d = what.direction
        x, w = self.rows(frame, k, d), self.weight(frame.weights, k, d, "w_ih")
        to = frame.matrix(frame.tapes[d], self.map.in_tape(k, d, "gates"), frame.N, w.shape[0])
        if self.key.bias:
            torch.addmm(self.weight(frame.weights, k, d, "b_ih"), x, w.t(), out=to)
        else:
            torch.mm(x, w.t(), out=to)

    def operands(self, frame: Frame, tensor: Tensor, spot: Spot, columns: int, width: int) -> Tensor:
        """Rows of several columns of that width, in float32: rounded ones are copied."""
        words = columns * self.map.words(width)
        rows = frame.matrix(tensor, spot, frame.N, words)
        if not self.key.rounded or not words:
            return rows
        numbers: Tensor = rows.view(torch.bfloat16).unflatten(1, (columns, -1))
        return numbers[..., :width].flatten(1).float()

    def d_rh(self, frame: Frame, k: int, d: int) -> list[Tensor]:
        """Its columns may be in several matrices, in the order of the gates."""
        H, G, E = self.key.H, self.form.G, self.form.E
        places = {}
        for name, columns in (("gates", G), ("extra", E)):
            places[name] = self.operands(frame, frame.d_tapes[d], self.map.in_tape(k, d, name), columns, H)
        if all(self.form.trace.shared):
            return [places["gates"]]
        return [places[name][:, first * H : (first + count) * H] for name, first, count in self.form.runs]

    def gradient(self, frame: Frame, k: int, what: ByTorch) -> None:
        key, d, N = self.key, what.direction, frame.N
        if what.name == "params":
            to = self.weight(frame.gradients, k, d, f"param.{what.run}")
            torch.sum(self.d_params(frame, k, d, what.run), 0, out=to)
            return
        d_wx = self.d_wx(frame, k, d)
        if what.name == "d_x":
            between = Places(self.map, k, self.scratch, back=True).rows("d_x")
            d_x = frame.d_x if k == 0 else frame.matrix(scratch_of(frame), between, N, key.wide)
            assert d_x is not None
            w_ih = self.weight(frame.weights, k, d, "w_ih")
            d_x.view(N, -1).addmm_(d_wx, w_ih, beta=0 if d == 0 else 1)
            return
        to = self.weight(frame.gradients, k, d, what.name)
        if what.name == "w_ih":
            torch.mm(d_wx.t(), self.rows(frame, k, d), out=to)
        elif what.name == "b_ih":
            torch.sum(d_wx, 0, out=to)
        elif what.name == "w_hr":
            raw = self.operands(frame, frame.tapes[d], self.map.in_tape(k, d, "raw"), 1, key.H)
            torch.mm(self.in_scratch(frame, k, d, "d_projected").t(), raw, out=to)
        elif what.name == "w_hh":
            before = frame.matrix(frame.tapes[d], self.map.in_tape(k, d, "history"), N, key.P)
            if key.ragged:
                before = self.in_scratch(frame, k, d, "before")
            torch.mm(self.d_rh(frame, k, d)[what.run].t(), before, out=to[what.first : what.end])
        elif all(self.form.trace.shared) and (b_ih := self.weight(frame.gradients, k, d, "b_ih")) is not None:
            to.copy_(b_ih)  # both biases have the same gradient
        else:
            torch.sum(self.d_rh(frame, k, d)[what.run], 0, out=to[what.first : what.end])

    def in_scratch(self, frame: Frame, k: int, d: int, name: str) -> Tensor:  # (N, P)
        spot = Places(self.map, k, self.scratch, back=True).find(Where(d, name))
        return self.operands(frame, scratch_of(frame), spot, 1, self.key.P)

    def d_params(self, frame: Frame, k: int, d: int, number: int) -> Tensor:  # (B, H)
        spot = Places(self.map, k, self.scratch, back=True).find(Where(d, "d_params", 0, number))
        return frame.matrix(scratch_of(frame), spot, self.key.B, self.key.H)

    def d_wx(self, frame: Frame, k: int, d: int) -> Tensor:
        return self.operands(frame, frame.d_tapes[d], self.map.in_tape(k, d, "gates"), self.form.G, self.key.H)

    def derivative(self, frame: Frame, d: int) -> Derivative:
        """Of the only layer: what the gradients of its weights can be computed from later."""
        d_wx = self.d_wx(frame, 0, d)
        d_projected = self.in_scratch(frame, 0, d, "d_projected") if self.key.projected else None
        d_params = [self.d_params(frame, 0, d, k).sum(0) for k in range(self.form.K)]
        return Derivative(d_wx, self.d_rh(frame, 0, d), d_projected, d_params)


def scratch_of(frame: Frame) -> Tensor:
    assert frame.scratch is not None
    return frame.scratch
