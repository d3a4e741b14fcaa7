"""The network of a language task: embedding, recurrent layers, softmax."""

from typing import Any

import torch
from torch import Tensor, nn

from ..layers import layer
from ..layout import Layout
from ..training.network import AnyHead, Head, Later, Network
from .settings import LanguageSettings
from .softmax import AdaptiveSoftmax, Softmax, add_weights, by_rows

FULL = 30_000  # words up to which `auto` takes the full softmax


class LanguageModel(nn.Module):
    def __init__(self, s: LanguageSettings, V: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, s.width)
        dropout = s.dropout if s.layers > 1 else 0
        self.rnn = layer(s.cell, s.width, s.hidden, s.layers, dropout=dropout, **s.of_layers())
        self.adaptive = s.softmax == "adaptive" or (s.softmax == "auto" and V > FULL and not s.tied)
        tied = self.embedding.weight if s.tied else None
        self.softmax = AdaptiveSoftmax(s.hidden, V) if self.adaptive else Softmax(s.hidden, V, tied)
        self.dropout = nn.Dropout(s.dropout)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -s.init, s.init)

    def forward(self, tokens: Tensor, layout: Layout, state: Any = None) -> tuple[Tensor, Any]:
        """Tokens (N,) -> input of the softmax (N, H), and the last state"""
        x = self.dropout(self.embedding(tokens))
        if layout.batch_sizes is None:
            y, state = self.rnn(x.unflatten(0, (layout.T, layout.B)), state)
            y = y.flatten(0, 1)
        else:
            rows, state = self.rnn(layout.packed_sequence(x), state)
            y = rows.data
        return self.dropout(y), state

    def network(self) -> Network:
        softmax, head = self.softmax, SoftmaxHead(self.dropout, self.softmax)  # type: ignore[arg-type]
        if isinstance(softmax, AdaptiveSoftmax):
            head = AnyHead(softmax, lambda h, target: softmax(self.dropout(h), target))  # type: ignore[assignment]
        return Network.of(nn.Sequential(self.embedding, self.dropout), [self.rnn], head)


class SoftmaxHead(Head):
    """The full softmax in two phases: the layers below wait for the first one only."""

    def __init__(self, dropout: nn.Dropout, softmax: Softmax) -> None:
        self.dropout, self.softmax = dropout, softmax

    def parameters(self) -> list[nn.Parameter]:
        return [*self.softmax.parameters(), *self.softmax.tied]  # type: ignore[list-item]

    def rows(self, h: Tensor, target: Tensor, divisor: float) -> tuple[Tensor, Tensor, Later]:
        dropout, softmax, mask = self.dropout, self.softmax, None
        if dropout.p and dropout.training:
            h, mask = torch.native_dropout(h, dropout.p, True)
        matrix, bias = softmax.matrix.detach(), softmax.bias.detach()
        loss, d_h, p = by_rows(h, matrix, bias, target, divisor)
        if mask is not None:
            d_h = d_h.mul_(mask).div_(1 - dropout.p)

        def later() -> None:
            assert softmax.matrix.grad is not None
            assert softmax.bias.grad is not None
            add_weights(p, h, divisor, softmax.matrix.grad, softmax.bias.grad)

        return loss, d_h, later
