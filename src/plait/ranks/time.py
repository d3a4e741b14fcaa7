"""Time over ranks: each has some of the steps of every sequence, and neighbours hand states on.

A layer is given the whole input on every rank, and gives the whole output on every rank. Between the two, each rank
projects, walks and differentiates its own steps only. So a program needs no change: every rank computes the same loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import PlaitError
from ..layout import Layout, Whole
from ..solvers import Solver

States = list[Tensor]


class TimeRanks:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)

    def __deepcopy__(self, memo: object) -> "TimeRanks":
        return self

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a model that is loaded has no ranks

    def share(self, layout: Layout) -> "TimeShare | None":
        """This rank's steps; None if there are fewer steps than ranks."""
        if self.size > layout.T:
            return None
        before = np.concatenate([layout.first_rows, [layout.N]])
        wanted = [layout.N * k // self.size for k in range(1, self.size)]
        bounds = [0, *(int(np.abs(before - w).argmin()) for w in wanted), layout.T]
        for k in range(1, self.size):  # each has a step at least
            bounds[k] = max(bounds[k], bounds[k - 1] + 1)
        for k in range(self.size - 1, 0, -1):
            bounds[k] = min(bounds[k], bounds[k + 1] - 1)
        return TimeShare(self, layout, tuple(bounds))

    def rank_of(self, k: int) -> int:
        return dist.get_global_rank(self.group, k)

    def most(self, *numbers: float) -> list[float]:
        found = torch.tensor(numbers, dtype=torch.float64).nan_to_num(nan=torch.inf)  # a maximum may skip NaN
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        result: list[float] = found.tolist()
        return result

    def gather(self, t: Tensor, counts: Sequence[int]) -> list[Tensor]:
        padded = t.new_zeros(max(counts), *t.shape[1:])
        padded[: len(t)] = t
        found = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(found, padded, group=self.group)
        return [f[:n] for f, n in zip(found, counts, strict=True)]

    def summed(self, t: Tensor) -> Tensor:
        dist.all_reduce(t, group=self.group)
        return t


@dataclass(frozen=True)
class TimeShare:
    ranks: TimeRanks
    whole: Layout
    bounds: tuple[int, ...]  # the first step of each rank, and the end

    @property
    def first(self) -> int:
        return self.bounds[self.ranks.rank]

    @property
    def end(self) -> int:
        return self.bounds[self.ranks.rank + 1]

    @cached_property
    def layout(self) -> Layout:
        return self.whole.cut(self.first, self.end)

    @cached_property
    def counts(self) -> list[int]:
        rows = [self.whole.rows(a, b) for a, b in pairwise(self.bounds)]
        return [r.stop - r.start for r in rows]

    def link(self, reverse: bool) -> "TimeLink":
        return TimeLink(self, reverse)

    # --- what a layer does with its tensors
    def take(self, x: Tensor) -> Tensor:
        found: Tensor = TakeRows.apply(x, self)
        return found

    def give(self, y: Tensor) -> Tensor:
        found: Tensor = GatherRows.apply(y, self)
        return found

    def shared(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same tensors; their gradients are added over all ranks."""
        return list(SumGradients.apply(self.ranks, *tensors)) if tensors else []

    def last(self, finals: Sequence[Tensor], directions: int) -> list[Tensor]:
        leaves = [self.link(d == 1).leaves for d in range(directions)]
        return [GatherLast.apply(f, self, leaves) for f in finals]

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """With the random numbers that one process would draw."""
        mask = nn.functional.dropout(x.new_ones(self.whole.N, x.shape[-1]), p, True)
        return x * mask[self.whole.rows(self.first, self.end)].view(x.shape)


class TimeLink:
    """To the ranks before and after, in the order of a walk: a solver's Link."""

    def __init__(self, share: TimeShare, reverse: bool) -> None:
        ranks, whole = share.ranks, share.whole
        self.share, self.ranks, self.reverse, self.steps = share, ranks, reverse, whole.T
        is_first, is_last = ranks.rank == 0, ranks.rank == ranks.size - 1
        on = 0 if is_last else whole.sizes[share.end]  # sequences that have steps after this share
        come = 0 if is_first else share.layout.B  # sequences that have steps before it
        self.enters, self.leaves = (on, come) if reverse else (come, on)
        step = -1 if reverse else 1
        self.previous, self.next = ranks.rank - step, ranks.rank + step

    def on(self, values: States) -> States:
        return self.exchange(values, self.next, self.previous, self.enters)

    def back(self, values: States) -> States:
        return self.exchange(values, self.previous, self.next, self.leaves)

    def exchange(self, values: States, to: int, source: int, count: int) -> States:
        sent = torch.cat(values, 1)
        found = sent.new_empty(count, sent.shape[1])
        requests = []
        if len(sent):
            requests.append(dist.P2POp(dist.isend, sent, self.ranks.rank_of(to), self.ranks.group))
        if count:
            requests.append(dist.P2POp(dist.irecv, found, self.ranks.rank_of(source), self.ranks.group))
        for request in dist.batch_isend_irecv(requests) if requests else ():
            request.wait()
        return [f.contiguous() for f in found.split([v.shape[1] for v in values], 1)]

    # one after another, where no guess will do
    def arrived(self, like: States, *, back: bool = False) -> States:
        """Waits for what comes from the rank before (back: after) this one."""
        count, source = (self.leaves, self.next) if back else (self.enters, self.previous)
        return self.exchange([v[:0] for v in like], 0, source, count)

    def send(self, values: States, *, back: bool = False) -> None:
        self.exchange(values, self.previous if back else self.next, 0, 0)

    def most(self, *numbers: float) -> list[float]:
        return self.ranks.most(*numbers)

    # --- coarse grids
    def departures(self, c: int) -> tuple[Whole, Whole]:
        bounds = np.array(self.share.bounds)[:, None]
        lengths = np.clip(self.share.whole.lengths - bounds[:-1], 0, np.diff(bounds, axis=0))  # (ranks, B)
        leaves = bounds[:-1] > 0 if self.reverse else self.share.whole.lengths > bounds[1:]
        found = np.where(lengths > 0, -(-lengths // c) - 1 + leaves, 0)
        self.counts = found.sum(1)
        r = self.ranks.rank
        before = found[r + 1 :] if self.reverse else found[:r]
        return found.sum(0), before.sum(0)

    def all_rows(self, values: States) -> States:
        return [torch.cat(self.ranks.gather(v, self.counts.tolist())) for v in values]

    def whole_initial(self, initial: States) -> States:
        found = []
        for s in initial:
            whole, mine = s.new_zeros(self.share.whole.B, s.shape[1]), slice(self.enters, self.share.layout.B)
            whole[mine] = s[mine]
            found.append(self.ranks.summed(whole))
        return found


# --- differentiable
class TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, share: TimeShare) -> Tensor:
        ctx.share = share
        if x.dim() == 3:
            return x[share.first : share.end].clone()
        return x[share.whole.rows(share.first, share.end)].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        return all_rows(ctx.share, d), None


class GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, share: TimeShare) -> Tensor:
        ctx.share = share
        return all_rows(share, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        share = ctx.share
        return d[share.first : share.end] if d.dim() == 3 else d[share.whole.rows(share.first, share.end)], None


def all_rows(share: TimeShare, t: Tensor) -> Tensor:
    found = torch.cat(share.ranks.gather(t.flatten(0, -2), share.counts))
    return found.view(share.whole.T, share.whole.B, -1) if t.dim() == 3 else found


class SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: TimeRanks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks, ctx.shapes = ranks, [t.shape for t in tensors]
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *ds: Tensor) -> tuple[Tensor | None, ...]:
        needed = [d if n else None for d, n in zip(ds, ctx.needs_input_grad[1:], strict=True)]
        some = [d.flatten() for d in needed if d is not None]
        if not some:
            return None, *needed
        summed = iter(ctx.ranks.summed(torch.cat(some)).split([len(s) for s in some]))
        return None, *(None if d is None else next(summed).view(d.shape) for d in needed)


class GatherLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, final: Tensor, share: TimeShare, leaves: Sequence[int]) -> Tensor:  # (D, b, .) -> (D, B, .)
        ctx.leaves, ctx.b = leaves, final.shape[1]
        whole = final.new_zeros(len(leaves), share.whole.B, final.shape[2])
        for d, n in enumerate(leaves):
            whole[d, n : ctx.b] = final[d, n:]
        return share.ranks.summed(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_whole: Tensor) -> tuple[Tensor, None, None]:
        found = d_whole[:, : ctx.b].clone()
        for d, n in enumerate(ctx.leaves):
            found[d, :n] = 0
        return found, None, None


def check_cuts(ranks: int, solver: Solver) -> None:
    if not solver.sweeps:
        raise PlaitError(
            f"time={ranks} with solver {solver}: ranks would wait for each other; use one that cuts time, such as "
            "shooting (--solver shooting, solver=plait.Shooting())."
        )


def split_time(model: nn.Module, group: dist.ProcessGroup) -> None:
    """From now on a model's layers share their steps out among these ranks."""
    ranks = TimeRanks(group)
    for module in model.modules():
        if hasattr(module, "_plait_cell"):
            module.__dict__["_plait_time"] = ranks
