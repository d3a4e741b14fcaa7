"""Everything that a run needs to go on to the very same weights: model, optimizer, random states, position, history."""

import itertools
import math
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PlaitError
from .run import Run
from .task import Task
from .tensors import load_weights, with_prefix

# What comes of reading a checkpoint that has another shape.
WRONG = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, AssertionError, RuntimeError)


@dataclass
class Progress:
    """Where training is. `position` counts the steps done in the epoch that is under way."""

    epoch: int = 0
    position: int = 0
    loss: float = 0.0  # summed over the epoch so far, times count
    count: int = 0
    seconds: float = 0.0  # of training, over all sessions
    best: float | None = None  # validation
    best_epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, value: dict[str, Any], steps: int) -> "Progress":
        """As it was saved, in epochs of so many steps."""
        progress = cls(**value)
        whole = progress.epoch, progress.position, progress.count, progress.best_epoch
        numbers = progress.loss, progress.seconds, 0.0 if progress.best is None else progress.best
        rows = [(row["epoch"], row["loss"], row["seconds"], row["validation"] or 0.0) for row in progress.history]
        fits = all(type(n) is int and n >= 0 for n in whole) and len(rows) == progress.epoch >= progress.best_epoch
        fits = fits and progress.position <= steps and (progress.count > 0) == (progress.position > 0)
        if not fits or not all(map(math.isfinite, (*numbers, *itertools.chain(*rows)))):
            raise ValueError("its progress makes no sense")
        return progress


@dataclass
class State:
    task: Task
    optimizer: torch.optim.Optimizer
    schedule: Any
    progress: Progress
    best: dict[str, Tensor] = field(default_factory=dict)  # the weights of the best epoch
    belongs_to: dict[str, Any] = field(default_factory=dict)  # the settings and the data that it was made with

    def save(self, run: Run) -> None:
        weights = self.task.model.state_dict()
        tensors: dict[str, Tensor] = {f"model.{k}": v for k, v in weights.items()}
        tensors |= {f"carried.{k}": v for k, v in self.task.carried().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        tensors |= {f"random.{device}": state for device, state in random_states().items()}
        optimizer = self.optimizer.state_dict()
        for index, values in optimizer["state"].items():
            tensors |= {f"optimizer.{index}.{k}": v for k, v in values.items() if isinstance(v, Tensor)}
        meta = {
            "belongs_to": self.belongs_to,
            "progress": vars(self.progress),
            "groups": optimizer["param_groups"],
            "schedule": self.schedule.state_dict(),
            "random": [random.getstate(), numpy_state()],
        }
        run.write_tensors("state.safetensors", tensors, meta)
        run.write_json("history.json", {"epochs": self.progress.history})
        run.write_tensors("model.safetensors", self.best or dict(weights), {})

    def load(self, run: Run) -> None:
        tensors, meta = run.read_tensors("state.safetensors")
        path = run.path / "state.safetensors"
        try:
            began = meta["belongs_to"]
            for name, value in self.belongs_to.items():
                if began.get(name, value) != value:  # a setting that it lacks was not there yet: it is the default
                    was = "other data" if name == "digest" else f"{name} {began[name]}, not {value}"
                    raise PlaitError(f"{path} was written with {was}: put back what the run began with.")
            self.best = with_prefix(tensors, "best.")
            if self.best:  # there are none before the first validation
                load_weights(self.task.model, self.best, path)
            load_weights(self.task.model, with_prefix(tensors, "model."), path)
            self.task.carry(with_prefix(tensors, "carried."))
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in with_prefix(tensors, "optimizer.").items():
                index, name = key.split(".", 1)
                state.setdefault(int(index), {})[name] = value
            for k, parameter in enumerate(self.task.model.parameters()):
                if any(t.dim() and t.shape != parameter.shape for t in state.get(k, {}).values()):
                    raise ValueError(f"the optimizer's numbers for parameter {k} have another shape")
            self.optimizer.load_state_dict({"state": state, "param_groups": meta["groups"]})
            self.optimizer._opt_called = True  # type: ignore[attr-defined]  # it has stepped, in the process before
            self.schedule.load_state_dict(meta["schedule"])
            self.progress = Progress.read(meta["progress"], len(self.task.sampler))
            restore_random(with_prefix(tensors, "random."), *meta["random"])
        except PlaitError:
            raise
        except WRONG as e:
            raise PlaitError(
                f"{path} lacks what a checkpoint of this run has ({type(e).__name__}: {e}): it belongs to another one."
            ) from None


def random_states() -> dict[str, Tensor]:
    return {"cpu": torch.get_rng_state(), **{f"cuda:{k}": s for k, s in enumerate(cuda_states())}}


def cuda_states() -> list[Tensor]:
    return list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else []


def numpy_state() -> dict[str, Any]:
    """As JSON can hold it."""
    state: dict[str, Any] = dict(np.random.get_state(legacy=False))
    return {**state, "state": {**state["state"], "key": state["state"]["key"].tolist()}}


def restore_random(devices: dict[str, Tensor], python: list[Any], numpy: dict[str, Any]) -> None:
    version, numbers, gauss = python
    random.setstate((version, tuple(numbers), gauss))
    numpy["state"]["key"] = np.array(numpy["state"]["key"], dtype=np.uint32)
    np.random.set_state(numpy)
    torch.set_rng_state(devices["cpu"])
    for k, _ in enumerate(cuda_states()):
        if f"cuda:{k}" in devices:
            torch.cuda.set_rng_state(devices[f"cuda:{k}"], k)
