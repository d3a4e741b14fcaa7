"""What `plait train` does, and prints."""

import os
from typing import Any, NamedTuple

import torch

from .. import cells, engines, tasks
from ..errors import PlaitError, between, counted
from ..kernels.emit.target import Form
from ..kernels.launch import costs
from ..kernels.launch.schedule import DEFAULT
from ..ranks.shape import Shape
from ..ranks.time import check_cuts
from ..ranks.world import find
from ..solvers import parse
from ..tasks.base import NamedTask, check_share
from ..training import signals
from ..training.loop import Outcome, train
from ..training.reporter import reporter
from ..training.run import Run, resume_command
from ..training.settings import set_threads
from .output import Output
from .runs import open_run


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
        reads = (self.resume, self.options.get("data"), self.options.get("test_data"))
        return Output(self.json, reads, makes=self.out)


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


def mesh_of(config: dict[str, Any], path: str) -> Shape | None:
    found = config.get("parallel")
    try:
        return Shape.parse(found["mesh"]) if found else None
    except (KeyError, TypeError, AttributeError, PlaitError):
        raise PlaitError(
            f"{path}/config.json has a mesh that makes no sense ({found!r:.40}): restore it from a copy."
        ) from None


def train_alone(asked: TrainArguments, output: Output) -> int:
    name, options = asked.task, asked.options
    if asked.resume is None:
        cls = tasks.get(name)
        settings = cls.kind(**options)
        used = set_threads(asked.threads)
        task = cls.read(settings)
        config = {"settings": task.settings.as_dict(), "threads": used, **costs_of(task)}
        run: Run = Run.create(asked.out, name, config, task.files())
    else:
        changes = changes_of(asked)
        ranks = mesh_of(Run.open(asked.resume).config(name), asked.resume)
        if ranks is not None:  # one process may have the threads of all ranks
            changes.pop("threads", None)
        run, task = open_run(asked.resume, name, changes)
        if ranks is not None:
            used = set_threads(asked.threads or min(os.cpu_count() or 1, torch.get_num_threads() * ranks.size))
            with run.locked():
                run.write_config({**run.config(), "threads": used, "parallel": None})
        signals.resume_command = resume_command(name, run.path)
    describe(task, output)
    watcher = reporter(output.console, task.unit, task.shown)
    outcome = train(task, task.settings, run, watcher, resume=asked.resume is not None)
    finish(run, task, outcome, task.evaluate(), output)
    return 130 if outcome.interrupted else 0


def costs_of(task: NamedTask) -> dict[str, Any]:
    """What a run of the fused engine keeps: costs decide the order of some sums."""
    s = task.settings
    if engines.choose(s.engine, cells.get(s.cell), torch.float32, torch.device("cpu")) != "fused":
        return {}
    form = Form(cells.get(s.cell), 1, DEFAULT.target(False))
    return {"costs": costs.of_this_process(form)._asdict()}


def changes_of(asked: TrainArguments) -> dict[str, Any]:
    changes = {name: asked.options[name] for name in asked.given}
    return changes | {name: v for name, v in (("out", asked.out), ("threads", asked.threads)) if v is not None}


def describe(task: NamedTask, output: Output) -> None:
    s, parameters = task.settings, sum(p.numel() for p in task.model.parameters())
    engine = engines.choose(s.engine, cells.get(s.cell), torch.float32, torch.device("cpu"))
    chosen = f"{engine} (auto)" if s.engine == "auto" else engine
    *data, model = task.about()
    for line in [*data, f"{model}, {parameters:,} parameters"]:
        output.line(line)
    solver = "" if s.solver == "serial" else f", solver {s.solver}"
    output.line(f"engine {chosen}, {counted(torch.get_num_threads(), 'thread')}{solver}")


def finish(run: Run, task: NamedTask, outcome: Outcome, metrics: dict[str, Any], output: Output) -> None:
    progress = outcome.progress
    pictures = task.pictures(metrics, progress.history)
    for name, content in pictures.items():
        run.write(name, content)
    history = {"epochs": progress.history, "test": metrics}
    run.write_json("history.json", history)
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
