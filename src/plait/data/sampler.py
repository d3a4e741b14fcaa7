"""Which sequences make up which batch: seeded, and able to go on from the middle of an epoch."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import at_least


@dataclass(frozen=True)
class Sampler:
    """An epoch's order follows from the seed and the epoch alone, so a position is all there is to save."""

    size: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        at_least("number of training sequences", self.size, 1)
        at_least("batch", self.batch, 1)

    def __len__(self) -> int:
        return (self.size + self.batch - 1) // self.batch

    def batches(self, epoch: int, position: int = 0) -> Iterator[Tensor]:
        """The epoch's batches of indices from that position on; the last one may be smaller."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(self.size, generator=generator)
        yield from order.split(self.batch)[position:]
