"""How soon a network forgets its warm_start (fading memory): whether its sequences can be cut in time at all."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import engines
from ..engines import Layout, Weights
from ..errors import PlaitError, counted
from .base import Problem
from .grid import Direction, Grid, States, norms, taken

BELOW = 0.01  # of the state: a difference below it counts as gone
STARTS = 32  # steps of the sequences at which a difference begins


@dataclass(frozen=True)
class FadingMemory:
    """Steps until a difference of the state decays below 1 %. A number that is `steps` means: not within the sequence.

    perturbation: of a small perturbation at some step, the median over the steps that were tried
    zero_start: of a start from zeros instead of the state that the sequence has led to, the 90th percentile
    """

    perturbation: int
    zero_start: int
    steps: int  # how many were looked at
    layers: tuple[tuple[int, int], ...]  # both numbers, of each layer and direction

    def __str__(self) -> str:
        def after(count: int) -> str:
            return counted(count, "step") if count < self.steps else f"more than {self.steps - 1} steps"

        return (
            f"a perturbation decays below 1 % after {after(self.perturbation)}, a start from zeros after "
            f"{after(self.zero_start)}"
        )


@torch.no_grad()
def fading_memory(rnn: nn.Module, x: Tensor) -> FadingMemory:
    """Measures how soon a layer, of any depth, forgets; on sequences (T, B, I), or (B, T, I) with batch_first.

        print(plait.fading_memory(model.rnn, x))

    Pieces of a sequence can be solved side by side if it is much longer than this memory.
    """
    layer: Any = rnn
    if not hasattr(layer, "_plait_cell") or x.dim() != 3:
        raise PlaitError(
            "fading_memory needs a recurrent layer of plait and a 3-D input, found "
            f"{type(layer).__name__} and {x.dim()}-D."
        )
    rows = (x.transpose(0, 1) if layer.batch_first else x).contiguous()
    T, B = rows.shape[:2]
    if T < 4:
        raise PlaitError(f"fading_memory of sequences of {T} steps: give longer ones, thousands if you have them.")
    layer.check_input(rows, None)
    if B == 0 or not rows.isfinite().all():
        what = "no sequence" if B == 0 else "numbers that are not finite"
        raise PlaitError(f"fading_memory of an input with {what}: give sequences of real numbers.")
    layout, D, found, steps = Layout(T, B), 2 if layer.bidirectional else 1, [], max(2, T // 2)
    engine = engines.get(engines.choose(layer.engine, layer._plait_cell, x.dtype, x.device))
    flat = rows.flatten(0, 1)
    for number in range(layer.num_layers):
        outputs = []
        for d in range(D):
            tensors = [getattr(layer, name) for name in layer._all_weights[number * D + d]]
            p = engine.prepare(layer._plait_cell, Weights.of(layer._plait_cell, tensors, bias=layer.bias), d == 1)
            grid = Grid.of(layout, T, d == 1)  # one piece: it only turns the rows round
            direction = Direction(Problem(engine, [p], layout), 0)
            wx = engine.project(direction.p, taken(flat, grid.rows))
            path, _ = direction.recur(wx, None, layout)
            found.append(measured(direction, wx, path, steps))
            outputs.append(taken(path[0], grid.places))
        flat = torch.cat(outputs, 1) if D > 1 else outputs[0]
    return FadingMemory(max(a for a, _ in found), max(b for _, b in found), steps, tuple(found))


def measured(direction: Direction, wx: Tensor, path: States, steps: int) -> tuple[int, int]:
    layout, T, B = direction.layout, direction.layout.T, direction.layout.B
    begin = np.linspace(1, T - steps, min(STARTS, T - steps), dtype=np.int64)
    sequence = np.arange(len(begin)) % B
    spans = layout.spans(sequence, begin, begin + steps)
    n, before = len(begin), torch.from_numpy((begin - 1) * B + sequence)
    true = [s[spans.rows].view(steps, n, -1) for s in path]
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(n, s.shape[1], generator=generator, dtype=torch.float64).to(s) for s in path]
    length, size = norms(noise), norms([s[before] for s in path])
    scale = (BELOW * size / length).unsqueeze(1).to(noise[0])  # a hundredth of the state
    starts = {
        "perturbation": [s[before] + p * scale for s, p in zip(path, noise, strict=True)],
        "zeros": [torch.zeros_like(p) for p in noise],
    }
    result = {}
    for name, start in starts.items():
        out, _ = direction.recur(wx[spans.rows], start, spans.layout)
        gaps = norms([(o.view_as(t) - t).flatten(0, 1) for o, t in zip(out, true, strict=True)]).view(steps, n)
        sizes = BELOW * size
        if name == "zeros":
            sizes = norms([t.flatten(0, 1) for t in true]).view(steps, n).square().mean(0).sqrt()
        late = gaps > BELOW * sizes.clamp(min=1e-30)
        count = torch.where(late.any(0), steps - late.flip(0).int().argmax(0), 0)  # the first step after the last gap
        result[name] = int(count.double().quantile(0.5 if name == "perturbation" else 0.9, interpolation="higher"))
    return result["perturbation"], result["zeros"]
