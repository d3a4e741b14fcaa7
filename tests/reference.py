"""Things that are slow and certain, and share no code with what they are compared with; and where real data is."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear


class ImplicitGRU(nn.GRU):
    """The implicit GRU as its formula, one sequence after another, under autograd."""

    def forward(self, x: Tensor, hx: Tensor | None = None, lengths: list[int] | None = None):
        unbatched = x.dim() == 2
        if unbatched:
            x = x.unsqueeze(0 if self.batch_first else 1)
            hx = None if hx is None else hx.unsqueeze(1)
        if self.batch_first:
            x = x.transpose(0, 1)
        T, B = x.shape[:2]
        D = 2 if self.bidirectional else 1
        ragged = lengths is not None
        lengths = lengths or [T] * B
        sequences, last = [x[: lengths[b], b] for b in range(B)], []
        for layer in range(self.num_layers):
            outputs = []
            for d in range(D):
                k = layer * D + d
                h0 = x.new_zeros(B, self.hidden_size) if hx is None else hx[k]
                runs = [self.one(s, h0[b], k, reverse=d == 1) for b, s in enumerate(sequences)]
                outputs.append([y for y, _ in runs])
                last.append(torch.stack([h for _, h in runs]))
            sequences = [torch.cat([outputs[d][b] for d in range(D)], 1) for b in range(B)]
            if self.dropout and layer < self.num_layers - 1:
                sequences = self.drop(sequences, ragged)
        y = nn.utils.rnn.pad_sequence(sequences)
        y = torch.cat([y, y.new_zeros(T - y.shape[0], B, y.shape[2])])
        state = torch.stack(last)
        if unbatched:
            return y.squeeze(1), state.squeeze(1)
        return y.transpose(0, 1) if self.batch_first else y, state

    def one(self, x: Tensor, h: Tensor, k: int, reverse: bool) -> tuple[Tensor, Tensor]:
        w = [getattr(self, name) for name in self._all_weights[k]]
        b_ih, b_hh = (w[2], w[3]) if self.bias else (None, None)
        outputs: list[Tensor] = []
        for row in reversed(x) if reverse else x:
            a_r, a_z, a_n = linear(row, w[0], b_ih).chunk(3)
            u_r, u_z, u_n = linear(h, w[1], b_hh).chunk(3)
            r, z = torch.sigmoid(a_r + u_r), torch.sigmoid(a_z + u_z)
            n = torch.tanh(a_n + r * u_n)
            h = (h + (1 - z) * n) / (1 + (1 - z))
            outputs.append(h)
        return torch.stack(outputs[::-1] if reverse else outputs), h

    def drop(self, sequences: list[Tensor], ragged: bool) -> list[Tensor]:
        """One mask for all rows, in the order that torch draws it: step by step, longest sequence first."""
        order = sorted(range(len(sequences)), key=lambda b: -len(sequences[b])) if ragged else range(len(sequences))
        at = [(t, b) for t in range(max(map(len, sequences))) for b in order if t < len(sequences[b])]
        rows = dropout(torch.stack([sequences[b][t] for t, b in at]), self.dropout, self.training)
        return [torch.stack([rows[k] for k, (_, c) in enumerate(at) if c == b]) for b in range(len(sequences))]


def data_file(name: str) -> Path:
    folders = [os.environ.get("PLAIT_DATA"), Path(__file__).parents[2] / "shared" / "data"]
    for folder in folders:
        if folder and (Path(folder) / name).is_file():
            return Path(folder) / name
    pytest.skip(f"{name} is not here: set PLAIT_DATA to the folder that has it")
