"""Which sequences make up which batch: seeded, and able to go on from the middle of an epoch."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils import data

from ..errors import PlaitError
from .buckets import LONGEST, Boundaries, Lengths, at_least_whole, bucket_of, static, whole

ABOVE = LONGEST + 1  # number * ABOVE + length sorts by the number first, and then by the length


def longest_first(lengths: Tensor, rows: int) -> Iterator[Tensor]:
    """The numbers of all sequences, about so many rows at a time."""
    order = lengths.argsort(descending=True, stable=True)
    counts = torch.bincount((lengths[order].cumsum(0) - 1) // rows)
    yield from (some for some in order.split(counts.tolist()) if len(some))


class Sampler(data.Sampler[list[int]]):
    """Batches of sequences by number, each sequence once an epoch; for our loop, or as a DataLoader's `batch_sampler`.

    An epoch's order depends on the seed and the epoch alone, so a position is all there is to save.

    lengths: of each sequence; or the number of sequences, if their lengths do not matter.
    boundaries: a batch is drawn from one bucket (see plait.data.buckets). What does not fill a batch moves up into the
        next bucket, so that only the very last batch may be smaller.
    pool: that many batches' worth of random sequences are sorted by length before they are cut into batches.
    rank, ranks: `batch` sequences are drawn for all ranks together, and this rank has its share of them: as many as the
        others, or one more, and about as many tokens. Batches and positions are the same for any number of ranks. If
        the last batch has fewer sequences than there are ranks, some ranks have none of it: an empty share.

    Iterating begins at `epoch` and `position` and counts on, so what is left early goes on there; after an epoch's end
    the next one follows, in a new order. Workers (num_workers > 0) draw batches ahead, and `position` is then ahead of
    the training: save {"epoch": ..., "position": ...} with the batches trained on instead of `state_dict()`.
    """

    def __init__(
        self,
        lengths: Lengths | int,
        batch: int,
        seed: int = 0,
        *,
        boundaries: Sequence[int] | None = None,
        pool: int | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        super().__init__()
        at_least_whole("batch", batch, 1)
        at_least_whole("seed", seed, 0)
        at_least_whole("ranks", ranks, 1)
        at_least_whole("rank", rank, 0)
        if rank >= ranks:
            raise PlaitError(f"rank {rank} of {ranks}: must be at most {ranks - 1}, as ranks count from 0.")
        if boundaries is not None and pool is not None:
            raise PlaitError("boundaries and pool exclude each other: leave one of them out.")
        self.batch, self.seed, self.rank, self.ranks = batch, seed, rank, ranks
        self.lengths: Tensor | None = None  # (size,)
        self.boundaries: Boundaries | None = None
        self.sort_by: Tensor | None = None  # (size,): `together` sequences at a time
        if isinstance(lengths, int | np.integer):
            self.size = self.together = int(lengths)
            at_least_whole("number of training sequences", self.size, 1)
            if boundaries is not None or pool is not None:
                name = "pool" if boundaries is None else "boundaries"
                raise PlaitError(f"{name} with {lengths} sequences of no known length: give one length for each.")
        else:
            self.lengths = torch.from_numpy(whole(lengths))
            self.size = self.together = len(self.lengths)
            if boundaries is not None:
                self.boundaries = static(lengths, boundaries)
                if len(self.boundaries) > 1:
                    self.sort_by = torch.from_numpy(bucket_of(lengths, boundaries))
            if pool is not None:
                at_least_whole("pool", pool, 1)
                self.sort_by, self.together = self.lengths, min(pool * batch, self.size)
        if min(batch, self.size) < ranks:
            few = f"batch {batch}" if batch < ranks else f"{self.size} sequences"
            raise PlaitError(f"{few} for {ranks} ranks: each needs a sequence of a full batch, so use fewer ranks.")
        self.epoch, self.position = 0, 0

    def __len__(self) -> int:
        return (self.size + self.batch - 1) // self.batch  # the last may be smaller

    def batches(self, epoch: int, position: int = 0) -> Iterator[Tensor]:
        """The epoch's batches of indices from that position on."""
        self.check(epoch, position)
        generator = torch.Generator("cpu").manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(self.size, generator=generator, device="cpu")  # (size,)
        turns: Sequence[int] = range(len(self))
        if self.sort_by is not None:
            where = torch.arange(self.size, device="cpu")
            order = order[(where // self.together * ABOVE + self.sort_by[order]).argsort(stable=True)]
            turns = torch.randperm(len(self), generator=generator, device="cpu").tolist()
        batches = order.split(self.batch)
        yield from (self.share(batches[k], self.rank, self.ranks) for k in turns[position:])

    def share(self, indices: Tensor, rank: int, ranks: int) -> Tensor:
        """A rank's share of a batch, dealt out from the longest on: 0 1 2 2 1 0 ..."""
        if ranks == 1:
            return indices
        if self.lengths is not None:
            indices = indices[(ABOVE - self.lengths[indices]).argsort(stable=True)]
        turn = torch.arange(len(indices), device="cpu") % (2 * ranks)
        return indices[torch.minimum(turn, 2 * ranks - 1 - turn) == rank]

    def length_of(self, indices: Tensor | Sequence[int]) -> int:
        """What to pad a batch to."""
        if self.lengths is None:
            raise PlaitError(f"{self.size} sequences of no known length: give one length for each.")
        longest = int(self.lengths[torch.as_tensor(indices, device="cpu")].max())
        return longest if self.boundaries is None else self.boundaries[bisect_left(self.boundaries, longest)]

    def __iter__(self) -> Iterator[list[int]]:
        for position, indices in enumerate(self.batches(self.epoch, self.position), self.position + 1):
            self.position = position
            yield indices.tolist()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """The epoch to iterate over next, from its beginning."""
        self.load_state_dict({"epoch": epoch, "position": 0})

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        if not {"epoch", "position"} <= set(state):
            raise PlaitError(f"a sampler's state has {', '.join(state) or 'nothing'}: expected epoch and position.")
        self.check(state["epoch"], state["position"])
        self.epoch, self.position = state["epoch"], state["position"]

    def check(self, epoch: int, position: int) -> None:
        at_least_whole("epoch", epoch, 0)
        at_least_whole("position", position, 0)
        if position > len(self):
            raise PlaitError(
                f"position {position}: an epoch has {len(self)} batches; go on with the data and the batch of before."
            )
