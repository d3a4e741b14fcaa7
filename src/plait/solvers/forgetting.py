"""How long a network remembers: whether its sequences can be cut in time at all."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .. import engines
from ..engines import Layout, Weights
from ..errors import PlaitError
from .grid import Grid, Line, States, norms, taken

if TYPE_CHECKING:
    from ..layers import Recurrent

BELOW = 0.01  # what counts as forgotten
STARTS = 32  # places in the sequences that are tried


@dataclass(frozen=True)
class Memory:
    """Steps until a network has forgotten, to one hundredth. A number that is `steps` means: not within the sequence.

    perturbation: a small push at some step; half of the places that were tried take no longer
    zero_start: it begins there with zeros, not with the state that the sequence has led to; nine of ten take no longer
    """

    perturbation: int
    zero_start: int
    steps: int  # how many were looked at
    layers: tuple[tuple[int, int], ...]  # both numbers, of each layer and direction

    def __str__(self) -> str:
        def told(count: int) -> str:
            return f"{count} steps" if count < self.steps else f"more than {self.steps - 1} steps"

        return f"a push is forgotten after {told(self.perturbation)}, a start from zeros after {told(self.zero_start)}"


@torch.no_grad()
def memory(layer: "Recurrent", x: Tensor) -> Memory:
    """Measures how long a layer (or a stack of them) remembers, on sequences (T, B, I), or (B, T, I) with batch_first.

        print(plait.memory(model.rnn, x))

    Pieces of a sequence can be solved side by side if it is much longer than this memory.
    """
    if not hasattr(layer, "_plait_cell") or x.dim() != 3:
        raise PlaitError(
            f"memory needs a recurrent layer of plait and a 3-D input, found {type(layer).__name__} and {x.dim()}-D."
        )
    rows = (x.transpose(0, 1) if layer.batch_first else x).contiguous()
    T, B = rows.shape[:2]
    if T < 4:
        raise PlaitError(f"memory of sequences of {T} steps: give longer ones, thousands if you have them.")
    layer.check_input(rows, None)
    if B == 0 or not rows.isfinite().all():
        what = "no sequence" if B == 0 else "numbers that are not finite"
        raise PlaitError(f"memory of an input with {what}: give sequences of real numbers.")
    layout, D, found = Layout(T, B), 2 if layer.bidirectional else 1, []
    engine = engines.get(engines.choose(layer.engine, layer._plait_cell, x.dtype, x.device))
    flat = rows.flatten(0, 1)
    for number in range(layer.num_layers):
        outputs = []
        for d in range(D):
            tensors = [getattr(layer, name) for name in layer._all_weights[number * D + d]]
            p = engine.prepare(layer._plait_cell, Weights.of(layer._plait_cell, tensors, bias=layer.bias), d == 1)
            grid = Grid.of(layout, T, d == 1)  # one piece: it only turns the rows round
            line = Line(engine, p)
            wx = engine.project(line.p, taken(flat, grid.rows))
            path = [flat.new_empty(T * B, width) for width in line.widths]
            engine.recur(line.p, wx, None, layout, keep=False, out=path)
            found.append(measured(line, wx, path, layout))
            outputs.append(taken(path[0], grid.places))
        flat = torch.cat(outputs, 1) if D > 1 else outputs[0]
    steps = span_of(T)
    return Memory(max(a for a, _ in found), max(b for _, b in found), steps, tuple(found))


def span_of(T: int) -> int:
    return max(2, T // 2)


def measured(line: Line, wx: Tensor, path: States, layout: Layout) -> tuple[int, int]:
    T, B, steps = layout.T, layout.B, span_of(layout.T)
    begin = np.linspace(1, T - steps, min(STARTS, T - steps), dtype=np.int64)
    sequence = np.arange(len(begin)) % B
    spans = layout.spans(sequence, begin, begin + steps)
    n, before = len(begin), torch.from_numpy((begin - 1) * B + sequence)
    true = [s[spans.rows].view(steps, n, -1) for s in path]
    generator = torch.Generator().manual_seed(0)
    push = [torch.randn(n, s.shape[1], generator=generator, dtype=torch.float64).to(s) for s in path]
    length, size = norms(push), norms([s[before] for s in path])
    scale = (BELOW * size / length).unsqueeze(1).to(push[0])  # a hundredth of the state
    starts = {
        "push": [s[before] + p * scale for s, p in zip(path, push, strict=True)],
        "zeros": [torch.zeros_like(p) for p in push],
    }
    result = {}
    for name, start in starts.items():
        out = [torch.empty(steps * n, s.shape[2]).to(s) for s in true]
        line.engine.recur(line.p, wx[spans.rows], start, spans.layout, keep=False, out=out)
        gaps = norms([(o.view_as(t) - t).flatten(0, 1) for o, t in zip(out, true, strict=True)]).view(steps, n)
        sizes = (
            BELOW * size
            if name == "push"
            else norms([t.flatten(0, 1) for t in true]).view(steps, n).square().mean(0).sqrt()
        )
        late = gaps > BELOW * sizes.clamp(min=1e-30)
        count = torch.where(late.any(0), steps - late.flip(0).int().argmax(0), 0)  # the first step from which it is low
        result[name] = int(count.double().quantile(0.5 if name == "push" else 0.9, interpolation="higher"))
    return result["push"], result["zeros"]
