"""What the ops of a pipeline cost here; and from that, which stage gets which layers, and how many chunks."""

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
from ..training.network import Head, Later, Network
from .collectives import all_gather_json, broadcast_bytes
from .cut import Cut
from .layers import Stage
from .mesh import Mesh
from .schedule import Op, Timeline, simulate, split
from .shape import Shape

CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
TRIED = ((2, 1), (6, 1), (3, 2))  # chunks and micro-batches that are measured
REPEATS = 5  # at the most
LONGEST = 1.0  # seconds: no repeat begins later
MOST_SPLITS = 10_000  # with more of them, only the most even one is tried
SIMULATED = 3  # splits that are simulated


class OpCost(NamedTuple):
    """Seconds of an op: per call, step and row, and for packing weights."""

    call: float
    step: float
    row: float
    pack: float

    def of(self, layout: Layout, is_first: bool) -> float:
        return self.call + self.step * layout.T + self.row * layout.N + self.pack * is_first

    @classmethod
    def fit(cls, samples: Sequence[tuple[int, int, bool, float]]) -> "OpCost":
        """From (steps, rows, is first, seconds). Steps and rows may be collinear: then both get a share.

        Relative errors count, for noise is a share of the time. No number is below 0: what would be is left out, and
        the others are fitted again.
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


class PipelineCosts(NamedTuple):
    layers: Sequence[dict[str, OpCost]]  # F, I, W
    decoder: dict[str, OpCost]  # D, V
    latency: float  # seconds of a message
    byte: float  # seconds for each byte of one
    width: int  # bytes of a row that goes from stage to stage

    def simulate(self, cut: Cut, layout: Layout) -> Timeline:
        micros, ends = cut.micros(layout), np.cumsum([0, *cut.split]).tolist()

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

        return simulate(cut.schedule(micros), cost, link)

    def busiest(self, counts: Sequence[int], layout: Layout) -> float:
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


def measure(network: Network, batches: Sequence[Batch], mesh: Mesh) -> PipelineCosts:
    """All ranks at the same time: on one host they slow each other down."""
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
    numbers = all_gather_json([layers, decoder, latency, byte], mesh.everyone)  # the mean of all ranks
    means = [mean([n[0][l] for n in numbers]) for l in range(len(layers))]
    item = first.parameters()[0].element_size()
    return PipelineCosts(
        means,
        mean([n[1] for n in numbers]),
        sum(n[2] for n in numbers) / len(numbers),
        sum(n[3] for n in numbers) / len(numbers),
        network.layers[0].width * item,
    )


def mean(found: Sequence[dict[str, Sequence[float]]]) -> dict[str, OpCost]:
    return {kind: OpCost(*np.mean([some[kind] for some in found], 0).tolist()) for kind in found[0]}


class Embed(nn.Module):
    """Rows for a layer, in place of what the layer below would give."""

    def __init__(self, w_ih: Tensor) -> None:
        super().__init__()
        self.like = w_ih

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.full_like(self.like[:1], 0.1).detach().expand(len(inputs), -1).contiguous().requires_grad_()


def samples(network: Network, batches: Sequence[Batch], kinds: str) -> dict[str, OpCost]:
    found: dict[str, dict[tuple[int, int, bool], list[float]]] = {kind: {} for kind in kinds}
    began = time.perf_counter()
    for repeat in range(REPEATS):
        if repeat and time.perf_counter() - began > LONGEST:
            break
        for inputs, targets, layout in batches:
            for chunks, micro in TRIED:
                cut = Cut((1,), chunks, micro)
                stage = Stage(network, cut, None)
                stage.spans = []
                stage.run(inputs, targets, layout, None, layout.N)
                chunks_of = [micro_batch.chunks for micro_batch in cut.micros(layout)]
                for op, start, end in stage.spans:
                    if op.kind in kinds:
                        mine = chunks_of[op.micro]
                        is_first = op.micro == 0 and op.chunk == (len(mine) - 1 if op.kind == "I" else 0)
                        key = mine[op.chunk].T, mine[op.chunk].N, is_first and op.kind in "FI"
                        found[op.kind].setdefault(key, []).append(end - start)
    return {kind: OpCost.fit([(*key, usual(s)) for key, s in some.items()]) for kind, some in found.items()}


def usual(seconds: Sequence[float]) -> float:
    return float(np.median(seconds[1:] or seconds))


def link(mesh: Mesh) -> tuple[float, float]:
    """Seconds of a message between two stages, and of each byte of it."""
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
    ends = all_gather_json(seconds, group)
    small, large = ((ends[0][k] + ends[last][k]) / 2 for k in (0, 1))
    return small, max(0.0, (large - small) / 999_000)


def choose(network: Network, batches: Sequence[Batch], shape: Shape, mesh: Mesh) -> Cut:
    """The same cut on all ranks: the quickest in a simulation with measured costs."""
    L, S = len(network.layers), shape.layers
    if S > L:
        split([1.0] * L, S)  # says what is wrong
    return agree(measure(network, batches, mesh), [layout for _, _, layout in batches], shape, mesh)


def agree(costs: PipelineCosts, layouts: Sequence[Layout], shape: Shape, mesh: Mesh) -> Cut:
    """What the first rank finds best, on all ranks."""
    cut = best(costs, layouts, shape, len(costs.layers)) if mesh.is_first else None
    return Cut.of(json.loads(broadcast_bytes(json.dumps(cut.as_dict()).encode() if cut else b"", mesh.everyone)))


def best(costs: PipelineCosts, layouts: Sequence[Layout], shape: Shape, L: int) -> Cut:
    some = splits(costs, layouts[0], shape.layers, L)
    if shape.chunks:  # what decides the order of sums is then what was asked for, but for the split
        c = shape.chunks
        found = [Cut(counts, c, shape.micro, min(c - 1, max(1, c // 4))) for counts in some]
    else:
        most = max(layout.T for layout in layouts)
        found = [
            Cut(counts, c, shape.micro, early, step_cost(costs))
            for counts in some
            for c in CHUNKS
            if c <= most
            for early in sorted({0, min(c, 1), c // 4})
        ]
    return min(found, key=lambda cut: sum(costs.simulate(cut, layout).total for layout in layouts))


def step_cost(costs: PipelineCosts) -> float:
    """Of a step, in rows; a power of two, so that another measurement gives the same."""
    layer = costs.layers[-1]
    row, step = (sum(getattr(layer[kind], name) for kind in "FI") for name in ("row", "step"))
    return 2.0 ** round(np.log2(min(step / row, 1000.0))) if row > 0 and step / row > 1 / 16 else 0.0


def splits(costs: PipelineCosts, layout: Layout, stages: int, L: int) -> list[tuple[int, ...]]:
    if comb(L - 1, stages - 1) > MOST_SPLITS:
        work = [sum(cost.of(layout, False) for cost in layer.values()) for layer in costs.layers]
        return [split(work, stages, last=sum(cost.of(layout, False) for cost in costs.decoder.values()))]
    every = [tuple(b - a for a, b in pairwise((0, *ends, L))) for ends in combinations(range(1, L), stages - 1)]
    return sorted(every, key=lambda counts: costs.busiest(counts, layout))[:SIMULATED]
