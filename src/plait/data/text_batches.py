"""Two ways to cut a text into batches: streams that run side by side through it, and sentences that stand alone.

A batch is a layout (layout.py), and for each of its rows (N,) the position of a token in the text. What the network is
given there is the token before it. (Before the first token of a sentence that is the end of the sentence before.)
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import PlaitError
from ..layout import Layout
from .buckets import POOL, Lengths, parse
from .sampler import Sampler

Batch = tuple[Tensor, Layout]  # positions (N,)


class Streams:
    """The text in B streams, read side by side, `steps` tokens at a time."""

    def __init__(self, tokens: int, B: int, steps: int) -> None:
        shorter, longer = divmod(tokens, B)  # the first `longer` streams have one token more
        if B > 1 and shorter < 2:
            raise PlaitError(f"{tokens} tokens for {B} streams: expected two or more for each; lower --batch.")
        lengths = torch.tensor([shorter + 1] * longer + [shorter] * (B - longer), device="cpu")
        self.lengths, self.steps = lengths, steps
        self.starts = lengths.cumsum(0) - lengths  # (B,)

    def __len__(self) -> int:
        return int((self.lengths[0] + self.steps - 1) // self.steps)

    def batches(self, epoch: int, position: int = 0) -> Iterator[Tensor]:
        for k in range(position, len(self)):
            yield torch.tensor([k], device="cpu")

    def count(self, indices: Tensor) -> int:
        return int((self.lengths - int(indices) * self.steps).clamp(0, self.steps).sum())

    def batch(self, indices: Tensor, columns: slice = slice(None)) -> Batch:
        """columns: of these streams alone. If they have all ended, the layout is empty."""
        begin = int(indices) * self.steps
        left = (self.lengths[columns] - begin).clamp(max=self.steps)  # (B,)
        alive = int((left > 0).sum())
        if alive == 0:
            return left[:0], Layout(0, 0)
        starts, left = self.starts[columns][:alive] + begin, left[:alive]
        even = left[0] == left[-1]
        layout = Layout(int(left[0]), alive) if even else Layout.of_lengths(left)
        return starts[layout.sequence] + layout.step, layout


def grouped(how: str, lengths: Lengths, batch: int, seed: int) -> Sampler:
    """Sentences in batches: pool:50, or what buckets.parse knows."""
    if pool := POOL.fullmatch(how):
        return Sampler(lengths, batch, seed, pool=int(pool[1]))
    return Sampler(lengths, batch, seed, boundaries=parse(how, lengths, batch))


def columns(B: int, rank: int, ranks: int) -> slice:
    return slice(B * rank // ranks, B * (rank + 1) // ranks)


def before(ids: Tensor, end: int) -> Tensor:
    return torch.cat([ids.new_tensor([end]), ids[:-1]])


def sentences(starts: Tensor, indices: Tensor) -> Batch:
    """Those that begin at `starts` and end where the next one begins."""
    layout = Layout.of_lengths(starts[indices + 1] - starts[indices])
    return starts[indices][layout.sequence] + layout.step, layout
