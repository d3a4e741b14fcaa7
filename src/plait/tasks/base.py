"""What a task is to the command line: data that it reads and copies, figures that it prints, pictures that it draws."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor

from ..data.sampler import Sampler
from ..errors import PlaitError
from ..training.run import Run
from ..training.settings import TrainSettings
from ..training.task import Task

VERBS = {"train": "train", "valid": "validate", "test": "test"}


class Table(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]


class Usable(Task):
    """What plait.Trainer needs to know of what it trains."""

    name: ClassVar[str]  # of its folder: runs/NAME-1
    unit: ClassVar[str]  # what the loss is the mean of: samples, tokens
    settings: Any

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """The data, as files for the folder of a run."""

    @abstractmethod
    def about(self) -> list[str]:
        """The data, and the model, in lines."""

    @abstractmethod
    def evaluate(self) -> dict[str, Any]:
        """How good it is on data that it was not trained on."""

    @abstractmethod
    def predict(self, *args: Any, **options: Any) -> Any:
        """What the trained network says of new data."""

    def shown(self, loss: float) -> str:
        return f"loss {loss:.4g}"


class NamedTask(Usable):
    """plait train NAME"""

    kind: ClassVar[type[TrainSettings]]  # of its settings

    @classmethod
    @abstractmethod
    def read(cls, settings: Any) -> Self:
        """With the data that the settings name."""

    @classmethod
    @abstractmethod
    def reopen(cls, settings: Any, run: Run, *, training: bool = False) -> Self:
        """With the run's own copy of the data."""

    @abstractmethod
    def table(self, metrics: dict[str, Any]) -> Table:
        """What `evaluate` found."""

    @abstractmethod
    def pictures(self, metrics: dict[str, Any], history: Sequence[dict[str, Any]]) -> dict[str, bytes]:
        """PNG files by name."""

    @abstractmethod
    def afterwards(self, folder: Path) -> tuple[str, str]:
        """What to do with a trained network: a word, and a command."""

    def predict(self, *args: Any, **options: Any) -> Any:
        raise PlaitError(f"task '{self.name}' has nothing to predict with: expected evaluate().")


class SampleTask(NamedTask):
    """A task whose loss is a mean over whole samples, which a sampler draws."""

    unit = "samples"
    sampler: Sampler

    def share(self, rank: int, ranks: int) -> None:
        check_share(self.sampler.batch, ranks)
        super().share(rank, ranks)

    def count(self, indices: Tensor) -> int:
        return len(indices)


def sizes(counts: Mapping[str, int]) -> str:
    """Of the parts of a dataset, in words."""
    return ", ".join(f"{counts[part]:,} to {verb}" for part, verb in VERBS.items() if part in counts)


def check_share(batch: int, ranks: int) -> None:
    if batch < ranks:
        todo = "use fewer data ranks, or a larger --batch"
        raise PlaitError(f"batch {batch} for {ranks} data ranks: each needs a share of it; {todo}.")
