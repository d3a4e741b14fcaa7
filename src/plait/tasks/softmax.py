"""The end of a language model: from a state to the likelihood of the word that follows.

With ten thousand words this costs more than the recurrence: see docs/language.md for the profile. Loss and gradients
come in two phases: `by_rows` is all that the layers below wait for; `add_weights` can be done later, chunk by chunk.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..kernels import pool

LOGITS = 1 << 22  # numbers that are held at a time


class LinearCrossEntropy(torch.autograd.Function):
    """-> the mean of cross_entropy(h weight' + bias, target), without targets of -1"""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight, bias, target)
        loss, *ctx.gradients = with_gradients(h, weight, bias, target)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # a second backward pass computes them again
        if gradients is None:
            _, *gradients = with_gradients(*ctx.saved_tensors)
        if d_loss.item() != 1:
            for d in gradients:
                d.mul_(d_loss)
        return *gradients, None


def with_gradients(h: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """-> loss, d_h, d_weight, d_bias; some rows at a time, so that p stays small"""
    divisor = int((target >= 0).sum())
    loss, d_h, d_weight, d_bias = h.new_zeros(()), torch.empty_like(h), torch.empty_like(weight), torch.zeros_like(bias)
    if h.shape[0] == 0:
        d_weight.zero_()
    for rows in blocks(h.shape[0], weight.shape[0]):
        more, d_h[rows], p = by_rows(h[rows], weight, bias, target[rows], divisor)
        loss += more
        add_weights(p, h[rows], divisor, d_weight, d_bias, first=rows.start == 0)
        del p  # before the next one is made
    return loss, d_h, d_weight, d_bias


def by_rows(
    h: Tensor, weight: Tensor, bias: Tensor, target: Tensor, divisor: float
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The first phase, row by row. -> the loss, d_h, and p, which `add_weights` needs.

    The rows may be a chunk of more: `divisor` is the number of targets (without those of -1) in the whole, and the
    losses of all chunks add up to the mean. p is the gradient of the logits, times `divisor`, in blocks of rows; it is
    made in the place of the logits: those are written once, not four times over.
    """
    loss, d_h, found = h.new_zeros(()), torch.empty_like(h), []
    counts = target >= 0
    every = bool(counts.all())
    for rows in blocks(h.shape[0], weight.shape[0]):
        wanted = target[rows].clamp(min=0).unsqueeze(1)
        p, entropy = likelihoods(h[rows], weight, bias, wanted)
        p.scatter_add_(1, wanted, p.new_full((), -1).expand_as(wanted))
        if not every:
            p.mul_(counts[rows].unsqueeze(1))
            entropy.mul_(counts[rows].unsqueeze(1))
        loss += entropy.sum() / divisor
        torch.addmm(d_h[rows], p, weight, beta=0, alpha=1 / max(1, divisor), out=d_h[rows])
        found.append(p)
    return loss, d_h, found


def likelihoods(h: Tensor, weight: Tensor, bias: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """In the place of the logits, and -log p of the targets: (n, V), (n, 1)"""
    p = torch.addmm(bias, h, weight.t(), out=pool.empty(h, h.shape[0], weight.shape[0]))
    torch.softmax(p, 1, out=p)
    entropy = -p.gather(1, wanted).log_()
    if not entropy.isfinite().all():  # a likelihood underflowed to 0
        entropy = -torch.addmm(bias, h, weight.t()).log_softmax(1).gather(1, wanted)
    return p, entropy


def add_weights(
    p: Sequence[Tensor], h: Tensor, divisor: float, d_weight: Tensor, d_bias: Tensor, *, first: bool = False
) -> None:
    """The second phase. first: d_weight holds nothing yet"""
    scale = 1 / max(1, divisor)
    for k, (block, rows) in enumerate(zip(p, h.split([len(block) for block in p]), strict=True)):
        d_weight.addmm_(block.t(), rows, beta=0 if first and k == 0 else 1, alpha=scale)
        d_bias.add_(block.sum(0), alpha=scale)


def blocks(N: int, V: int) -> list[slice]:
    size = max(1, LOGITS // V)
    return [slice(i, min(N, i + size)) for i in range(0, N, size)]


class Softmax(nn.Module):
    def __init__(self, H: int, V: int, tied: Tensor | None = None) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(V))
        self.weight = nn.Parameter(torch.empty(V, H)) if tied is None else None
        self.tied = [] if tied is None else [tied]  # a list hides the embedding's parameter

    @property
    def matrix(self) -> Tensor:  # (V, H)
        return self.tied[0] if self.weight is None else self.weight

    def forward(self, h: Tensor, target: Tensor) -> Tensor:
        """The mean of -log p(target), where that is not -1: (N, H), (N,) -> ()"""
        if torch.is_grad_enabled():
            loss: Tensor = LinearCrossEntropy.apply(h, self.matrix, self.bias, target)
            return loss
        counts, total = target >= 0, h.new_zeros(())
        for rows in blocks(h.shape[0], self.bias.shape[0]):
            _, entropy = likelihoods(h[rows], self.matrix, self.bias, target[rows].clamp(min=0).unsqueeze(1))
            total += entropy[counts[rows]].sum()
        return total / counts.sum()

    def logits(self, h: Tensor) -> Tensor:  # (N, H) -> (N, V)
        return nn.functional.linear(h, self.matrix, self.bias)


class AdaptiveSoftmax(nn.Module):
    """torch's: rare words are in clusters that are seldom computed, with fewer columns."""

    def __init__(self, H: int, V: int) -> None:
        super().__init__()
        cutoffs = [c for c in (2_000, 10_000, 50_000) if c < V] or [max(1, V // 2)]
        # Each cluster has `narrower` times fewer columns than the one before, and the last one still has one.
        narrower = min(4.0, 0.999 * H ** (1 / len(cutoffs)))
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(H, V, cutoffs, div_value=narrower, head_bias=True)

    def forward(self, h: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = self.softmax(h, target).loss
        return loss

    def logits(self, h: Tensor) -> Tensor:
        result: Tensor = self.softmax.log_prob(h)
        return result
