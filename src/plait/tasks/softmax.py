"""The end of a language model: from a state to the likelihood of the word that follows.

With ten thousand words this costs more than the recurrence: see docs/language.md for the profile.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..kernels import pages

LOGITS = 1 << 22  # numbers that are held at a time


class LinearCrossEntropy(torch.autograd.Function):
    """(h, weight, bias, target) -> the mean of cross_entropy(h weight' + bias, target), without targets of -1."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight, bias, target)
        loss, *ctx.gradients = with_gradients(h, weight, bias, target)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # handed on, not copied: a second backward computes them anew
        if gradients is None:
            _, *gradients = with_gradients(*ctx.saved_tensors)
        if d_loss.item() != 1:
            for d in gradients:
                d.mul_(d_loss)
        return *gradients, None


def with_gradients(h: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """-> the loss, d_h, d_weight, d_bias.

    Some rows at a time, and in the place of their logits: those are written once, not four times over.
    """
    N, V = h.shape[0], weight.shape[0]
    counts = target >= 0
    count = int(counts.sum())
    loss, d_h, d_weight, d_bias = h.new_zeros(()), torch.empty_like(h), torch.empty_like(weight), torch.zeros_like(bias)
    if N == 0:
        d_weight.zero_()
    for rows in blocks(N, V):
        part, wanted = h[rows], target[rows].clamp(min=0).unsqueeze(1)
        p = torch.addmm(bias, part, weight.t(), out=pages.empty(h, part.shape[0], V))
        torch.softmax(p, 1, out=p)
        entropy = -p.gather(1, wanted).log_()
        if not entropy.isfinite().all():  # a likelihood that is too small for a number: its logarithm is not
            entropy = -torch.addmm(bias, part, weight.t()).log_softmax(1).gather(1, wanted)
        p.scatter_add_(1, wanted, p.new_full((), -1).expand_as(wanted))
        if count < N:
            p.mul_(counts[rows].unsqueeze(1))
            entropy.mul_(counts[rows].unsqueeze(1))
        loss += entropy.sum() / count
        torch.addmm(d_h[rows], p, weight, beta=0, alpha=1 / max(1, count), out=d_h[rows])
        d_weight.addmm_(p.t(), part, beta=1 if rows.start else 0, alpha=1 / max(1, count))
        d_bias.add_(p.sum(0), alpha=1 / max(1, count))
    return loss, d_h, d_weight, d_bias


def blocks(N: int, V: int) -> list[slice]:
    """Rows whose logits are held together."""
    size = max(1, LOGITS // V)
    return [slice(i, min(N, i + size)) for i in range(0, N, size)]


class Softmax(nn.Module):
    """A word's likelihood from all words' logits."""

    def __init__(self, H: int, V: int, tied: Tensor | None = None) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(V))
        self.weight = nn.Parameter(torch.empty(V, H)) if tied is None else None
        self.tied = [] if tied is None else [tied]  # in a list: it is a parameter of the embedding, not of this module

    @property
    def matrix(self) -> Tensor:  # (V, H)
        return self.tied[0] if self.weight is None else self.weight

    def forward(self, h: Tensor, target: Tensor) -> Tensor:
        """The mean of -log p(target), where that is not -1: (N, H), (N,) -> ()"""
        if torch.is_grad_enabled():
            loss: Tensor = LinearCrossEntropy.apply(h, self.matrix, self.bias, target)
            return loss
        parts = [
            nn.functional.cross_entropy(self.logits(h[rows]), target[rows], ignore_index=-1, reduction="sum")
            for rows in blocks(h.shape[0], self.bias.shape[0])
        ]
        return torch.stack(parts).sum() / (target >= 0).sum()

    def logits(self, h: Tensor) -> Tensor:  # (N, H) -> (N, V)
        return nn.functional.linear(h, self.matrix, self.bias)


class AdaptiveSoftmax(nn.Module):
    """torch's: frequent words by themselves, rarer ones in clusters that are seldom looked into, with fewer numbers."""

    def __init__(self, H: int, V: int) -> None:
        super().__init__()
        cutoffs = [c for c in (2_000, 10_000, 50_000) if c < V] or [max(1, V // 2)]
        narrower = min(4.0, 0.999 * H ** (1 / len(cutoffs)))  # each cluster by this, the last one still a number wide
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(H, V, cutoffs, div_value=narrower, head_bias=True)

    def forward(self, h: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = self.softmax(h, target).loss
        return loss

    def logits(self, h: Tensor) -> Tensor:
        result: Tensor = self.softmax.log_prob(h)
        return result
