"""What `plait train` does, and prints."""

import contextlib
import os
from typing import Any, Literal, NamedTuple

from .. import tasks
from ..errors import PlaitError, between, counted
from ..ranks.shape import Shape
from ..ranks.time import check_cuts
from ..ranks.world import find
from ..solvers import parse
from ..tasks.base import NamedTask, check_share
from ..tasks.results import write_results
from ..tasks.runs import mesh_of
from ..trainer import Trainer
from ..training.loop import Outcome
from ..training.run import Run, resume_command
from .output import Output

READ = ("data", "test_data", "features", "splits")  # options that name files and folders


class TrainArguments(NamedTuple):
    task: str
    options: dict[str, Any]
    given: set[str]  # those of the options that stood there
    out: str | None
    resume: str | None
    threads: int | None
    parallel: str | None
    timeout: float
    max_restarts: int
    json: str | None

    def output(self) -> Output:
        found = [self.options.get(name) for name in READ]
        return Output(self.json, [self.resume, *(path for path in found if isinstance(path, str))], makes=self.out)


def train_task(asked: TrainArguments) -> int:
    """By this process, by several that it starts, or as one of several -> the exit code"""
    between("max_restarts", asked.max_restarts, 0, 10**6)
    between("timeout", asked.timeout, 1, 10**6)
    shape = None if asked.parallel is None else Shape.parse(asked.parallel)
    world = find(os.environ)
    if world is not None:
        if asked.max_restarts and world.launcher != "plait":
            own = "give torchrun its own --max-restarts" if world.launcher == "torchrun" else "leave it out"
            raise PlaitError(f"--max-restarts {asked.max_restarts} is for ranks that plait itself starts: {own}.")
        from .train_ranks import join_and_train

        return join_and_train(world, asked)
    output = asked.output()
    if asked.resume is not None:
        config = Run.open(asked.resume).config(asked.task)
        shape = shape or mesh_of(config, asked.resume)
    else:
        tasks.get(asked.task).kind(**asked.options)  # refused once, not by every rank
        if shape is not None and shape.time > 1:
            check_cuts(shape.time, parse(asked.options["solver"]))
    if asked.max_restarts and (shape is None or shape.size == 1):
        raise PlaitError(f"--max-restarts {asked.max_restarts} goes with --parallel: leave it out.")
    if shape is not None and shape.size > 1:
        batch = str(asked.options["batch"])
        if asked.resume is None and batch.isdecimal():  # before any process is started
            check_share(int(batch), shape.data or 1)
        from .train_ranks import start_workers

        return start_workers(asked, shape, output)
    return train_alone(asked, output)


def train_alone(asked: TrainArguments, output: Output) -> int:
    if asked.resume is None:
        out: str | Literal[True] = True if asked.out is None else asked.out
        trainer = Trainer(asked.task, out=out, threads=asked.threads, progress=False, **asked.options)
    else:
        trainer = Trainer.resume(asked.resume, progress=False, **changes_of(asked))
    trainer.console = output.console
    with contextlib.suppress(KeyboardInterrupt):  # the exit code tells
        trainer.fit()
    assert isinstance(trainer.task, NamedTask)
    assert trainer.outcome is not None
    finish(trainer.run, trainer.task, trainer.outcome, trainer.evaluate(), output)
    return 130 if trainer.interrupted else 0


def changes_of(asked: TrainArguments) -> dict[str, Any]:
    changes = {name: asked.options[name] for name in asked.given}
    return changes | {name: v for name, v in (("out", asked.out), ("threads", asked.threads)) if v is not None}


def finish(run: Run, task: NamedTask, outcome: Outcome, metrics: dict[str, Any], output: Output) -> None:
    progress = outcome.progress
    pictures, history = write_results(run, task, progress.history, metrics)
    if outcome.interrupted:
        output.line(f"stopped in epoch {progress.epoch + 1} of {task.settings.epochs}")
    else:
        validated = progress.history[-1]["validation"] is not None
        best = f"; validation was best in {progress.best_epoch}" if validated else ""
        output.line(f"{counted(progress.epoch, 'epoch')} in {progress.seconds:.1f} s{best}")
    if progress.history and (share := progress.history[-1].get("parallel")) is not None:
        output.line(f"{share:.1%} of the training calls of layers were cut in time; what follows is an exact walk")
    output.titled(task.table(metrics))
    output.line()
    word, command = task.afterwards(run.path)
    width = max(7, len(word))
    for name in pictures:
        output.line(f"{'picture':<{width}}  {run.path / name}")
    if outcome.interrupted:
        output.line(f"{'go on':<{width}}  {resume_command(task.name, run.path)}")
    output.line(f"{word:<{width}}  {command}")
    output.result({"run": str(run.path), "interrupted": outcome.interrupted, **history})
