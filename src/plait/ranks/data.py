"""Data over ranks: every rank has a share of each batch, and the gradients of all ranks are added.

The loss of a rank is divided by the number of samples (or tokens) in the whole batch, so the sum of the gradients is
their mean over real tokens. A rank without a share of a batch adds zeros. Gradients are added from the top layer down,
each as soon as it is there, in the same order on every rank.
"""

import os
import platform
import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import PlaitError
from .collectives import all_gather_json, new_group
from .shared_memory import SharedMemory, make_shared_memory

GROUP = 1 << 20  # bytes of gradients that are added together, at least
SPIN = 2e-3  # seconds of waiting without sleep
NAP = 5e-5  # seconds
LOOK = 0.1  # seconds of waiting between two looks at whether the others are still there
STRONG = ("x86_64", "AMD64")  # their stores are seen in order: a flag after the data that it announces


class Reducer:
    """Adds up gradients over ranks; this one, of a single rank, adds nothing."""

    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
        self.order = list(reversed(parameters))  # from the top down
        self.group, self.rank, self.ranks = group, dist.get_rank(group), dist.get_world_size(group)
        self.there: set[nn.Parameter] = set()
        self.sent = 0  # bytes that left this rank, since somebody set it to 0
        self.waited = 0.0  # seconds in `finish`

    def begin(self) -> None:
        """Before the first gradient of a step."""
        self.there.clear()

    def lend(self) -> None:
        for p in self.order:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            else:
                p.grad.zero_()

    def on_gradient(self, p: Tensor) -> None:
        assert isinstance(p, nn.Parameter)
        self.there.add(p)
        self.advance()

    def advance(self) -> None:
        """Does what can be done by now, without waiting."""

    def finish(self) -> None:
        """Every .grad becomes the sum over all ranks."""
        began = time.perf_counter()
        for p in self.order:
            if p not in self.there:  # the batch was too small for this rank, or p is not in the loss
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                self.there.add(p)
        self.advance()
        self.complete()
        self.waited += time.perf_counter() - began

    def complete(self) -> None:
        """Waits for the rest."""

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()


class AllReduce(Reducer):
    """By torch.distributed: between hosts, or where there is no shared memory."""

    def begin(self) -> None:
        super().begin()
        self.works: list[dist.Work] = []

    def advance(self) -> None:
        while len(self.works) < len(self.order) and (p := self.order[len(self.works)]) in self.there:
            assert p.grad is not None
            self.works.append(dist.all_reduce(p.grad, group=self.group, async_op=True))
            self.sent += 2 * p.grad.nbytes * (self.ranks - 1) // self.ranks

    def complete(self) -> None:
        for work in self.works:
            work.wait()


class Server(Reducer):
    """A parameter server: gradients go to the first rank, weights come from it."""

    def advance(self) -> None:
        """Everything at the end."""

    def complete(self) -> None:
        first = dist.get_global_rank(self.group, 0)
        for p in self.order:
            assert p.grad is not None
            dist.reduce(p.grad, first, group=self.group)
            self.sent += 0 if self.rank == 0 else p.grad.nbytes

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        began = time.perf_counter()
        if self.rank == 0:
            optimizer.step()
        optimizer._opt_called = True  # type: ignore[attr-defined]  # the first rank's: else schedules would warn
        for p in self.order:
            dist.broadcast(p.data, dist.get_global_rank(self.group, 0), group=self.group)
            self.sent += p.nbytes if self.rank == 0 else 0
        self.waited += time.perf_counter() - began


class Shared(Reducer):
    """In memory that the ranks of a host share; between hosts, each rank adds its share over the network.

    Every rank has a slot with its gradients, which .grad then points to. Of each group of gradients a rank adds its own
    share over all slots, in the order of ranks, and copies the other shares from where they were added. Numbers in the
    same memory tell which step a rank has reached with which group.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: dist.ProcessGroup,
        memory: SharedMemory,
        between: dist.ProcessGroup | None = None,
        timeout: float = 60.0,
    ) -> None:
        """group: the ranks of this host. between: their like on other hosts"""
        super().__init__(parameters, group)
        self.memory, self.between, self.timeout, self.step = memory, between, timeout, 0
        sizes = [p.numel() for p in self.order]
        ends = np.cumsum(sizes).tolist()
        self.slots = memory.slots  # per rank (numbers,)
        mine = self.slots[self.rank]
        places = zip(self.order, ends, sizes, strict=True)
        self.views = {p: mine[end - size : end].view(p.shape) for p, end, size in places}
        self.groups = groups_of(sizes, GROUP // mine.element_size())  # (first, end) in the order of parameters
        self.ranges = [(ends[a] - sizes[a], ends[b - 1]) for a, b in self.groups]
        self.shares = [[a + (b - a) * r // self.ranks for r in range(self.ranks + 1)] for a, b in self.ranges]
        flags = memory.flags  # (ranks, .)
        G = len(self.groups)
        self.has, self.summed, self.done = flags[:, :G], flags[:, G : 2 * G], flags[:, 2 * G]
        self.scratch = torch.empty(max(max(np.diff(s).tolist()) for s in self.shares), dtype=mine.dtype)

    def begin(self) -> None:
        super().begin()
        self.step += 1
        self.published, self.added = 0, 0  # groups
        self.works: list[dist.Work | None] = []

    def lend(self) -> None:
        for p, view in self.views.items():
            p.grad = view.zero_()

    def on_gradient(self, p: Tensor) -> None:
        assert isinstance(p, nn.Parameter)
        self.move(p)
        super().on_gradient(p)

    def move(self, p: nn.Parameter) -> None:
        view = self.views[p]
        assert p.grad is not None
        if p.grad.data_ptr() != view.data_ptr():
            view.copy_(p.grad)
            p.grad = view

    def advance(self) -> None:
        while self.published < len(self.groups):
            first, end = self.groups[self.published]
            if not self.there.issuperset(self.order[first:end]):
                break
            for p in self.order[first:end]:
                self.move(p)
            self.has[self.rank, self.published] = self.step
            self.published += 1
        while self.added < self.published and (self.has[:, self.added] >= self.step).all():
            self.add(self.added)

    def add(self, g: int) -> None:
        mine = slice(*self.shares[g][self.rank : self.rank + 2])
        total = self.slots[self.rank][mine]
        if self.ranks == 2:
            torch.add(self.slots[0][mine], self.slots[1][mine], out=total)
        elif self.ranks > 2:
            scratch = self.scratch[: len(total)].copy_(self.slots[0][mine])
            for slot in self.slots[1:]:
                scratch.add_(slot[mine])
            total.copy_(scratch)
        self.sent += total.nbytes * (self.ranks - 1)
        self.added += 1
        if self.between is None:
            self.summed[self.rank, g] = self.step
        else:
            self.works.append(dist.all_reduce(total, group=self.between, async_op=True))

    def complete(self) -> None:
        for g in range(len(self.groups)):
            if g >= self.added:
                self.wait(self.has[:, g])
                self.add(g)
        for g, work in enumerate(self.works):
            assert work is not None
            work.wait()
            self.summed[self.rank, g] = self.step
        for g, share in enumerate(self.shares):
            self.wait(self.summed[:, g])
            for r, (a, b) in enumerate(pairwise(share)):
                if r != self.rank:
                    self.slots[self.rank][a:b] = self.slots[r][a:b]
        self.done[self.rank] = self.step
        self.wait(self.done)  # before the optimizer writes to a slot that others read

    def wait(self, flags: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        began = looked = time.perf_counter()
        while (flags < self.step).any():
            now = time.perf_counter()
            waited = now - began
            if waited > self.timeout:
                raise RuntimeError(f"Timed out waiting {self.timeout:.0f} s for gradients in shared memory")
            if now - looked > LOOK:
                looked = now
                for r in range(self.ranks):
                    if r != self.rank and self.memory.is_gone(r) and flags[r] < self.step:
                        raise RuntimeError(f"Connection closed by peer {r} of those that share memory")
            os.sched_yield() if waited < SPIN else time.sleep(NAP)


def shared(
    parameters: Sequence[nn.Parameter],
    group: dist.ProcessGroup,
    between: dist.ProcessGroup | None = None,
    timeout: float = 60.0,
) -> Shared | str:
    """Called by all ranks of one host together -> a reducer, or why there is none"""
    sizes, like = [p.numel() for p in parameters], parameters[0]
    flags = 2 * len(groups_of(sizes[::-1], GROUP // like.element_size())) + 1
    memory = make_shared_memory(sum(sizes), like.dtype, flags, group)
    return memory if isinstance(memory, str) else Shared(parameters, group, memory, between, timeout)


def why_not_shared(parameters: Sequence[nn.Parameter]) -> str | None:
    """What keeps these gradients out of shared memory, on any host."""
    if platform.machine() not in STRONG:
        return f"shared memory between ranks is for x86-64, this is {platform.machine()}"
    kinds = {(p.dtype, p.device.type) for p in parameters}
    if len(kinds) > 1 or next(iter(kinds))[1] != "cpu":
        return "the parameters are not all of one type on the CPU"
    return None


def groups_of(sizes: Sequence[int], least: int) -> list[tuple[int, int]]:
    groups, first, count = [], 0, 0
    for k, size in enumerate(sizes, 1):
        count += size
        if count >= least or k == len(sizes):
            groups.append((first, k))
            first, count = k, 0
    return groups


def make_reducer(
    parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, way: str, hosts: Sequence[str], timeout: float
) -> tuple[Reducer, str]:
    """All ranks of the group call it -> the reducer, and how it works"""
    if dist.get_world_size(group) == 1 or not parameters:  # one rank, or nothing of it is trained
        return Reducer(parameters, group), "one rank"
    if way == "server":
        return Server(parameters, group), "a server"
    if way == "network":
        return AllReduce(parameters, group), "the network"
    names = list(dict.fromkeys(hosts))
    there = [[r for r, host in enumerate(hosts) if host == name] for name in names]  # per host
    why = next(filter(None, all_gather_json(why_not_shared(parameters), group)), None)  # of any rank
    if why is None and len({len(ranks) for ranks in there}) > 1:
        why = "the hosts have different numbers of data ranks"
    if why is None and len(there[0]) == 1:
        why = "every data rank is on a host of its own"
    found: Shared | str = why or ""
    if why is None:
        world = [dist.get_global_rank(group, r) for r in range(len(hosts))]
        me, inner, between = dist.get_rank(group), group, None
        if len(names) > 1:
            mine = next(ranks for ranks in there if me in ranks)
            column = [ranks[mine.index(me)] for ranks in there]
            inner, between = (new_group([world[r] for r in ranks], timeout) for ranks in (mine, column))
        found = shared(parameters, inner, between, timeout)
        reasons = all_gather_json(found if isinstance(found, str) else "", group)  # another host may have no memory
        found = next(filter(None, reasons), found)
    if isinstance(found, Shared):
        return found, "shared memory" if len(names) == 1 else "shared memory and the network"
    if way == "shared":
        raise PlaitError(f"data ranks by shared memory: {found}; use data={len(hosts)}:network.")
    return AllReduce(parameters, group), f"the network: {found}"
