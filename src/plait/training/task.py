"""What the loop needs to know of a task."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor, nn


class Batches(Protocol):
    """The steps of an epoch, the same number in each: data.sampler.Sampler, for one."""

    def __len__(self) -> int: ...
    def batches(self, epoch: int, position: int = 0) -> Iterator[Tensor]: ...


class Task(ABC):
    """A model, batches of numbers that stand for sequences, and how good it is."""

    model: nn.Module
    sampler: Batches
    rank, ranks = 0, 1  # among the processes that share each batch out

    def share(self, rank: int, ranks: int) -> None:
        """From now on `loss` is that of this rank's part of every batch."""
        self.rank, self.ranks = rank, ranks

    @property
    @abstractmethod
    def digest(self) -> str:
        """Of the data: a checkpoint goes on with the same."""

    @abstractmethod
    def loss(self, indices: Tensor) -> tuple[Tensor, int]:
        """The mean loss over this rank's part of these sequences, and the number of samples or tokens it is the mean
        of. If that is 0, the loss means nothing.
        """

    @abstractmethod
    def count(self, indices: Tensor) -> int:
        """The number of samples or tokens in these sequences, for all ranks together."""

    @abstractmethod
    def validate(self) -> float | None:
        """The smaller the better; None if there is nothing to validate with."""

    def figures(self) -> dict[str, float]:
        """What else is worth keeping of an epoch, by name: asked after `validate`."""
        return {}

    def carried(self) -> dict[str, Tensor]:
        """What one step hands to the next, beside the weights: a checkpoint must have it."""
        return {}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes that from a checkpoint."""
        if tensors:
            raise ValueError(f"it hands on {', '.join(tensors)}, and this task takes nothing")
