"""The training loop: one for all tasks."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from .. import solvers
from ..errors import PlaitError, counted
from ..layers import cuda_choice, packed
from .checkpoint import Progress, State
from .crew import Alone, Crew, Wishes
from .damaged_copies import check_copies
from .reporter import Reporter
from .run import Run
from .settings import TrainSettings
from .signals import Interrupt
from .task import Task


@dataclass(frozen=True)
class Outcome:
    progress: Progress
    interrupted: bool


def train(
    task: Task,
    settings: TrainSettings,
    run: Run | None = None,
    reporter: Reporter | None = None,
    *,
    resume: bool = False,
    crew: Crew | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    config: dict[str, Any] | None = None,
) -> Outcome:
    """Leaves in task.model the weights of the best epoch. optimizer: in place of the one that the settings name
    config: of a run that is resumed, if it is another one from now on
    """
    crew = crew or Alone()
    if resume and run is None and crew.is_first:
        raise ValueError("resume needs the run to go on with.")
    named = optimizer is None
    optimizer = optimizer or settings.make_optimizer(task.model)
    state = State(task, optimizer, settings.make_schedule(optimizer), Progress())
    state.belongs_to = {"digest": task.digest, **settings.fixed()}
    if not named:
        state.belongs_to["optimizer"] = type(optimizer).__name__
    with Interrupt() as interrupt, run.locked() if run else nullcontext():
        loop = Loop(task, settings, run, reporter or Reporter(), state, interrupt, crew)
        if resume:
            if run:
                take_choices(run)
            state.load(run, crew)
            if run and run.is_folder:
                check_copies(run, task.model.state_dict(), state.progress.history)
            if run and config is not None:
                run.write_config({**run.config(), **config})
        crew.restore(state)
        if not resume:
            loop.save()
            if run:
                crew.announce(run)
                run.begin()
        if run:
            crew.announce(run)
        loop.say_where()
        loop.train()
    if state.best:
        task.model.load_state_dict(state.best)
    return Outcome(state.progress, interrupted=not loop.done)


class Loop:
    def __init__(
        self,
        task: Task,
        settings: TrainSettings,
        run: Run | None,
        reporter: Reporter,
        state: State,
        interrupt: Interrupt,
        crew: Crew,
    ) -> None:
        self.task, self.settings, self.run, self.reporter, self.crew = task, settings, run, reporter, crew
        self.sampler, self.state, self.interrupt = task.sampler, state, interrupt
        self.parameters = [p for p in task.model.parameters() if p.requires_grad]
        self.saved = self.now = time.perf_counter()  # when it was saved, and when the last step ended
        self.stopped = False  # a signal has asked for it

    def say_where(self) -> None:
        progress, settings, say = self.state.progress, self.settings, self.reporter.say
        if self.run and self.run.is_folder:
            say(f"run {self.run.path}")
        if self.done:
            say(f"nothing is left to do: {' '.join(self.why_done())}")
        elif progress.epoch or progress.position:
            steps = f", after {progress.position} of its {len(self.sampler)} steps" if progress.position else ""
            say(f"goes on in epoch {progress.epoch + 1} of {settings.epochs}{steps}")

    def why_done(self) -> Iterator[str]:
        progress, settings = self.state.progress, self.settings
        if progress.epoch >= settings.epochs:
            more = "give more --epochs" if "epochs" in settings.free() else "start a new run for more"
            yield f"all its epochs ({settings.epochs}) are done; {more}."
        if self.tired:
            without = progress.epoch - progress.best_epoch
            yield f"no better validation for {counted(without, 'epoch')}; give a larger --patience, or 0."

    def train(self) -> None:
        progress, steps = self.state.progress, len(self.sampler)
        self.reporter.start(
            progress.epoch * steps + progress.position, self.settings.epochs * steps, self.settings.epochs
        )
        try:
            while not self.done and not self.stopped:
                if self.epoch():
                    self.finish_epoch()
        finally:
            self.reporter.stop()
        self.save()

    @property
    def tired(self) -> bool:
        progress, patience = self.state.progress, self.settings.patience
        return patience > 0 and progress.epoch - progress.best_epoch >= patience

    @property
    def done(self) -> bool:
        return self.tired or self.state.progress.epoch >= self.settings.epochs

    def save(self) -> None:
        self.crew.collect(self.state)
        if self.run is None:
            return
        if not all(p.isfinite().all() for p in self.task.model.parameters()):
            raise diverged("a weight", float("nan"), self.state.progress, self.run)
        keep_choices(self.run)
        self.state.save(self.run)
        self.saved = time.perf_counter()

    def wish(self) -> Wishes:
        is_due = self.run is not None and self.now - self.saved >= self.settings.save_every
        return Wishes(self.interrupt.asked, is_due)

    def epoch(self) -> bool:
        """The rest of an epoch. False if the user asked to stop before its end."""
        task, state, settings, crew = self.task, self.state, self.settings, self.crew
        progress, optimizer = state.progress, state.optimizer
        began, already, counted = time.perf_counter(), progress.seconds, 0
        task.model.train()
        for indices in self.sampler.batches(progress.epoch, progress.position):
            value, count, wishes = crew.step(task, indices, self.wish)
            if not math.isfinite(value):
                raise diverged("the loss", value, progress, self.run)
            if settings.clip:
                norm = crew.clip(self.parameters, settings.clip)
                if not math.isfinite(norm):
                    raise diverged("the gradient", norm, progress, self.run)
            with warming(optimizer, settings.warmup, progress.epoch * len(self.sampler) + progress.position):
                crew.update(optimizer)
            if self.run is not None and progress.epoch == progress.position == 0:
                state.check_optimizer()
            progress.position += 1
            progress.loss += value * count
            progress.count += count
            counted += count
            now = self.now = time.perf_counter()
            progress.seconds = already + now - began
            self.reporter.step(progress.epoch + 1, progress.loss / progress.count, counted / (now - began))
            if wishes.save:
                self.save()
            if wishes.stop:
                self.stopped = True
                if progress.position < len(self.sampler):
                    return False
        return True

    def finish_epoch(self) -> None:
        task, state, settings, progress = self.task, self.state, self.settings, self.state.progress
        task.model.eval()
        with torch.no_grad(), packed(task.model):
            validation = self.crew.validate(task, state)
        if validation is not None and not math.isfinite(validation):
            raise diverged("the validation", validation, progress, self.run)
        loss = progress.loss / progress.count
        since = progress.history[-1]["seconds"] if progress.history else 0.0
        row = {
            "epoch": progress.epoch + 1,
            "loss": loss,
            "validation": validation,
            "lr": state.optimizer.param_groups[0]["lr"],
            "seconds": progress.seconds,
            "rate": progress.count / max(1e-9, progress.seconds - since),
            **task.figures(),
        }
        if (share := solvers.share(task.model)) is not None:
            row["parallel"] = share  # of all training calls so far, those that were cut in time
        progress.history.append(row)
        progress.epoch, progress.position, progress.loss, progress.count = progress.epoch + 1, 0, 0.0, 0
        measure = loss if validation is None else validation
        state.schedule.step(*([measure] if settings.schedule == "plateau" else []))
        if progress.best is None or measure < progress.best:
            progress.best, progress.best_epoch = measure, progress.epoch
            state.best = {k: v.detach().clone() for k, v in task.model.state_dict().items()}
        self.reporter.epoch(row)


@contextmanager
def warming(optimizer: torch.optim.Optimizer, warmup: int, done: int) -> Iterator[None]:
    """A lower learning rate in the first `warmup` steps."""
    if done >= warmup:
        yield
        return
    full = [group["lr"] for group in optimizer.param_groups]
    for group, lr in zip(optimizer.param_groups, full, strict=True):
        group["lr"] = lr * (done + 1) / warmup
    try:
        yield
    finally:
        for group, lr in zip(optimizer.param_groups, full, strict=True):
            group["lr"] = lr


def diverged(what: str, value: float, progress: Progress, run: Run | None) -> PlaitError:
    where = f"epoch {progress.epoch + 1}, after {progress.position} steps of it"
    left = f" The last good checkpoint is in {run.path}." if run and run.begun else ""
    return PlaitError(f"{what} became {value} in {where}: lower --lr, or set --clip.{left}")


__all__ = ["Outcome", "Task", "train"]


def keep_choices(run: Run) -> None:
    """The engines that were chosen for CUDA, before the checkpoint that was computed with them. A run that was made in
    Python may have no config.json.
    """
    chosen = cuda_choice.CHOICES
    if (
        chosen
        and run.is_folder
        and (run.folder / "config.json").is_file()
        and (config := run.config()).get("engines") != chosen
    ):
        run.write_config({**config, "engines": dict(chosen)})


def take_choices(run: Run) -> None:
    found = run.config().get("engines", {}) if run.is_folder and (run.folder / "config.json").is_file() else {}
    if not isinstance(found, dict) or not all(engine in ("cuda", "torch") for engine in found.values()):
        raise PlaitError(f"config.json has engines {found!r:.60}: expected 'cuda' or 'torch' for each shape.")
    cuda_choice.CHOICES.update(found)
