"""What the parts of a pipeline cost here; and from that, which stage gets which layers, and how many chunks."""

import json
import time
from collections.abc import Sequence
from itertools import combinations, pairwise
from math import comb
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..layout import Layout
from .layers import Stage
from .mesh import Mesh
from .plan import Plan
from .schedule import Op, Timeline, simulate, split
from .shape import Shape
from .stack import Head, Later, Network
from .talk import tell_all, told

CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
TRIED = ((2, 1), (6, 1), (3, 2))  # chunks and micro-batches that are measured: few steps and many, all rows and half
REPEATS = 5  # at the most
LONGEST = 1.0  # seconds after which nothing is measured again
MOST_SPLITS = 10_000  # that are looked at; of more, only the most even one
SIMULATED = 3  # splits


class Cost(NamedTuple):
    """Seconds of an op: for the call, for each step, for each row, and for packing weights at the first call."""

    call: float
    step: float
    row: float
    pack: float

    def of(self, layout: Layout, is_first: bool) -> float:
        return self.call + self.step * layout.T + self.row * layout.N + self.pack * is_first

    @classmethod
    def fit(cls, samples: Sequence[tuple[int, int, bool, float]]) -> "Cost":
        """From (steps, rows, is first, seconds). Steps and rows may say the same: then both have a part in it.

        Relative errors count, for noise is a share of the time: a small chunk says as much as a large one. No number is
        below 0: what would be is left out, and the others are fitted again.
        """
        table, seconds = np.array([[1.0, *row[:3]] for row in samples]), np.array([row[3] for row in samples])
        each = 1 / np.maximum(seconds, 1e-9)
        table, seconds = table * each[:, None], seconds * each
        scale, used, found = np.maximum(table.max(0), 1e-12), [0, 1, 2, 3], np.zeros(4)
        while used:
            fitted = np.linalg.lstsq(table[:, used] / scale[used], seconds, rcond=1e-6)[0]
            if fitted.min() >= 0:
                found[used] = fitted / scale[used]
                break
            used.pop(int(fitted.argmin()))
        return cls(*found.tolist())


class Costs(NamedTuple):
    """Of a network: per kind of op and layer, then of the decoder."""

    layers: Sequence[dict[str, Cost]]  # F, I, W
    decoder: dict[str, Cost]  # D, V
    latency: float  # seconds of a message
    byte: float  # seconds for each byte of one
    width: int  # bytes of a row that goes from stage to stage

    def simulate(self, plan: Plan, layout: Layout) -> Timeline:
        """A step of this plan, without what comes before and after both passes."""
        micros, ends = plan.micros(layout), np.cumsum([0, *plan.split]).tolist()

        def cost(op: Op) -> float:
            chunks = micros[op.micro].chunks
            chunk = chunks[op.chunk]
            if op.kind in "DV":
                return self.decoder[op.kind].of(chunk, False)
            first = len(chunks) - 1 if op.kind == "I" else 0
            is_first = op.micro == 0 and op.chunk == first and op.kind != "W"
            return sum(layer[op.kind].of(chunk, is_first) for layer in self.layers[ends[op.place] : ends[op.place + 1]])

        def link(a: Op, b: Op) -> float:
            return self.latency + self.byte * self.width * micros[a.micro].chunks[a.chunk].N

        return simulate(plan.schedule(micros), cost, link)

    def busiest(self, counts: Sequence[int], layout: Layout) -> float:
        """Seconds of the stage with the most to do, if the layers are shared out so: no schedule is quicker."""
        layers = [sum(cost.of(layout, False) for cost in layer.values()) for layer in self.layers]
        stages = [sum(layers[a:b]) for a, b in pairwise(np.cumsum([0, *counts]).tolist())]
        stages[-1] += sum(cost.of(layout, False) for cost in self.decoder.values())
        return max(stages)


class Nothing(Head):
    """In place of a decoder, where the layers alone are measured."""

    def parameters(self) -> list[nn.Parameter]:
        return []

    def rows(self, h: Tensor, target: Tensor, divisor: float) -> tuple[Tensor, Tensor, Later]:
        return h.new_zeros(()), torch.ones_like(h), None


Batch = tuple[Tensor, Tensor, Layout]  # inputs, targets, layout


def measure(network: Network, batches: Sequence[Batch], mesh: Mesh) -> Costs:
    """All ranks measure at the same time: two on one host slow each other down, as they will in training."""
    random = torch.get_rng_state()
    first, *others = network.layers
    dist.barrier(mesh.everyone)
    layers = [samples(Network(network.first, [first], Nothing()), batches, "FIW")]
    if others:  # they are alike but for the first, as a rule; else each is measured
        alike = len({(o.module.hidden_size, o.width, o.cell) for o in network.layers}) == 1
        some = others[:1] if alike else others
        found = [samples(Network(Embed(layer.parameters()[0]), [layer], Nothing()), batches, "FIW") for layer in some]
        layers += found * len(others) if alike else found
    decoder = samples(Network(network.first, [first], network.head), batches, "DV")
    latency, byte = link(mesh)
    torch.set_rng_state(random)
    for p in nn.ModuleList([network.first, *(layer.module for layer in network.layers)]).parameters():
        p.grad = None
    for p in network.head.parameters():
        p.grad = None
    numbers = tell_all([layers, decoder, latency, byte], mesh.everyone)  # the mean of all ranks
    means = [mean([n[0][l] for n in numbers]) for l in range(len(layers))]
    item = first.parameters()[0].element_size()
    return Costs(
        means,
        mean([n[1] for n in numbers]),
        sum(n[2] for n in numbers) / len(numbers),
        sum(n[3] for n in numbers) / len(numbers),
        network.layers[0].width * item,
    )


def mean(found: Sequence[dict[str, Sequence[float]]]) -> dict[str, Cost]:
    return {kind: Cost(*np.mean([some[kind] for some in found], 0).tolist()) for kind in found[0]}


class Embed(nn.Module):
    """Some rows as wide as a layer's input, in place of what the layer below would give."""

    def __init__(self, w_ih: Tensor) -> None:
        super().__init__()
        self.like = w_ih

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.full_like(self.like[:1], 0.1).detach().expand(len(inputs), -1).contiguous().requires_grad_()


def samples(network: Network, batches: Sequence[Batch], kinds: str) -> dict[str, Cost]:
    """Runs a network of one layer as a pipeline of one stage, in more and less chunks."""
    found: dict[str, dict[tuple[int, int, bool], list[float]]] = {kind: {} for kind in kinds}
    began = time.perf_counter()
    for repeat in range(REPEATS):
        if repeat and time.perf_counter() - began > LONGEST:
            break
        for inputs, targets, layout in batches:
            for chunks, micro in TRIED:
                plan = Plan((1,), chunks, micro)
                stage = Stage(network, plan, None)
                stage.spans = []
                stage.run(inputs, targets, layout, None, layout.N)
                parts = [part.chunks for part in plan.micros(layout)]
                for op, start, end in stage.spans:
                    if op.kind in kinds:
                        mine = parts[op.micro]
                        is_first = op.micro == 0 and op.chunk == (len(mine) - 1 if op.kind == "I" else 0)
                        key = mine[op.chunk].T, mine[op.chunk].N, is_first and op.kind in "FI"
                        found[op.kind].setdefault(key, []).append(end - start)
    return {kind: Cost.fit([(*key, usual(s)) for key, s in some.items()]) for kind, some in found.items()}


def usual(seconds: Sequence[float]) -> float:
    """Of several that were measured one after the other; the first fills the caches."""
    return float(np.median(seconds[1:] or seconds))


def link(mesh: Mesh) -> tuple[float, float]:
    """Seconds of a message between two stages, and for each byte of it: from the first to the last stage and back.

    The stages between them have nothing to do, and say what these two found.
    """
    group = mesh.group("layers")
    me, last = dist.get_rank(group), dist.get_world_size(group) - 1
    if last == 0:
        return 0.0, 0.0
    other = dist.get_global_rank(group, last if me == 0 else 0)
    seconds = []
    for size in (1_000, 1_000_000):
        data, times = torch.zeros(size, dtype=torch.uint8), []
        for _ in range(6 if me in (0, last) else 0):
            began = time.perf_counter()
            for to in (last, 0):
                if me == to:
                    dist.recv(data, other, group=group)
                else:
                    dist.send(data, other, group=group)
            times.append((time.perf_counter() - began) / 2)
        seconds.append(usual(times) if times else 0.0)
    ends = tell_all(seconds, group)
    small, large = ((ends[0][k] + ends[last][k]) / 2 for k in (0, 1))
    return small, max(0.0, (large - small) / 999_000)


def choose(network: Network, batches: Sequence[Batch], shape: Shape, mesh: Mesh) -> Plan:
    """The same plan on all ranks: the quickest of those that were simulated, with what was measured."""
    L, S = len(network.layers), shape.layers
    if S > L:
        split([1.0] * L, S)  # says what is wrong
    costs = measure(network, batches, mesh)
    plan = best(costs, [layout for _, _, layout in batches], shape, L) if mesh.is_first else None
    return Plan.of(json.loads(told(json.dumps(plan.as_dict()).encode() if plan else b"", mesh.everyone)))


def best(costs: Costs, layouts: Sequence[Layout], shape: Shape, L: int) -> Plan:
    """The quickest plan in the simulation: of the most even splits, with more and less chunks."""
    some = splits(costs, layouts[0], shape.layers, L)
    if shape.chunks:  # what decides the order of sums is then what was asked for, but for the split
        c = shape.chunks
        found = [Plan(counts, c, shape.micro, min(c - 1, max(1, c // 4))) for counts in some]
    else:
        most = max(layout.T for layout in layouts)
        found = [
            Plan(counts, c, shape.micro, early, step_cost(costs))
            for counts in some
            for c in CHUNKS
            if c <= most
            for early in sorted({0, min(c, 1), c // 4})
        ]
    return min(found, key=lambda plan: sum(costs.simulate(plan, layout).total for layout in layouts))


def step_cost(costs: Costs) -> float:
    """Of a step, in rows; a power of two, so that what is measured another time gives the same."""
    layer = costs.layers[-1]
    row, step = (sum(getattr(layer[kind], name) for kind in "FI") for name in ("row", "step"))
    return 2.0 ** round(np.log2(min(step / row, 1000.0))) if row > 0 and step / row > 1 / 16 else 0.0


def splits(costs: Costs, layout: Layout, stages: int, L: int) -> list[tuple[int, ...]]:
    """Those whose busiest stage has the least to do."""
    if comb(L - 1, stages - 1) > MOST_SPLITS:
        work = [sum(cost.of(layout, False) for cost in layer.values()) for layer in costs.layers]
        return [split(work, stages, last=sum(cost.of(layout, False) for cost in costs.decoder.values()))]
    every = [tuple(b - a for a, b in pairwise((0, *ends, L))) for ends in combinations(range(1, L), stages - 1)]
    return sorted(every, key=lambda counts: costs.busiest(counts, layout))[:SIMULATED]
