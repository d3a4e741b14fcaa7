"""A network that says one thing about a whole sequence: recurrent layers, the last state or the mean, a linear map."""

from typing import Any

import torch
from torch import Tensor, nn

from ..data.sampler import longest_first
from ..data.sequences import Sequences
from ..layers import layer, packed, states_of
from ..layout import Layout
from .memory import at_once
from .settings import PooledSettings


class Pooled(nn.Module):
    def __init__(self, s: PooledSettings, inputs: int, outputs: int) -> None:
        super().__init__()
        options: dict[str, Any] = {
            "dropout": s.dropout if s.layers > 1 else 0.0,
            "bidirectional": s.bidirectional,
            **s.of_layers(),
        }
        self.rnn = layer(s.cell, inputs, s.hidden, s.layers, **options)
        self.dropout = nn.Dropout(s.dropout)
        self.pool, self.directions = s.pool, 1 + s.bidirectional
        self.head = nn.Linear(s.hidden * self.directions, outputs)

    def forward(self, rows: Tensor, layout: Layout, ids: Tensor | None = None) -> Tensor:
        """(N, inputs) -> (B, outputs), in the order given. ids: of the sequences"""
        known = {} if ids is None else {"ids": ids}
        if layout.batch_sizes is None:
            y, state = self.rnn(rows.unflatten(0, (layout.T, layout.B)), **known)
        else:
            sequences, state = self.rnn(layout.packed_sequence(rows), **known)
            y = sequences.data
        if self.pool == "last":  # of the reverse direction, that is the state at the first step
            pooled = states_of(state)[0][-self.directions :].transpose(0, 1).flatten(1)  # (B, directions * H)
        elif layout.batch_sizes is None:
            pooled = y.mean(0)
        else:
            sums = y.new_zeros(layout.B, y.shape[1]).index_add(0, layout.sequence, y)
            lengths = torch.bincount(layout.sequence, minlength=layout.B)
            pooled = sums / lengths.unsqueeze(1)
        return self.head(self.dropout(pooled))  # type: ignore[no-any-return]


@torch.no_grad()
def predict(model: Pooled, sequences: Sequences) -> Tensor:  # (n, outputs)
    """What the network says about each sequence: many together, without a tape."""
    model.eval()
    rows = at_once(model.rnn.input_size + 2 * model.head.in_features)  # a layer's inputs and outputs
    found = torch.empty(len(sequences), model.head.out_features)
    with packed(model):
        for some in longest_first(sequences.lengths, rows):
            found[some] = model(*sequences.batch(some))
    return found
