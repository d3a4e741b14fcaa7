"""What the loop needs to know of a task."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor, nn


class Batches(Protocol):
    def __len__(self) -> int: ...
    def batches(self, epoch: int, position: int = 0) -> Iterator[Any]: ...


class Task(ABC):
    """A model, batches of numbers that stand for sequences, and how good it is."""

    model: nn.Module
    sampler: Batches
    rank, ranks = 0, 1  # among the processes that share each batch out

    def share(self, rank: int, ranks: int) -> None:
        """From now on `loss` is that of this rank's share of every batch."""
        self.rank, self.ranks = rank, ranks

    @property
    @abstractmethod
    def digest(self) -> str:
        """Of the data: a checkpoint goes on with the same."""

    @abstractmethod
    def loss(self, indices: Tensor) -> tuple[Tensor, int]:
        """-> the mean over this rank's share, and of how many samples or tokens"""

    @abstractmethod
    def count(self, indices: Tensor) -> int:
        """The number of samples or tokens in these sequences, for all ranks together."""

    @abstractmethod
    def validate(self) -> float | None:
        """The smaller the better; None if there is nothing to validate with."""

    def figures(self) -> dict[str, float]:
        """What else is worth keeping of an epoch, by name."""
        return {}

    def carried(self) -> dict[str, Tensor]:
        """What one step hands to the next, beside the weights."""
        return {}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        if tensors:
            raise ValueError(f"it hands on {', '.join(tensors)}, and this task takes nothing")
