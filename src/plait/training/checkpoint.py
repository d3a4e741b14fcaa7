"""Everything that a run needs to go on to the very same weights: model, optimizer, random states, position, history."""

import itertools
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import solvers
from ..errors import PlaitError
from . import randomness
from .crew import Crew
from .run import Run
from .task import Task
from .tensors import load_weights, loads, with_prefix

# What each of torch's optimizers has for a parameter, once it has stepped.
ADAM = {"step", "exp_avg", "exp_avg_sq"}
OPTIMIZER_STATE = {"SGD": {"momentum_buffer"}, "Adam": ADAM, "AdamW": ADAM}


@dataclass
class Progress:
    """`position` counts the steps done in the epoch under way."""

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
        progress = cls(**value)
        whole = progress.epoch, progress.position, progress.count, progress.best_epoch
        numbers = progress.loss, progress.seconds, 0.0 if progress.best is None else progress.best
        rows = [(row["epoch"], row["loss"], row["seconds"], row["validation"] or 0.0) for row in progress.history]
        fits = all(type(n) is int and n >= 0 for n in whole) and len(rows) == progress.epoch >= progress.best_epoch
        fits = fits and progress.position <= steps and (progress.count > 0) == (progress.position > 0)
        if not fits or type(progress.history) is not list or not all(map(finite, (*numbers, *itertools.chain(*rows)))):
            raise ValueError("its progress makes no sense")
        return progress


@dataclass
class State:
    task: Task
    optimizer: torch.optim.Optimizer
    schedule: Any
    progress: Progress
    best: dict[str, Tensor] = field(default_factory=dict)  # the weights of the best epoch
    belongs_to: dict[str, Any] = field(default_factory=dict)  # settings and data
    # of several processes, once they have been collected
    carried: dict[str, Tensor] | None = None  # what all of them hand on to the next step, together
    random: dict[str, Tensor] = field(default_factory=dict)  # of ranks 1, 2, ...: cpu@1, cpu@2
    solvers: dict[str, Tensor] = field(default_factory=dict)  # of ranks 1, 2, ...: 1.name

    def save(self, run: Run) -> None:
        weights = self.task.model.state_dict()
        tensors: dict[str, Tensor] = {f"model.{k}": v for k, v in weights.items()}
        carried = self.task.carried() if self.carried is None else self.carried
        tensors |= {f"carried.{k}": v for k, v in carried.items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        tensors |= {f"random.{device}": state for device, state in randomness.device_states().items()}
        tensors |= {f"random.{rank}": state for rank, state in self.random.items()}
        learnt = {f"0.{k}": t for k, t in solvers.state(self.task.model).items()} | self.solvers
        tensors |= {f"solver.{k}": t for k, t in learnt.items()}
        self.check_optimizer()
        optimizer = self.optimizer.state_dict()
        for index, values in optimizer["state"].items():
            tensors |= {f"optimizer.{index}.{k}": v for k, v in values.items() if v is not None}
        meta = {
            "belongs_to": self.belongs_to,
            "progress": vars(self.progress),
            "groups": optimizer["param_groups"],
            "schedule": self.schedule.state_dict(),
            "random": [random.getstate(), randomness.numpy_state()],
        }
        run.write_tensors("state.safetensors", tensors, meta)
        run.write_json("history.json", {"epochs": self.progress.history})
        run.write_tensors("model.safetensors", self.best or dict(weights), {})

    def check_optimizer(self) -> None:
        """What it keeps is known once it has stepped."""
        for values in self.optimizer.state_dict()["state"].values():
            for key, value in values.items():
                if not isinstance(value, Tensor) and value is not None:
                    name, kind = type(self.optimizer).__name__, type(value).__name__
                    raise PlaitError(
                        f"optimizer {name} keeps {key!r}, of type {kind}, and a checkpoint holds tensors alone: "
                        "use another."
                    )

    def load(self, run: Run | None, crew: Crew) -> None:
        path = (run.path if run else Path()) / "state.safetensors"
        tensors, meta = loads(path, crew.broadcast(lambda: run.content(path.name) if run else b""))
        try:
            began = {**self.belongs_to, **meta["belongs_to"]}  # a new setting has its default
            for name, value in self.belongs_to.items():
                if began[name] != value:
                    was = "other data" if name == "digest" else f"{name} {began[name]}, not {value}"
                    raise PlaitError(f"{path} was written with {was}: put back what the run began with.")
            self.best = with_prefix(tensors, "best.")
            if self.best:  # there are none before the first validation
                load_weights(self.task.model, self.best, path)
            load_weights(self.task.model, with_prefix(tensors, "model."), path)
            self.task.carry(with_prefix(tensors, "carried."))
            self.solvers = with_prefix(tensors, "solver.")
            mine, first = (with_prefix(self.solvers, f"{rank}.") for rank in (crew.rank, crew.like_rank))
            alike = {k: t for k, t in first.items() if ".number." in k}
            solvers.load_state(self.task.model, {k: t for k, t in mine.items() if ".number." not in k} | alike)
            self.solvers = {k: t for k, t in self.solvers.items() if not k.startswith("0.")}
            self.load_optimizer(with_prefix(tensors, "optimizer."), meta["groups"])
            self.load_schedule(meta["schedule"])
            self.progress = Progress.read(meta["progress"], len(self.task.sampler))
            states = with_prefix(tensors, "random.")
            self.random = {name: t for name, t in states.items() if "@" in name}
            randomness.restore(states, *meta["random"])
        except PlaitError:
            raise
        except (KeyError, TypeError, ValueError) as e:
            raise PlaitError(
                f"{path} lacks what a checkpoint of this run has ({type(e).__name__}: {e}): it belongs to another one."
            ) from None

    def load_optimizer(self, tensors: dict[str, Tensor], groups: list[dict[str, Any]]) -> None:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        names = OPTIMIZER_STATE.get(type(self.optimizer).__name__)  # None: of the user's own, not known
        if names and self.optimizer.defaults.get("amsgrad"):
            names = names | {"max_exp_avg_sq"}
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            index, name = key.split(".", 1)
            state.setdefault(int(index), {})[name] = value
        for k, found in state.items():
            if not 0 <= k < len(parameters) or (names is not None and found.keys() != names):
                raise ValueError(f"its optimizer has {', '.join(found)} for parameter {k}")
            for t in found.values() if names is not None else ():
                like = parameters[k]
                if not (t.shape == like.shape and t.dtype == like.dtype if t.dim() else t.is_floating_point()):
                    raise ValueError(f"the optimizer's numbers for parameter {k} have another shape")
        # The learning rate is where the schedule has brought it; all else is as the settings say.
        own = json.loads(json.dumps(self.optimizer.state_dict()["param_groups"]))
        for group, expected in zip(groups, own, strict=True):
            wrong = [] if finite(group["lr"]) and group["lr"] >= 0 else ["lr"]
            wrong += [name for name, value in expected.items() if name != "lr" and group[name] != value]
            if wrong:
                raise ValueError(f"its optimizer has {wrong[0]} {group[wrong[0]]!r:.40}")
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        loaded = self.optimizer.state_dict()["state"]
        for k, found in state.items():
            for name, t in found.items():  # torch casts to the dtype of the parameter
                if loaded[k][name].dtype != t.dtype or not torch.equal(loaded[k][name].cpu(), t):
                    raise ValueError(f"its optimizer does not take back {name} of parameter {k} as it was")
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # it has stepped, in the process before

    def load_schedule(self, found: dict[str, Any]) -> None:
        own = self.schedule.state_dict()
        for name, value in own.items():
            if not alike(found[name], value):
                raise ValueError(f"its schedule has {name} {found[name]!r:.40}")
        self.schedule.load_state_dict({name: found[name] for name in own})


def finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def alike(found: Any, own: Any) -> bool:
    if isinstance(own, list | tuple):
        return isinstance(found, list) and len(found) == len(own) and all(map(alike, found, own))
    if type(own) in (int, float):
        return type(found) in (int, float) and found == found and (type(own) is float or type(found) is int)
    return bool(found == own)
