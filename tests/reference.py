"""Things that are slow and certain, and share no code with what they are compared with; and where real data is."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Iterated:
    """A layer as its formula, one sequence after another, under autograd. It has torch's attributes and weights."""

    def equations(self, a: Tensor, u: Tensor, state: list[Tensor], params: list[Tensor]) -> tuple[Tensor, ...]:
        """a = W x + b and u = R h + c, all gates in one; the states; the cell's vectors -> the new states"""
        raise NotImplementedError

    def forward(self, x: Tensor, hx=None, lengths: list[int] | None = None):
        states = None if hx is None else list(hx) if isinstance(hx, tuple) else [hx]
        unbatched = x.dim() == 2
        if unbatched:
            x = x.unsqueeze(0 if self.batch_first else 1)
            states = None if states is None else [s.unsqueeze(1) for s in states]
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
                runs = []
                for b, s in enumerate(sequences):
                    first = self.zeros(x) if states is None else [s[k, b] for s in states]
                    runs.append(self.one(s, first, k, reverse=d == 1))
                outputs.append([y for y, _ in runs])
                last.append([torch.stack(some) for some in zip(*(final for _, final in runs), strict=True)])
            sequences = [torch.cat([outputs[d][b] for d in range(D)], 1) for b in range(B)]
            if self.dropout and layer < self.num_layers - 1:
                sequences = self.drop(sequences, ragged)
        y = nn.utils.rnn.pad_sequence(sequences)
        y = torch.cat([y, y.new_zeros(T - y.shape[0], B, y.shape[2])])
        finals = tuple(torch.stack(some) for some in zip(*last, strict=True))
        if unbatched:
            y, finals = y.squeeze(1), tuple(s.squeeze(1) for s in finals)
        elif self.batch_first:
            y = y.transpose(0, 1)
        return y, finals if len(finals) > 1 else finals[0]

    def zeros(self, x: Tensor) -> list[Tensor]:
        return [x.new_zeros(self.hidden_size)]

    def one(self, x: Tensor, state: list[Tensor], k: int, reverse: bool) -> tuple[Tensor, list[Tensor]]:
        w_ih, w_hh, *rest = (getattr(self, name) for name in self._all_weights[k])
        b_ih, b_hh = (rest.pop(0), rest.pop(0)) if self.bias else (None, None)
        w_hr = rest.pop(0) if self.proj_size else None
        outputs: list[Tensor] = []
        for row in reversed(x) if reverse else x:
            state = list(self.equations(linear(row, w_ih, b_ih), linear(state[0], w_hh, b_hh), state, rest))
            if w_hr is not None:
                state[0] = linear(state[0], w_hr)
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if reverse else outputs), state

    def drop(self, sequences: list[Tensor], ragged: bool) -> list[Tensor]:
        """One mask for all rows, in the order that torch draws it: step by step, longest sequence first."""
        order = sorted(range(len(sequences)), key=lambda b: -len(sequences[b])) if ragged else range(len(sequences))
        at = [(t, b) for t in range(max(map(len, sequences))) for b in order if t < len(sequences[b])]
        rows = dropout(torch.stack([sequences[b][t] for t, b in at]), self.dropout, self.training)
        return [torch.stack([rows[k] for k, (_, c) in enumerate(at) if c == b]) for b in range(len(sequences))]


class ImplicitGRU(Iterated, nn.GRU):
    def equations(self, a: Tensor, u: Tensor, state: list[Tensor], params: list[Tensor]) -> tuple[Tensor, ...]:
        (h,), (a_r, a_z, a_n), (u_r, u_z, u_n) = state, a.chunk(3), u.chunk(3)
        r, z = torch.sigmoid(a_r + u_r), torch.sigmoid(a_z + u_z)
        n = torch.tanh(a_n + r * u_n)
        return ((h + (1 - z) * n) / (1 + (1 - z)),)


class Formula(Iterated, nn.Module):
    """The peer of a layer of any cell: with copies of its parameters, found by their names, and equations(a, u, state,
    params) that are given.
    """

    def __init__(self, layer: nn.Module, equations) -> None:
        super().__init__()
        self.equations = equations
        for name in ("hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size"):
            setattr(self, name, getattr(layer, name))
        for name, p in layer.named_parameters():
            self.register_parameter(name, nn.Parameter(p.detach().clone()))
        ends = [f"_l{k}{way}" for k in range(self.num_layers) for way in ("", "_reverse")[: 1 + self.bidirectional]]
        self._all_weights = [[name for name in self._parameters if name.endswith(end)] for end in ends]
        self.states = len(layer._plait_cell.states)
        self.train(layer.training)

    def zeros(self, x: Tensor) -> list[Tensor]:
        widths = [self.proj_size or self.hidden_size, *[self.hidden_size] * (self.states - 1)]
        return [x.new_zeros(width) for width in widths]


class Packed(nn.Module):
    """The reference, which knows no PackedSequence: pad, run, pack."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, packed, hx):
        x, lengths = pad_packed_sequence(packed, self.layer.batch_first)
        y, state = self.layer(x, hx, lengths.tolist())
        ordered = packed.sorted_indices is None
        return pack_padded_sequence(y, lengths, self.layer.batch_first, enforce_sorted=ordered), state


def data_file(name: str) -> Path:
    folders = [os.environ.get("PLAIT_DATA"), Path(__file__).parents[2] / "shared" / "data"]
    for folder in folders:
        if folder and (Path(folder) / name).is_file():
            return Path(folder) / name
    pytest.skip(f"{name} is not here: set PLAIT_DATA to the folder that has it")
