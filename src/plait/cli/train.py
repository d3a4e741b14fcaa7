"""What `plait train` does, and prints."""

from typing import Any

import torch

from .. import cells, engines, tasks
from ..tasks.base import NamedTask
from ..training import signals
from ..training.loop import Outcome, train
from ..training.reporter import reporter
from ..training.run import Run, go_on
from .options import set_threads
from .output import Output
from .runs import open_run


def train_task(
    name: str,
    options: dict[str, Any],
    given: set[str],
    out: str | None,
    resume: str | None,
    output: Output,
    threads: int | None,
) -> None:
    if resume is None:
        cls = tasks.get(name)
        settings = cls.kind(**options)
        used = set_threads(threads)
        task = cls.read(settings)
        run: Run = Run.create(out, name, {"settings": settings.as_dict(), "threads": used}, task.files())
    else:
        changes = {name: options[name] for name in given}
        changes |= {name: value for name, value in (("out", out), ("threads", threads)) if value is not None}
        run, task = open_run(resume, name, changes)
        signals.go_on = go_on(name, run.path)
    describe(task, output)
    watcher = reporter(output.console, task.unit, task.shown)
    outcome = train(task, task.settings, run, watcher, resume=resume is not None)
    finish(run, task, outcome, task.evaluate(), output)
    if outcome.interrupted:
        raise SystemExit(130)


def describe(task: NamedTask, output: Output) -> None:
    s, parameters = task.settings, sum(p.numel() for p in task.model.parameters())
    engine = engines.choose(s.engine, cells.get(s.cell), torch.float32, torch.device("cpu"))
    chosen = f"{engine} (auto)" if s.engine == "auto" else engine
    *data, model = task.about()
    threads = torch.get_num_threads()
    for line in [*data, f"{model}, {parameters:,} parameters"]:
        output.line(line)
    output.line(f"engine {chosen}, {threads} thread{'s' if threads > 1 else ''}")


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
        output.line(f"{progress.epoch} epochs in {progress.seconds:.1f} s{best}")
    output.titled(task.table(metrics))
    output.line()
    word, command = task.afterwards(run.path)
    width = max(7, len(word))
    for name in pictures:
        output.line(f"{'picture':<{width}}  {run.path / name}")
    if outcome.interrupted:
        output.line(f"{'go on':<{width}}  {go_on(task.name, run.path)}")
    output.line(f"{word:<{width}}  {command}")
    output.result({"run": str(run.path), "interrupted": outcome.interrupted, **history})
