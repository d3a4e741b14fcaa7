"""A model of the user's own: what it is trained with, and what a run says about it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlaitError
from ..layers import packed
from ..training.settings import TrainSettings
from ..training.tensors import with_prefix
from .base import Usable
from .own_data import Feed, feed

Criterion = Callable[[Any, Any], Tensor]
BATCH = "expected (inputs ..., target)"


class Own(Usable):
    """loss: called with the model's output for the inputs of a batch, and the target. None: the model gives the loss"""

    name, unit = "model", "samples"

    def __init__(self, model: nn.Module, settings: TrainSettings, loss: Criterion | None = None) -> None:
        self.model, self.settings, self.criterion = model, settings, loss
        self.feeds: dict[str, Feed] = {}
        for name, value in model.state_dict().items():
            if not isinstance(value, Tensor):
                raise PlaitError(f"the model's state_dict has {name}, which is no tensor: a checkpoint cannot hold it.")

    @classmethod
    def to_train(
        cls, model: nn.Module, settings: TrainSettings, given: Mapping[str, Any], *, batch_given: bool = False
    ) -> "Own":
        """given: data, validation, loss"""
        loss = given.get("loss")
        if loss is not None and not callable(loss):
            raise PlaitError(f"loss is of type {type(loss).__name__}: expected a function of output and target.")
        if not any(p.requires_grad for p in model.parameters()):
            raise PlaitError(
                f"{type(model).__name__} has no parameter to train: expected one that requires a gradient."
            )
        task = cls(model, settings, loss)
        task.feeds["train"] = feed(given.get("data"), "data", settings, batch_given)
        if given.get("validation") is not None:
            task.feeds["valid"] = feed(given["validation"], "validation", settings, False)
        task.sampler = task.feeds["train"].sampler
        return task

    @property
    def digest(self) -> str:
        return " ".join(found.digest for found in self.feeds.values())

    def check_exact(self) -> None:
        """Refuses data with which a run could not go on exactly."""
        for found in self.feeds.values():
            if (why := found.why_not()) is not None:
                raise PlaitError(why)

    def files(self) -> dict[str, bytes]:
        return {}

    def about(self) -> list[str]:
        lines = [f"{part}: {found.about()}" for part, found in self.feeds.items()]
        return [*lines, type(self.model).__name__]

    # --- training
    def count(self, indices: Any) -> int:
        return size(indices)

    def loss(self, indices: Any) -> tuple[Tensor, int]:
        batch = self.feeds["train"].fetch(indices)
        found = self.loss_of(batch)
        if not found.requires_grad:
            raise PlaitError("the loss depends on no parameter of the model: compute it from the model's output.")
        return found, size(batch)

    def loss_of(self, batch: Any) -> Tensor:
        batch = on_device(batch, next(self.model.parameters()).device)
        if self.criterion is None:
            found = called(self.model, batch)
        else:
            if not isinstance(batch, tuple | list) or len(batch) < 2:
                raise PlaitError(f"a batch is of type {type(batch).__name__}: {BATCH}, or leave loss out.")
            *inputs, target = batch
            found = self.criterion(self.model(*inputs), target)
        if not isinstance(found, Tensor) or found.numel() != 1:
            kind = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            what = "model" if self.criterion is None else "loss"
            raise PlaitError(f"the {what} gives {kind}: expected the loss, a tensor with one number.")
        return found

    def validate(self) -> float | None:
        if "valid" not in self.feeds:
            return None
        total, count = 0.0, 0
        for batch in self.feeds["valid"].whole():
            n = size(batch)
            total, count = total + self.loss_of(batch).item() * n, count + n
        return total / count

    def carried(self) -> dict[str, Tensor]:
        return {f"{part}.{k}": t for part, found in self.feeds.items() for k, t in found.carried().items()}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        for part, found in self.feeds.items():
            found.carry(with_prefix(dict(tensors), f"{part}."))

    # --- how good it is
    @torch.no_grad()
    def evaluate(self) -> dict[str, Any]:
        if "valid" not in self.feeds:
            raise PlaitError(
                "there is nothing to evaluate on: give validation= to plait.Trainer, or to plait.Trainer.resume."
            )
        self.model.eval()
        with packed(self.model):
            return {"validation": self.validate()}

    @torch.no_grad()
    def predict(self, *inputs: Any) -> Any:
        """What the model makes of these inputs, in evaluation mode."""
        self.model.eval()
        with packed(self.model):
            return self.model(*on_device(inputs, next(self.model.parameters()).device))


def called(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def tensors_of(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        yield from (t for value in batch.values() for t in tensors_of(value))
    elif isinstance(batch, tuple | list):
        yield from (t for value in batch for t in tensors_of(value))


def size(batch: Any) -> int:
    """Samples of a batch: as many as the first tensor has rows."""
    return next((len(t) for t in tensors_of(batch) if t.dim()), 1)


def on_device(batch: Any, device: torch.device) -> Any:
    if hasattr(batch, "to"):  # a tensor, or a PackedSequence
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: on_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
        return type(batch)(on_device(value, device) for value in batch)
    return batch
