"""Data for a model of one's own: tensors, or torch's Dataset or DataLoader, in an order from which a run can go on."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data

from ..data.sampler import Sampler
from ..errors import PlaitError
from ..training import randomness
from ..training.settings import TrainSettings
from ..training.task import Batches
from ..training.tensors import checksum, with_prefix

EXPECTED = "expected a tuple of tensors (inputs ..., target), a Dataset, a DataLoader, or a list of samples"
ORDERS = (data.SequentialSampler, data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler)


class Feed(ABC):
    """Batches for the loop, by its position in the epoch."""

    sampler: Batches
    digest: str  # of the data

    @abstractmethod
    def fetch(self, drawn: Any) -> Any:
        """The batch for the model, of what the sampler has drawn."""

    @abstractmethod
    def whole(self) -> Iterator[Any]:
        """All batches once, to validate with."""

    @abstractmethod
    def about(self) -> str: ...

    def why_not(self) -> str | None:
        """Why a run with these data could not go on exactly where it was left."""
        return None

    def carried(self) -> dict[str, Tensor]:
        """What it takes to be in the same place again, beside the position."""
        return {}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        if tensors:
            raise ValueError(f"it hands on {', '.join(tensors)}, and these data take nothing")


class ByNumber(Feed):
    """Samples that are read by number, in an order of plait's."""

    def __init__(self, n: int, settings: TrainSettings) -> None:
        self.n, self.batch = n, settings.batch_size(n)
        self.sampler = Sampler(n, self.batch, settings.seed)

    def whole(self) -> Iterator[Any]:
        yield from (self.fetch(some) for some in torch.arange(self.n).split(self.batch))

    def about(self) -> str:
        return f"{self.n:,} samples, {self.batch} a batch"


class Tensors(ByNumber):
    """Tensors, whose first dimension counts the samples."""

    def __init__(self, tensors: Sequence[Tensor], name: str, settings: TrainSettings) -> None:
        if any(not t.dim() for t in tensors) or len({len(t) for t in tensors}) != 1 or not len(tensors[0]):
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
            raise PlaitError(f"{name} has tensors of shape {shapes}: expected one or more samples, as many in each.")
        super().__init__(len(tensors[0]), settings)
        self.tensors = [t.detach() for t in tensors]
        self.digest = checksum({str(k): t for k, t in enumerate(self.tensors)}, "")

    def fetch(self, drawn: Tensor) -> Any:
        return tuple(t[drawn.to(t.device)] for t in self.tensors)


class Items(ByNumber):
    """A Dataset that is read by number."""

    def __init__(self, dataset: Any, name: str, settings: TrainSettings) -> None:
        if not len(dataset):
            raise PlaitError(f"{name} is empty: expected one sample or more.")
        super().__init__(len(dataset), settings)
        self.dataset, self.name = dataset, name
        self.digest = sampled(dataset)

    def fetch(self, drawn: Tensor) -> Any:
        return data.default_collate([self.dataset[k] for k in drawn.tolist()])

    def why_not(self) -> str | None:
        return None if self.digest == sampled(self.dataset) else unrepeatable(self.name)


class Loaded(Feed):
    """A DataLoader: an epoch that was left is drawn again from its beginning, up to where it was."""

    def __init__(self, loader: "data.DataLoader[Any]", name: str) -> None:
        if isinstance(loader.dataset, data.IterableDataset):
            raise PlaitError(f"{name} has an IterableDataset, which cannot be read by number: {EXPECTED}.")
        self.loader, self.name, self.sampler = loader, name, self
        order: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        while type(order) is data.BatchSampler:
            order = order.sampler
        self.order = order
        given = (loader.generator, getattr(order, "generator", None))
        self.generators = list({id(g): g for g in given if isinstance(g, torch.Generator)}.values())
        self.began: dict[str, Tensor] = {}  # the random states when the epoch under way began
        try:
            self.n = len(loader)
            self.digest = sampled(loader.dataset)
        except TypeError:
            raise PlaitError(f"{name} has no length: {EXPECTED}; an iterable one cannot be resumed.") from None
        if not self.n:
            raise PlaitError(f"{name} is empty: expected one batch or more.")

    def __len__(self) -> int:
        return self.n

    def batches(self, epoch: int, position: int = 0) -> Iterator[Any]:
        now = self.states()
        if position:
            self.restore(self.began)
        else:
            self.began = now
        if hasattr(self.order, "set_epoch"):
            self.order.set_epoch(epoch)
        batches = iter(self.loader)
        for _ in range(position):
            next(batches)
        if position:
            self.restore(now)
        yield from batches

    def states(self) -> dict[str, Tensor]:
        return randomness.as_tensors() | {f"own:{k}": g.get_state() for k, g in enumerate(self.generators)}

    def restore(self, found: Mapping[str, Tensor]) -> None:
        for k, generator in enumerate(self.generators):
            generator.set_state(found[f"own:{k}"])
        randomness.from_tensors(found)

    def fetch(self, drawn: Any) -> Any:
        return drawn

    def whole(self) -> Iterator[Any]:
        yield from self.loader

    def about(self) -> str:
        return f"{self.n:,} batches of a DataLoader"

    def why_not(self) -> str | None:
        if self.loader.persistent_workers:
            return f"{self.name} has persistent_workers=True, whose random states no checkpoint holds: leave it out."
        if type(self.order) not in ORDERS and not hasattr(self.order, "set_epoch"):
            kind = type(self.order).__name__
            return f"{self.name} has a sampler ({kind}) without set_epoch(epoch): its order cannot be brought back."
        return None if self.digest == sampled(self.loader.dataset) else unrepeatable(self.name)

    def carried(self) -> dict[str, Tensor]:
        now = {f"now.own:{k}": g.get_state() for k, g in enumerate(self.generators)}
        return now | {f"began.{name}": t for name, t in self.began.items()}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        now = with_prefix(dict(tensors), "now.")
        if len(now) != len(self.generators):
            raise ValueError(f"it has the states of {len(now)} generators, and {self.name} has {len(self.generators)}")
        for k, generator in enumerate(self.generators):
            generator.set_state(now[f"own:{k}"])
        self.began = with_prefix(dict(tensors), "began.")


def feed(found: Any, name: str, settings: TrainSettings, batch_given: bool) -> Feed:
    """name: for messages. batch_given: a DataLoader has batches of its own"""
    if isinstance(found, data.DataLoader):
        if batch_given:
            raise PlaitError(f"batch {settings.batch} with a DataLoader, which has its own: leave batch out.")
        return Loaded(found, name)
    if isinstance(found, data.IterableDataset):
        raise PlaitError(f"{name} is an IterableDataset, which cannot be read by number: {EXPECTED}.")
    if isinstance(found, data.TensorDataset):
        found = found.tensors
    if isinstance(found, Tensor | np.ndarray):
        found = (found,)
    if isinstance(found, tuple) and found and all(isinstance(t, Tensor | np.ndarray) for t in found):
        return Tensors([torch.as_tensor(t) for t in found], name, settings)
    if isinstance(found, str | bytes | tuple | dict) or not (
        hasattr(found, "__len__") and hasattr(found, "__getitem__")
    ):
        raise PlaitError(f"{name} is {kind_of(found)}: {EXPECTED}.")
    return Items(found, name, settings)


def kind_of(found: Any) -> str:
    return "missing" if found is None else f"of type {type(found).__name__}"


def unrepeatable(name: str) -> str:
    return (
        f"{name} gives other numbers when the same samples are read again with the same seeds: draw them from the "
        "global generators of torch, NumPy or random, or train without a folder."
    )


def sampled(dataset: Any) -> str:
    """A digest of the length and of a few samples, read with fixed seeds."""
    outside, n = randomness.as_tensors(), len(dataset)
    content = hashlib.sha256(str(n).encode())
    try:
        randomness.seed_all(0)
        for k in sorted({0, n // 2, n - 1}) if n else ():
            add(dataset[k], content.update)
    finally:
        randomness.from_tensors(outside)
    return content.hexdigest()


def add(value: Any, update: Callable[[bytes], None]) -> None:
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        value = torch.as_tensor(value) if value.dtype.kind in "biufc" else value.tolist()
    if isinstance(value, Tensor):
        update(checksum({"": value.detach()}, "").encode())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            update(str(key).encode())
            add(item, update)
    elif isinstance(value, list | tuple):
        for item in value:
            add(item, update)
    elif isinstance(value, str | bytes | int | float | bool | None):
        update(repr(value).encode())
    else:  # nothing is known of it
        update(type(value).__name__.encode())
