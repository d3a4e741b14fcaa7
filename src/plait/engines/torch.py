"""torch's operators, on any device: torch's own layer if there is one (cuDNN, oneDNN), else one step after another."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..cells import Cell
from ..cells.ops import tensors
from ..cells.trace import compiled, trace, why_untraceable
from ..layout import Layout
from .base import Weights
from .stepwise import Stepwise


class TorchEngine(Stepwise):
    name, about, ops = "torch", "torch's own layers; step by step for cells that torch lacks; any device", tensors

    def why_not(self, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str | None:
        return None if dtype.is_floating_point else f"torch trains floating-point layers, this one is {dtype}."

    def array(self, tensor: Tensor) -> Tensor:
        return tensor


class TorchStepsEngine(TorchEngine):
    name, about = "torch:steps", "torch's operators, one step after another"

    def why_not(self, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str | None:
        return super().why_not(cell, dtype, device) or why_untraceable(cell)


def unrolled(
    cell: type[Cell],
    x: Tensor,
    state0: Sequence[Tensor] | None,
    w: Weights,
    layout: Layout,
    *,
    reverse: bool,
    dt: float = 1,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The step in a loop, with nothing written in place: autograd can differentiate it any number of times.

    It runs the text that was traced, as the other engines do. A step that cannot be traced runs as it is.
    """
    step = compiled(trace(cell, dt).step, tensors) if why_untraceable(cell, dt) is None else None
    G, H = len(cell.gates), w.w_hh.shape[0] // len(cell.gates)
    wx = torch.nn.functional.linear(x, w.w_ih, w.b_ih).view(layout.N, G, H)
    if state0 is None:
        state0 = [x.new_zeros(layout.B, width) for width in w.widths(cell)]
    states, rows = tuple(state0), [x.new_empty(0, w.w_hh.shape[1])] * layout.T
    for t in layout.order(reverse):
        n, lo = layout.sizes[t], layout.starts[t]
        live = [s[:n] for s in states]
        rh = torch.nn.functional.linear(live[0], w.w_hh, w.b_hh).view(n, G, H)
        gates = wx[lo : lo + n].unbind(1), rh.unbind(1)
        if step is None:
            new = cell.advance(*gates, live, w.params, dt, tensors)
        else:
            new = step(*gates[0], *gates[1], *live, *w.params)[: len(live)]
        if w.w_hr is not None:
            new = (new[0] @ w.w_hr.t(), *new[1:])
        rows[t] = new[0]
        states = tuple(torch.cat([a, s[n:]]) if n < layout.B else a for a, s in zip(new, states, strict=True))
    return torch.cat(rows) if rows else x.new_empty(0, w.w_hh.shape[1]), states
