"""Products of bfloat16 numbers, against the same roundings step by step in float64."""

import random

import pytest
import torch
from torch import Tensor

from plait import engines
from plait.cells import CELLS
from plait.cells.trace import trace
from plait.engines import Layout, Needs, Weights
from plait.ladder.compare import relative
from plait.ladder.rounded import Walk
from some_cells import MGU, Apart, Leaky, PeepholeLSTM

# The kernels add in float32. Where that moves a sum over a rounding boundary, an operand is another by one unit in its
# last place, 2^-8 of it at the most; and it is one term of many.
ONE_ROUNDING = 2.0**-8
EVERY = [*CELLS.values(), MGU, Apart, Leaky, PeepholeLSTM]
ops = ["x", "output"]


class Case:
    """Weights, a batch and gradients of the results, at random."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.cell = EVERY[seed % len(EVERY)]
        self.D, bias = draw.choice((1, 2)), draw.random() < 0.7
        self.I, self.H = draw.choice((1, 3, 8, 31, 70)), draw.choice((1, 5, 8, 15, 16, 31, 64, 97))
        T, B, G = draw.choice((1, 2, 7, 13)), draw.choice((1, 2, 5, 16, 19)), len(self.cell.gates)
        lengths = sorted((draw.randint(1, T) for _ in range(B)), reverse=True)
        self.layout = Layout.of_lengths(torch.tensor([T, *lengths[1:]])) if draw.random() < 0.5 else Layout(T, B)
        projected = draw.random() < 0.3 and not trace(self.cell).reads_h and self.H > 1
        self.P = self.H // 2 if projected else self.H
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            return torch.randn(*shape, generator=generator) * scale

        self.weights = [
            Weights(
                normal(G * self.H, self.I, scale=self.I**-0.5),
                normal(G * self.H, self.P, scale=self.P**-0.5),
                normal(G * self.H) if bias else None,
                normal(G * self.H) if bias else None,
                normal(self.P, self.H, scale=self.H**-0.5) if projected else None,
                tuple(normal(self.H) for _ in self.cell.params),
            )
            for _ in range(self.D)
        ]
        widths = [self.P, *[self.H] * (len(self.cell.states) - 1)]
        self.x, self.d_rows = normal(self.layout.N, self.I), normal(self.layout.N, self.D * self.P)
        self.state0, self.d_last = ([normal(self.D, B, width) for width in widths] for _ in range(2))

    def by_kernels(self) -> list[Tensor]:
        engine = engines.get("fused")
        ps = [engine.prepare(self.cell, w, d == 1, rounded=True) for d, w in enumerate(self.weights)]
        rows, last, kept = engine.forward(ps, self.x, self.state0, self.layout)
        back = engine.backward(ps, self.x, kept, self.d_rows, self.d_last, self.layout, needs=Needs.all(ps))
        assert back.x is not None
        return [rows, *last, back.x, *back.states, *(g for some in back.weights for g in some if g is not None)]

    def step_by_step(self) -> list[Tensor]:
        rows, last, d_x, d_states, gradients = [], [], 0, [], []
        for d, w in enumerate(self.weights):
            double = Weights(*(None if t is None else t.double() for t in w[:5]), tuple(p.double() for p in w.params))
            walk, of_d = Walk(self.cell, double, self.layout, d == 1), slice(d * self.P, (d + 1) * self.P)
            y, final = walk.forward(self.x.double(), [s[d].double() for s in self.state0])
            back, states, mine = walk.backward(self.d_rows[:, of_d].double(), [s[d].double() for s in self.d_last])
            rows.append(y)
            last.append(final)
            d_x, d_states, gradients = d_x + back, [*d_states, states], gradients + mine
        stacked = [[torch.stack(some) for some in zip(*each, strict=True)] for each in (last, d_states)]
        return [torch.cat(rows, 1), *stacked[0], d_x, *stacked[1], *gradients]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("threads", [1, 2])
def test_only_sums_may_differ(seed, threads):
    case, before = Case(seed), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = case.by_kernels()
    finally:
        torch.set_num_threads(before)
    off = [relative(a, b) for a, b in zip(found, case.step_by_step(), strict=True)]
    assert max(off) <= ONE_ROUNDING, off
