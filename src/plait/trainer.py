"""plait.Trainer: trains a task, or a model of the user's own; `plait train` in one process is this, with printing."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, Self

import torch
from rich.console import Console
from torch import nn
from torch.optim import Optimizer

from . import system, tasks
from .errors import PlaitError, between
from .tasks.base import NamedTask, Usable
from .tasks.given import about_model, settings_in, split, take_optimizer
from .tasks.own import Own
from .tasks.results import described, write_results
from .tasks.runs import mesh_of, open_run, stored_settings, trained
from .training import signals
from .training.conditions import Conditions
from .training.damaged_copies import history_of
from .training.loop import Outcome, keep_choices, train
from .training.memory_run import MemoryRun
from .training.randomness import Stream, seed_all
from .training.reporter import Reporter, Told, reporter
from .training.run import OWN, SAVED, Run, resume_command
from .training.settings import MOST_THREADS, TrainSettings, set_threads
from .training.tensors import load_weights

Row = dict[str, Any]  # an epoch of the history
Place = str | Path | Literal[True] | None
UNTRAINED = "there is no trained network: call fit() first."
RESUMED = ("threads", "out")  # may be given again, if they are the same


class Trainer:
    """Trains a task by its name, or any nn.Module.

        trainer = plait.Trainer("forecast", data="sales.csv", epochs=20, out="runs/sales")
        trainer = plait.Trainer(model, data=(x, y), loss=nn.functional.mse_loss, epochs=20)
        history = trainer.fit()

    options: those of `plait train TASK --help`, with _ for -; for a model of one's own, those of training (epochs,
        batch, optimizer, lr, clip, schedule, patience, seed ...).
    data, validation: for a task, as on the command line. For a model, a tuple of tensors (inputs ..., target), a
        Dataset, a list of samples, or a DataLoader.
    loss: of a model, called as loss(model(*inputs), target). Without it, the model returns the loss of a batch.
    optimizer: a name; for a model, also an Optimizer of torch with its parameters.
    out: the run folder to make, with checkpoints; True for runs/TASK-N. Without it, nothing is written before `save`.
    threads: of torch, while it trains.
    on_epoch: called after every epoch, with its row of the history.
    """

    task: Usable
    run: Run
    conditions: Conditions | None = None  # of a network that was loaded: as they are
    outcome: Outcome | None = None  # of the last `fit`
    is_loaded = False  # to be used, not to be trained

    def __init__(
        self,
        what: str | nn.Module,
        *,
        out: Place = None,
        threads: int | None = None,
        progress: bool = True,
        on_epoch: Callable[[Row], None] | None = None,
        **options: Any,
    ) -> None:
        self._prepare(progress, on_epoch)
        before = torch.get_num_threads()
        try:
            set_threads(threads)
            with self.stream.used():
                self.task, more = self._make(what, options)
            conditions = self.conditions = Conditions.here(self.task.model)
        finally:
            torch.set_num_threads(before)
        self.config = {"settings": self.settings.as_dict(), **conditions.as_dict(), **more}
        self.run = MemoryRun()
        if out is not None:
            self._check_exact()
            self.run = self._new_run(out)

    def _prepare(self, progress: bool, on_epoch: Callable[[Row], None] | None) -> None:
        self.console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True) if progress else None
        self.on_epoch, self.stream = on_epoch, Stream()
        self.metrics: dict[str, Any] | None = None
        self.optimizer: Optimizer | None = None
        self.new_config: dict[str, Any] | None = None  # that `fit` writes, of a run that goes on otherwise
        self.why_not: str | None = UNTRAINED  # why nothing can be asked of the network

    def _make(self, what: object, options: dict[str, Any]) -> tuple[Usable, dict[str, Any]]:
        """-> the task, and what else config.json says of it"""
        if isinstance(what, str):
            cls = tasks.get(what)
            return cls.read(cls.kind(**settings_in(options, cls.kind, f"task '{what}'"))), {}
        if not isinstance(what, nn.Module):
            known = ", ".join(tasks.TASKS)
            raise PlaitError(f"{what!r:.60} is neither a task nor a model: expected one of {known}, or an nn.Module.")
        own, rest = split(options)
        self.optimizer = take_optimizer(rest, what)
        settings = TrainSettings(**settings_in(rest, TrainSettings, "a model of your own"))
        seed_all(settings.seed)
        task = Own.to_train(what, settings, own, batch_given="batch" in rest)
        return task, about_model(what, self.optimizer)

    @classmethod
    def resume(
        cls,
        path: str | Path,
        model: nn.Module | None = None,
        *,
        progress: bool = True,
        on_epoch: Callable[[Row], None] | None = None,
        **options: Any,
    ) -> Self:
        """A run that `fit` goes on with, bit for bit as if it had never stopped; until then the network has the weights
        of its best epoch. options: what may change on the way (epochs, patience, save_every). A model of one's own is
        given again, with its data, loss and optimizer.
        """
        self, changes = cls.__new__(cls), dict(options)
        self._prepare(progress, on_epoch)
        run = Run.open(os.fspath(path))
        config = run.config()
        ranks = mesh_of(config, str(path))
        threads = changes.pop("threads", None) if ranks else None  # one process may have the threads of all ranks
        if config["task"] == OWN:
            self.task = self._own_again(run, config, model, changes)
        else:
            if model is not None:
                raise PlaitError(
                    f"{path} is a run of task '{config['task']}', which makes its own model: leave it out."
                )
            kind = tasks.get(config["task"]).kind
            with self.stream.used():
                run, self.task = open_run(os.fspath(path), None, settings_in(changes, kind, "a run", RESUMED))
        self.run, self.config = run, {**config, "settings": self.settings.as_dict()}
        if ranks:
            more = threads or min(system.cpus(), config["threads"] * ranks.size)
            between("threads", more, 1, MOST_THREADS)
            self.config |= {"threads": more, "parallel": None}
        if self.config != config:
            self.new_config = self.config
        self.conditions = Conditions.stored(self.config)
        signals.resume_command = resume_command(self.config["task"], run.path)
        self._take_weights()
        return self

    def _take_weights(self) -> None:
        """Those of the best epoch, to be used before `fit` goes on, which does without them and mends them."""
        path = self.run.path / "model.safetensors"
        try:
            load_weights(self.model, self.run.read_tensors(path.name)[0], path)
            finished = history_of(self.run)
            self.why_not = None if finished else f"{self.run.path} has no finished epoch yet: call fit() first."
        except PlaitError as e:
            self.why_not = str(e)

    def _own_again(self, run: Run, config: dict[str, Any], model: nn.Module | None, options: dict[str, Any]) -> Own:
        if model is None:
            raise PlaitError(f"{run.path} has a model of your own: give the model again, with its data and loss.")
        own, changes = split(options)
        self.optimizer = take_optimizer(changes, model)
        changes = settings_in(changes, TrainSettings, "a run", RESUMED)
        settings = stored_settings(run, config, TrainSettings, changes)
        task = Own.to_train(model, settings, own)
        task.check_exact()
        return task

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None) -> Self:
        """A trained network, to evaluate and predict with. A model of one's own is given, and gets its weights."""
        self = cls.__new__(cls)
        self._prepare(False, None)
        run = Run.open(os.fspath(path))
        self.config = run.config()
        if self.config["task"] == OWN:
            if model is None:
                raise PlaitError(f"{path} has a model of your own: give the model again, as in load(path, model).")
            self.task = Own(model, stored_settings(run, self.config, TrainSettings, None))
            load_weights(model, run.read_tensors("model.safetensors")[0], run.path / "model.safetensors")
        else:
            with self.stream.used():
                run, self.task = trained(os.fspath(path), NamedTask)  # type: ignore[type-abstract]
        self.run = run
        self.is_loaded, self.why_not = True, None
        return self

    # --- what it knows
    @property
    def model(self) -> nn.Module:
        return self.task.model

    @property
    def settings(self) -> Any:
        return self.task.settings

    @property
    def history(self) -> list[Row]:
        """A row for each epoch: epoch, loss, validation, lr, seconds, rate."""
        if self.outcome is not None:
            return self.outcome.progress.history
        return history_of(self.run) if self.run.begun else []

    @property
    def interrupted(self) -> bool:
        return self.outcome is not None and self.outcome.interrupted

    @property
    def path(self) -> Path | None:
        return self.run.path if self.run.is_folder else None

    # --- what it does
    def fit(self) -> list[Row]:
        """Trains to the end, or goes on with what was stopped; leaves in `model` the weights of the best epoch.

        Ctrl-C finishes the step and writes a checkpoint before KeyboardInterrupt is raised; a second one stops at once.
        """
        if self.is_loaded:
            raise PlaitError(f"{self.run.path} was loaded to be used: plait.Trainer.resume goes on with its training.")
        watcher = reporter(self.console, self.task.unit, self.task.shown) if self.console else Reporter()
        if self.on_epoch is not None:
            watcher = Told(watcher, self.on_epoch)
        with self._conditions(), self.stream.used():
            for line in described(self.task):
                watcher.say(line)
            options: dict[str, Any] = {"resume": self.run.begun, "optimizer": self.optimizer, "config": self.new_config}
            self.metrics, self.outcome, self.why_not = None, None, UNTRAINED
            self.outcome = train(self.task, self.settings, self.run, watcher, **options)
            self.new_config, self.why_not = None, None
        if self.outcome.interrupted:
            where = f"plait.Trainer.resume('{self.path}')" if self.path else "fit() of this trainer"
            raise KeyboardInterrupt(
                f"stopped in epoch {self.outcome.progress.epoch + 1}; everything is saved: go on with {where}"
            )
        return self.history

    def evaluate(self) -> dict[str, Any]:
        """How good it is on data that it was not trained on."""
        self._check_trained()
        if self.metrics is None:
            with self._conditions():
                self.metrics = self.task.evaluate()
        return self.metrics

    def predict(self, *args: Any, **options: Any) -> Any:
        """forecast: the next values, predict(steps=12). language: a text, predict(prompt="the"). classify: the classes
        of new sequences, predict("new.csv"). A model of one's own: its output, predict(x).
        """
        self._check_trained()
        with self._conditions():
            return self.task.predict(*args, **options)

    def save(self, out: Place = None) -> Path:
        """Writes what a task has to show: its evaluation and pictures. Makes the folder of the run, if it has none yet:
        runs/TASK-N, if none is named. `load` and `resume` read it.
        """
        if self.outcome is None:
            raise PlaitError("there is nothing to save: call fit() first.")
        if isinstance(self.run, MemoryRun):
            self._check_exact()
            kept, self.run = self.run, self._new_run(True if out is None else out)
            try:
                with self.run.locked():
                    for name in SAVED:
                        self.run.write(name, kept.content(name))
                    self.run.begin()
                    keep_choices(self.run)
            except BaseException:
                self.run = kept
                raise
        elif out is not None:
            raise PlaitError(f"out {out}: the run has a folder, {self.run.path}; call save() without a name.")
        if isinstance(self.task, NamedTask):
            write_results(self.run, self.task, self.history, self.evaluate())
        return self.run.path

    # --- how
    def _conditions(self) -> AbstractContextManager[None]:
        return nullcontext() if self.conditions is None else self.conditions.used()

    def _new_run(self, out: Place) -> Run:
        place = None if out is True or out is None else os.fspath(out)
        return Run.create(place, self.task.name, self.config, self.task.files())

    def _check_trained(self) -> None:
        if self.why_not is not None:
            raise PlaitError(self.why_not)

    def _check_exact(self) -> None:
        if isinstance(self.task, Own):
            self.task.check_exact()
