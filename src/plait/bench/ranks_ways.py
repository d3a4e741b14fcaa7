"""One network, and the ways to take a step of training with it: alone, by data, by layers, with nothing exchanged."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..layers import state_of, states_of
from ..ranks import measure
from ..ranks.data import Reducer, Shared, make_reducer
from ..ranks.measure import Costs
from ..ranks.mesh import Mesh, Step
from ..ranks.plan import Plan
from ..ranks.schedule import Span
from ..ranks.talk import told
from ..tasks.language_model import LanguageModel
from ..tasks.settings import LanguageSettings
from ..training.crew import clip
from .ranks_text import Rows, Source


class Net:
    """The network, with the same weights on every rank. Until `learn` is called, the learning rate is 0: a step costs
    what it costs, and leaves the weights as they are, for the next way to take it.
    """

    def __init__(self, settings: LanguageSettings, V: int) -> None:
        torch.manual_seed(settings.seed)
        self.model = LanguageModel(settings, V)
        self.network = self.model.network()
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.0, fused=True)
        self.clip = 5.0  # no gradient is so long, so the norm is taken, but nothing is written
        self.reducer: Reducer | None = None  # of the step under way
        self.there: dict[Tensor, float] = {}  # when each gradient was there
        self.talked = 0.0  # seconds that the reducer took meanwhile
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.ready)

    @property
    def bytes(self) -> int:
        return sum(p.nbytes for p in self.parameters)

    def learn(self, lr: float, clip: float) -> None:
        self.optimizer.param_groups[0]["lr"], self.clip = lr, clip

    def begin(self, reducer: Reducer | None) -> None:
        self.reducer, self.talked = reducer, 0.0
        self.there.clear()
        if reducer is not None:
            reducer.begin()

    def ready(self, p: Tensor) -> None:
        now = self.there[p] = time.perf_counter()
        if self.reducer is not None:
            self.reducer.ready(p)
            self.talked += time.perf_counter() - now

    def set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        for p, gradient in zip(self.parameters, gradients, strict=True):
            p.grad = gradient

    def no_gradients(self) -> None:
        self.set_gradients([None] * len(self.parameters))


class Way(ABC):
    """A way to take a step of training, as one of its ranks sees it."""

    threads = 1

    def __init__(self, net: Net) -> None:
        self.net = net
        self.marks: dict[str, Any] = {}  # when the parts of the last step began and ended, in seconds of this machine
        self.carries = False  # the states are carried on from step to step
        self.state: Sequence[Tensor] | None = None
        self.weights: list[Tensor] | None = None  # its own, which are in the network while it is its turn

    def rows(self, source: Source, k: int) -> Rows:
        """What this rank is given of a batch."""
        return source.part(k, 0, 1)

    def enter(self) -> None:
        """Before its turn."""
        if self.weights is not None:
            torch._foreach_copy_([p.data for p in self.net.parameters], self.weights)

    def leave(self) -> None:
        """After its turn: the gradients belong to the next one."""
        if self.weights is not None:
            torch._foreach_copy_(self.weights, [p.data for p in self.net.parameters])
        self.net.no_gradients()

    @property
    def held(self) -> list[nn.Parameter]:
        """The parameters whose gradients this rank has after a step."""
        return self.net.parameters

    def mark(self, name: str) -> None:
        self.marks[name] = time.perf_counter()

    def step(self, rows: Rows) -> float:
        """As in training -> the mean loss of the batch, as far as this rank knows it."""
        self.marks = {}
        self.mark("start")
        loss = self.exchanged(self.passes(rows))
        self.mark("stepped")
        self.clip()
        self.mark("clipped")
        self.update()
        self.mark("end")
        return loss

    @abstractmethod
    def passes(self, rows: Rows) -> float:
        """Forward and back -> this rank's part of the loss."""

    def exchanged(self, loss: float) -> float:
        return loss

    def clip(self) -> None:
        clip(self.net.parameters, self.net.clip)

    def update(self) -> None:
        self.net.optimizer.step()

    def carry(self, state: Sequence[Tensor]) -> None:
        self.state = [s.detach() for s in state] if self.carries else None

    @property
    def sent(self) -> int:
        """Bytes that left this rank in the last step."""
        return 0


class Alone(Way):
    """One process, with one thread or more."""

    reducer: Reducer | None = None

    def __init__(self, net: Net, threads: int = 1) -> None:
        super().__init__(net)
        self.threads = threads

    def passes(self, rows: Rows) -> float:
        net, value = self.net, 0.0
        net.model.zero_grad()
        net.begin(self.reducer)
        if rows.real:
            state = None if self.state is None else state_of(tuple(self.state))
            h, after = net.model(rows.tokens, rows.layout, state)
            self.carry(states_of(after))
            part = net.model.softmax(h, rows.targets) * (rows.real / rows.total)
            self.mark("forward")
            part.backward()
            value = part.item()
        self.mark("back")
        self.finish()
        self.mark("finished")
        self.marks |= {"there": [net.there.get(p, self.marks["back"]) for p in net.parameters], "talked": net.talked}
        return value

    def finish(self) -> None:
        """Waits for the gradients of other ranks."""


class Limit(Alone):
    """Every rank takes its step with its part of the batch, and nothing is exchanged: data ranks cannot be faster."""

    def __init__(self, net: Net, rank: int, ranks: int) -> None:
        super().__init__(net)
        self.rank, self.ranks = rank, ranks

    def rows(self, source: Source, k: int) -> Rows:
        return source.part(k, self.rank, self.ranks)


class Data(Alone):
    """how: auto (shared memory), network or server"""

    reducer: Reducer

    def __init__(self, net: Net, mesh: Mesh, how: str) -> None:
        super().__init__(net)
        self.mesh, self.how, self.rank, self.ranks = mesh, how, mesh.data_rank, len(mesh.ranks)
        group, hosts = mesh.group("data"), mesh.hosts("data")
        self.reducer, self.by = make_reducer(net.parameters, group, how, hosts, mesh.timeout)

    def rows(self, source: Source, k: int) -> Rows:
        return source.part(k, self.rank, self.ranks)

    @property
    def held(self) -> list[nn.Parameter]:
        return [] if self.how == "server" and self.rank else self.net.parameters

    @property
    def is_shared(self) -> bool:
        return isinstance(self.reducer, Shared)

    def passes(self, rows: Rows) -> float:
        self.reducer.sent, self.reducer.waited = 0, 0.0
        return super().passes(rows)

    def finish(self) -> None:
        self.reducer.finish()

    def exchanged(self, loss: float) -> float:
        return self.mesh.sum(loss)[0]

    def update(self) -> None:
        self.reducer.update(self.net.optimizer)

    @property
    def sent(self) -> int:
        return self.reducer.sent


class Layers(Way):
    """A wavefront over ranks."""

    def __init__(self, net: Net, mesh: Mesh, plan: Plan) -> None:
        super().__init__(net)
        self.mesh, self.plan = mesh, plan
        self.parallel = Step(mesh, net.network, plan)
        self.gradients: list[Tensor | None] = [None] * len(net.parameters)
        self.messages = 0  # rows that left this rank in the last step

    def enter(self) -> None:
        super().enter()
        self.net.set_gradients(self.gradients)  # they are not made anew for each step

    def leave(self) -> None:
        self.gradients = [p.grad for p in self.net.parameters]
        super().leave()

    @property
    def held(self) -> list[nn.Parameter]:
        return self.parallel.parameters

    @property
    def spans(self) -> list[Span]:
        return self.parallel.stage.spans or []

    def passes(self, rows: Rows) -> float:
        stage = self.parallel.stage
        stage.spans = []
        result = self.parallel.run(rows.tokens, rows.targets, rows.layout, self.state, divisor=rows.total)
        self.mark("back")
        self.carry(result.states)
        self.messages = rows.layout.N * (2 - stage.is_first - stage.is_last)  # forth, but for the last; and back
        return result.loss

    def exchanged(self, loss: float) -> float:
        return self.mesh.sum(loss)[0]

    def clip(self) -> None:
        clip(self.parallel.parameters, self.net.clip, self.parallel.norm())

    @property
    def sent(self) -> int:
        like = self.net.network.layers[0]
        return self.messages * like.width * like.parameters()[0].element_size()


def costs_of(net: Net, mesh: Mesh, some: Sequence[Rows]) -> Costs:
    """What the parts of a pipeline cost on these ranks."""
    return measure.measure(net.network, [(rows.tokens, rows.targets, rows.layout) for rows in some], mesh)


def plan_of(costs: Costs, mesh: Mesh, some: Sequence[Rows], micro: int = 1) -> Plan:
    """The best way to cut the network; the same on all ranks of the mesh."""
    plan, shape = None, replace(mesh.shape, micro=micro)
    if mesh.is_first:
        plan = measure.best(costs, [rows.layout for rows in some], shape, len(costs.layers))
    return Plan.of(json.loads(told(json.dumps(plan.as_dict()).encode() if plan else b"", mesh.everyone)))


# --- parts of a step by themselves -----------------------------------------------------------------------------------
class DataTalk(Data):
    """The gradients of all ranks are there at once, and are added."""

    def __init__(self, net: Net, mesh: Mesh, how: str) -> None:
        super().__init__(net, mesh, how)
        self.still = torch.optim.SGD([torch.zeros(1)], lr=0.0)  # it has nothing to update

    def enter(self) -> None:
        self.net.set_gradients([torch.full_like(p, 1e-3) for p in self.net.parameters])

    def step(self, rows: Rows) -> float:
        self.marks = {}
        self.mark("start")
        self.reducer.sent = 0
        self.reducer.begin()
        for p in self.reducer.order:
            self.reducer.ready(p)
        self.reducer.finish()
        self.mark("finished")
        self.reducer.update(self.still)
        self.mark("end")
        return 0.0


class LayersTalk(Layers):
    """All messages of a step, in the order in which they go, each as soon as the one before is there."""

    def step(self, rows: Rows) -> float:
        stage = self.parallel.stage
        width = stage.network.layers[0].width
        sizes = [chunk.N for micro in self.plan.micros(rows.layout) for chunk in micro.chunks]
        room = [torch.zeros(n, width) for n in sizes]
        self.marks = {}
        self.mark("start")
        for backward in (False, True):
            before, after = stage.number - 1, stage.number + 1
            if backward:
                before, after = after, before
            sent = []
            for k in range(len(sizes)):
                if 0 <= before < stage.count:
                    dist.recv(room[k], stage.peer(before), group=stage.group, tag=2 * k + backward)
                if 0 <= after < stage.count:
                    sent.append(dist.isend(room[k], stage.peer(after), group=stage.group, tag=2 * k + backward))
            for work in sent:
                if work is not None:
                    work.wait()
        self.mark("end")
        self.messages = rows.layout.N * (2 - stage.is_first - stage.is_last)
        return 0.0


class LayersRest(Layers):
    """What a step of a pipeline does that is not in its schedule."""

    def step(self, rows: Rows) -> float:
        first = self.net.network.first
        self.marks = {}
        self.mark("start")
        self.parallel.reducer.lend()
        if self.parallel.stage.is_first:
            x = first(rows.tokens)
            x.backward(torch.ones_like(x))
        self.exchanged(0.0)
        self.clip()
        self.update()
        self.mark("end")
        return 0.0
