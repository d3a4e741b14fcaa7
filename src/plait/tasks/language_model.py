"""The network of a language task: embedding, recurrent layers, softmax."""

from typing import Any

from torch import Tensor, nn

from ..layers import layer
from ..layout import Layout
from .settings import LanguageSettings
from .softmax import AdaptiveSoftmax, Softmax

FULL = 30_000  # words up to which `auto` takes the full softmax


class LanguageModel(nn.Module):
    def __init__(self, s: LanguageSettings, V: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, s.width)
        self.rnn = layer(s.cell, s.width, s.hidden, s.layers, dropout=s.dropout if s.layers > 1 else 0, engine=s.engine)
        self.adaptive = s.softmax == "adaptive" or (s.softmax == "auto" and V > FULL and not s.tied)
        tied = self.embedding.weight if s.tied else None
        self.softmax = AdaptiveSoftmax(s.hidden, V) if self.adaptive else Softmax(s.hidden, V, tied)
        self.dropout = nn.Dropout(s.dropout)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -s.init, s.init)

    def forward(self, tokens: Tensor, layout: Layout, state: Any = None) -> tuple[Tensor, Any]:
        """Tokens (N,) -> what the softmax is given (N, H), and the state after the last step"""
        x = self.dropout(self.embedding(tokens))
        if layout.batch_sizes is None:
            y, state = self.rnn(x.unflatten(0, (layout.T, layout.B)), state)
            y = y.flatten(0, 1)
        else:
            packed, state = self.rnn(layout.packed_sequence(x), state)
            y = packed.data
        return self.dropout(y), state
