"""Layers over ranks: every rank holds some consecutive layers, and chunks of time flow through them, both ways.

It is exact: all chunks of a step see the same weights. What runs when is in a schedule (schedule.py). While a message
has not come yet, a stage computes gradients of weights. Those are always added in the same order, so a result does not
depend on timing.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..engines import Derivative, Engine, Needs, Prepared
from ..errors import PlaitError
from ..layout import Layout
from ..training.network import Later, Network, OneLayer
from .cut import Cut
from .messages import Message, Messenger
from .schedule import Op, Span


class SavedChunk(NamedTuple):
    x: Tensor
    memory: Sequence[Tensor]
    mask: Tensor | None  # of the dropout behind it


class Result(NamedTuple):
    loss: float  # of the last stage; 0 of the others
    states: list[Tensor]  # of its layers, after the last step; see Pass.states


class Stage:
    """The layers of one rank; the first also embeds, the last has the head."""

    def __init__(self, network: Network, cut: Cut, group: dist.ProcessGroup | None) -> None:
        self.network, self.cut, self.group = network, cut, group
        self.number, self.count = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        if self.count != len(cut.split):
            raise PlaitError(f"a cut for {len(cut.split)} stages, and {self.count} ranks: expected one rank a stage.")
        if sum(cut.split) != len(network.layers) or min(cut.split) < 1:
            layers = " + ".join(map(str, cut.split))
            raise PlaitError(
                f"a cut for {layers} layers: expected {len(network.layers)} in all, and at least one in each stage."
            )
        begin = sum(cut.split[: self.number])
        self.layers: Sequence[OneLayer] = network.layers[begin : begin + cut.split[self.number]]
        self.begin = begin
        self.is_first, self.is_last = self.number == 0, self.number == self.count - 1
        self.parameters = [p for p in network.stages(cut.split)[self.number] if p.requires_grad]
        self.spans: list[Span] | None = None  # what ran when, if it is to be measured

    def run(
        self, inputs: Tensor, targets: Tensor, layout: Layout, state: Sequence[Tensor] | None, divisor: float
    ) -> Result:
        """Both passes. Adds to the .grad of the parameters of this stage.

        inputs, targets (N, ...): rows; only the first and the last stage read them. state: of the layers of this stage,
        longest sequence first; see Pass.states. divisor: what the sum of the losses of all rows is divided by.
        """
        if layout.N == 0:
            return Result(0.0, [] if state is None else list(state))
        return Pass(self, inputs, targets, layout, state, divisor).run()

    def peer(self, stage: int) -> int:
        assert self.group is not None
        return dist.get_global_rank(self.group, stage)


class Pass:
    def __init__(
        self,
        stage: Stage,
        inputs: Tensor,
        targets: Tensor,
        layout: Layout,
        state: Sequence[Tensor] | None,
        divisor: float,
    ) -> None:
        self.stage, self.inputs, self.targets, self.layout, self.divisor = stage, inputs, targets, layout, divisor
        self.micros = stage.cut.micros(layout)
        self.schedule = stage.cut.schedule(self.micros)
        self.engines: list[Engine] = [layer.engine() for layer in stage.layers]
        self.prepared: list[Prepared] = [
            engine.prepare(layer.cell, layer.weights())
            for engine, layer in zip(self.engines, stage.layers, strict=True)
        ]
        like = stage.layers[0].parameters()[0].detach()
        self.like = like
        # Consecutive layers of the same widths have their states in one tensor (layers, B, .)
        runs = [list(ls) for _, ls in groupby(range(len(self.prepared)), lambda l: self.prepared[l].widths)]
        self.states = [(run, k) for run in runs for k in range(len(self.prepared[run[0]].widths))]
        entering: dict[tuple[int, int], Tensor] = {}
        for (run, k), whole in zip(self.states, state or (), strict=bool(state)):
            entering |= {(l, k): whole[i : i + 1] for i, l in enumerate(run)}
        # per layer and micro-batch: the running states, (1, B, .) each
        self.running = {
            (l, m): [
                like.new_zeros(1, micro.layout.B, width) if not state else entering[l, k][:, micro.columns].contiguous()
                for k, width in enumerate(p.widths)
            ]
            for l, p in enumerate(self.prepared)
            for m, micro in enumerate(self.micros)
        }
        self.d_running: dict[tuple[int, int], list[Tensor]] = {}
        self.kept: dict[tuple[int, int, int], SavedChunk] = {}  # per layer, micro-batch, chunk
        self.derivatives: dict[tuple[int, int, int], Derivative] = {}
        self.later: dict[tuple[int, int], Later] = {}  # per micro-batch and chunk: of the head's parameters
        self.d_outputs: dict[tuple[int, int], Tensor] = {}  # of the head's input
        self.outputs: dict[tuple[int, int], Tensor] = {}  # of the last layer, until the head has read them
        self.d_first: list[Tensor] = []  # per micro-batch: of the rows of `first`
        self.loss = like.new_zeros((), dtype=torch.float64)

    def run(self) -> Result:
        stage = self.stage
        self.begin()
        self.mail = Messenger(stage.group, self.messages())
        line, done = self.schedule.lines[stage.number], set[Op]()
        fill = deque(line.fill)
        for op in line.main:
            while not self.mail.has(op):
                if fill and done.issuperset(self.schedule.needs[fill[0]]):
                    self.execute(fill[0], done)
                    fill.popleft()
                else:
                    self.mail.wait(op)
            self.execute(op, done)
        for op in fill:
            self.execute(op, done)
        self.mail.close()
        self.finish()
        states = [torch.cat([self.whole(l, k) for l in run]) for run, k in self.states]
        return Result(float(self.loss), states)

    def execute(self, op: Op, done: set[Op]) -> None:
        spans, began = self.stage.spans, time.perf_counter()
        DO[op.kind](self, op.micro, op.chunk)
        done.add(op)
        if spans is not None:
            spans.append(Span(op, began, time.perf_counter()))

    def whole(self, l: int, k: int) -> Tensor:  # (1, B, .)
        if len(self.micros) == 1:
            return self.running[l, 0][k]
        found = self.like.new_empty(1, self.layout.B, self.prepared[l].widths[k])
        for m, micro in enumerate(self.micros):
            found[:, micro.columns] = self.running[l, m][k]
        return found

    # --- messages
    def messages(self) -> Iterator[Message]:
        stage = self.stage
        for op in self.schedule.lines[stage.number].main:
            source = stage.number - 1 if op.kind == "F" else stage.number + 1
            if op.kind in "FI" and 0 <= source < stage.count:
                # forward: the input of the first layer; backward: the gradient of the last one's output
                width = stage.network.layers[stage.begin - 1].width if op.kind == "F" else stage.layers[-1].width
                N = self.micros[op.micro].chunks[op.chunk].N
                yield Message(op, source, self.tag(op), self.like.new_empty(N, width))

    def tag(self, op: Op) -> int:
        chunks = [len(m.chunks) for m in self.micros]
        return 2 * (sum(chunks[: op.micro]) + op.chunk) + (op.kind == "I")

    def send(self, kind: str, m: int, k: int, rows: Tensor, to: int) -> None:
        self.mail.send(rows.contiguous().view(-1, rows.shape[-1]), to, self.tag(Op(kind, to, m, k)))

    # --- forward
    def begin(self) -> None:
        stage = self.stage
        for p in stage.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if stage.is_first:
            with torch.enable_grad():
                single = len(self.micros) == 1
                inputs = [self.inputs if single else self.inputs[m.rows] for m in self.micros]
                self.x0: list[Tensor] = [stage.network.first(rows) for rows in inputs]
            for x in self.x0:
                if x.dim() != 2:
                    raise PlaitError(
                        f"the rows that go into the layers have {x.dim()} axes: expected 2, row and column."
                    )
            if any(x.requires_grad for x in self.x0):
                self.d_first = [torch.empty_like(x) for x in self.x0]

    def forward(self, m: int, k: int) -> None:
        stage, micro = self.stage, self.micros[m]
        layout, rows = micro.chunks[k], micro.slices[k]
        x = self.x0[m].detach()[rows] if stage.is_first else self.mail.take(Op("F", stage.number, m, k))
        if layout.batch_sizes is None:
            x = x.view(layout.T, layout.B, -1)
        for l, (engine, p, layer) in enumerate(zip(self.engines, self.prepared, stage.layers, strict=True)):
            running, B = self.running[l, m], layout.B
            entering = running if running[0].shape[1] == B else [s[:, :B] for s in running]
            y, finals, memory = engine.forward([p], x, entering, layout)
            if entering is running:
                running[:] = finals
            else:
                for state, final in zip(running, finals, strict=True):
                    state[:, :B] = final
            mask = None
            if layer.dropout and layer.module.training:
                dropped, mask = torch.native_dropout(y, layer.dropout, True)
            self.kept[l, m, k] = SavedChunk(x, memory, mask)
            x = y if mask is None else dropped
        if stage.is_last:
            self.outputs[m, k] = x
        else:
            self.send("F", m, k, x, stage.number + 1)

    def decode(self, m: int, k: int) -> None:
        h, micro = self.outputs.pop((m, k)), self.micros[m]
        targets = self.targets if len(self.micros) == 1 else self.targets[micro.rows]
        loss, d_h, self.later[m, k] = self.stage.network.head.rows(
            h.reshape(-1, h.shape[-1]), targets[micro.slices[k]], self.divisor
        )
        self.loss += loss
        self.d_outputs[m, k] = d_h

    # --- backward
    def back(self, m: int, k: int) -> None:
        stage, micro = self.stage, self.micros[m]
        layout = micro.chunks[k]
        d = self.d_outputs.pop((m, k)) if stage.is_last else self.mail.take(Op("I", stage.number, m, k))
        if layout.batch_sizes is None:
            d = d.view(layout.T, layout.B, -1)
        B, is_final = layout.B, k == len(micro.chunks) - 1
        for l in reversed(range(len(stage.layers))):
            engine, p, layer, kept = self.engines[l], self.prepared[l], stage.layers[l], self.kept[l, m, k]
            if kept.mask is not None:
                d = d * kept.mask.view(d.shape) / (1 - layer.dropout)
            needs = Needs.but_weights([p], x=not (stage.is_first and l == 0) or bool(self.d_first))
            if is_final and micro.layout.is_dense:
                d_last: list[Tensor | None] = [None] * len(p.widths)
            else:
                if is_final:
                    self.d_running[l, m] = [self.like.new_zeros(1, micro.layout.B, width) for width in p.widths]
                d_last = [s[:, :B] for s in self.d_running[l, m]]
            g = engine.backward([p], kept.x, kept.memory, d, d_last, layout, needs=needs, spend=True)
            if micro.layout.is_dense:
                self.d_running[l, m] = g.states
            else:
                for state, found in zip(self.d_running[l, m], g.states, strict=True):
                    state[:, :B] = found
            self.derivatives[l, m, k] = g.derivatives[0]
            if g.x is not None:
                d = g.x
        if not stage.is_first:
            self.send("I", m, k, d, stage.number - 1)
        elif self.d_first:
            self.d_first[m][micro.slices[k]] = d.view(-1, d.shape[-1])

    def weights(self, m: int, k: int) -> None:
        layout = self.micros[m].chunks[k]
        for l, (engine, p, layer) in enumerate(zip(self.engines, self.prepared, self.stage.layers, strict=True)):
            kept, derivative = self.kept.pop((l, m, k)), self.derivatives.pop((l, m, k))
            tape = p.room(layout, 1).tape(kept.memory[0], layout)
            into = [q.grad for q in layer.parameters()]
            wanted = [q.requires_grad for q in layer.parameters()]
            engine.weight_gradients(p, kept.x.reshape(-1, kept.x.shape[-1]), tape, derivative, wanted, into)

    def decoder_weights(self, m: int, k: int) -> None:
        later = self.later.pop((m, k))
        if later is not None:
            later()

    def finish(self) -> None:
        for x, d in zip(self.x0 if self.stage.is_first else [], self.d_first, strict=False):
            x.backward(d)


# Not in the pass itself: a reference cycle would keep its memory until the next garbage collection.
DO: dict[str, Callable[[Pass, int, int], None]] = {
    "F": Pass.forward,
    "D": Pass.decode,
    "I": Pass.back,
    "W": Pass.weights,
    "V": Pass.decoder_weights,
}
