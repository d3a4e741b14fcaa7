"""What the commands do, and what they print."""

import dataclasses
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console

from . import cells, engines, signals, tasks
from . import check as ladder
from .cells.trace import trace
from .data import series
from .data.text import UNK
from .errors import PlaitError, between
from .kernels.threads import openmp, why_alone
from .tasks.base import NamedTask, Table
from .tasks.forecast import Forecast
from .tasks.language import Language
from .tasks.pictures import check_picture, forecast_picture
from .training.files import check_target, write_whole
from .training.loop import Outcome, train
from .training.progress import reporter
from .training.run import Run, go_on
from .training.tensors import load_weights

AnyTask = TypeVar("AnyTask", bound=NamedTask)


class Pipe(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read our lines has left (`| head`): no reason to lose a run."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Output:
    """Text for a person, JSON for a file; with --json - nothing but JSON."""

    def __init__(self, json_file: str | None) -> None:
        self.json_file = json_file
        self.console = Pipe(quiet=json_file == "-", highlight=False, markup=False, emoji=False, soft_wrap=True)
        if json_file is not None and json_file != "-":
            check_target(Path(json_file), f"--json {json_file}")

    def line(self, text: str = "") -> None:
        self.console.print(text)

    def text(self, text: str) -> None:
        """As it is, to the last character."""
        if not self.console.quiet:
            print(text)

    def table(self, header: list[str], rows: list[list[str]]) -> None:
        """Columns as wide as they need to be: the first to the left, the others, which are numbers, to the right."""
        widths = [max(len(row[k]) for row in [header, *rows]) for k in range(len(header))]
        for row in [header, *rows]:
            filled = [c.rjust(w) if k else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))]
            self.line("  ".join(filled).rstrip())

    def result(self, value: dict[str, Any]) -> None:
        text = json.dumps(value, indent=1, allow_nan=False)
        if self.json_file == "-":
            print(text)
        elif self.json_file is not None:
            write_whole(Path(self.json_file), (text + "\n").encode())


def set_threads(threads: int | None) -> int:
    if threads is not None:
        between("threads", threads, 1, 4096)
        torch.set_num_threads(threads)
    return torch.get_num_threads()


# --- train, evaluate -------------------------------------------------------------------------------------------------
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


def open_run(path: str, task: str | None = None, changes: dict[str, Any] | None = None) -> tuple[Run, NamedTask]:
    """A run and its task, with the settings, the data and the threads it was started with, but for the changes."""
    run = Run.open(path)
    config = run.config(task)
    cls = tasks.get(config["task"])
    try:
        settings = cls.kind(**config["settings"])
        stored = {**settings.as_dict(), "threads": config["threads"]}
    except PlaitError as e:
        raise PlaitError(f"{path}/config.json has settings that make no sense: {e}") from None
    except (TypeError, KeyError, ValueError, OverflowError) as e:
        raise PlaitError(f"{path}/config.json has settings that this version does not know: {e}.") from None
    run.check(config)
    if changes is not None:
        settings = dataclasses.replace(settings, **allowed(changes, stored, settings.free(), path))
        set_threads(config["threads"])  # the last bit of a sum depends on their number
    opened = cls.reopen(settings, run.path, training=changes is not None)
    if changes:
        with run.locked():  # not while another process trains it
            run.write_config({**config, "settings": settings.as_dict()})
    return run, opened


def allowed(changes: dict[str, Any], stored: dict[str, Any], free: set[str], path: str) -> dict[str, Any]:
    for name, value in changes.items():
        if name not in free and value != stored.get(name):
            was = f"the run has {stored[name]}" if name in stored else "the run has a folder"
            raise PlaitError(
                f"--{name.replace('_', '-')} {value}: {was}, and --resume goes on with what {path} began with; "
                "leave the option out, or start a new run."
            )
    return {name: value for name, value in changes.items() if name in free}


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
        output.line(
            f"{progress.epoch} epochs in {progress.seconds:.1f} s; validation was best in {progress.best_epoch}"
        )
    print_table(task.table(metrics), output)
    output.line()
    word, command = task.afterwards(run.path)
    width = max(7, len(word))
    for name in pictures:
        output.line(f"{'picture':<{width}}  {run.path / name}")
    if outcome.interrupted:
        output.line(f"{'go on':<{width}}  {go_on(task.name, run.path)}")
    output.line(f"{word:<{width}}  {command}")
    output.result({"run": str(run.path), "interrupted": outcome.interrupted, **history})


def print_table(table: Table, output: Output) -> None:
    output.line()
    output.line(table.title)
    output.table(table.header, table.rows)


def trained(path: str, kind: type[AnyTask]) -> tuple[Run, AnyTask]:
    """A run and its task with the weights to use."""
    run, task = open_run(path, None if kind is NamedTask else kind.name)
    assert isinstance(task, kind)
    weights, _ = run.read_tensors("model.safetensors")
    load_weights(task.model, weights, run.path / "model.safetensors")
    return run, task


def evaluate(path: str, output: Output, threads: int | None) -> None:
    set_threads(threads)
    _, task = trained(path, NamedTask)  # type: ignore[type-abstract]
    metrics = task.evaluate()
    if isinstance(task, Forecast):
        output.line(f"data {task.data.name}, column '{task.data.column}'")
    print_table(task.table(metrics), output)
    output.result(metrics)


def forecast(path: str, steps: int, data: str | None, picture: str | None, output: Output, threads: int | None) -> None:
    set_threads(threads)
    between("steps", steps, 1, 100_000)
    target = check_picture(picture) if picture is not None else Path(path) / "future.png"
    _, task = trained(path, Forecast)
    source = task.data if data is None else series.read(data, task.settings.column, task.settings.missing)
    if task.scale.log and not (source.values > 0).all():
        raise PlaitError(f"{source.name} has values that are not positive, and the run learned logarithms: train anew.")
    ahead = task.ahead(source.values, steps)
    labels = source.labels_ahead(steps)
    lines = [(f"{task.settings.cell}, the next {steps}", ahead, "tab:blue -")]
    write_whole(target, forecast_picture(source, lines, len(source.values), [*source.labels, *labels], task.season))
    width = max(len(label) for label in labels)
    for label, value in zip(labels, ahead, strict=True):
        output.line(f"{label:>{width}}  {value:,.6g}")
    output.line(f"data     {source.name}, column '{source.column}'")
    output.line(f"picture  {target}")
    output.result({"column": source.column, "labels": labels, "values": ahead.tolist(), "picture": str(target)})


def generate(path: str, prompt: str, output: Output, threads: int | None, seed: int, **options: Any) -> None:
    set_threads(threads)
    _, task = trained(path, Language)
    unknown = task.unknown(prompt)
    if unknown:
        print(f"plait: not in the vocabulary, read as {UNK}: {' '.join(unknown)}", file=sys.stderr)
    text = task.generate(prompt, seed=seed, **options)
    output.text(text)
    output.result({"prompt": prompt, "text": text})


# --- engines, equations, check, bench ----------------------------------------------------------------------------
def list_engines(output: Output) -> None:
    device, rows = torch.device("cpu"), []
    for name in engines.names():
        engine = engines.get(name)
        reasons = {engine.why_not(cell, torch.float32, device) for cell in cells.CELLS.values()} - {None}
        rows.append({"engine": name, "about": engine.about, "why_not": " ".join(sorted(map(str, reasons))) or None})
    took = engines.choose("auto", cells.get("lstm"), torch.float32, device)
    width = max(len(row["engine"] or "") for row in rows)
    for row in rows:
        output.line(
            f"{row['engine']:<{width}}  {row['about']}" + (f"; not here: {row['why_not']}" if row["why_not"] else "")
        )
    output.line(f"{'auto':<{width}}  takes {took} here (float32, CPU, {torch.get_num_threads()} threads)")
    runtime = openmp()
    output.line(f"{'threads':<{width}}  {f'of {runtime.path}, as torch' if runtime else why_alone()}")
    output.result({"engines": rows, "auto": took, "openmp": runtime.path if runtime else None})


def equations(cell: str, dt: float, output: Output) -> None:
    c = cells.get(cell)
    between("dt", dt, 1e-6, 1e6)
    try:
        traced = trace(c, dt)
    except ValueError as e:
        raise PlaitError(str(e)) from None
    output.line("\n".join(line.strip() for line in (c.__doc__ or "").strip().splitlines()))
    output.line()
    output.line(traced.step)
    output.line(traced.vjp.rstrip())
    output.result({"cell": cell, "dt": dt, "step": traced.step, "vjp": traced.vjp})


def check(seed: int, output: Output, threads: int | None) -> int:
    """0 if the ladder holds, else 1."""
    set_threads(threads)
    rows = []
    for rung in ladder.ladder(seed):
        if isinstance(rung, ladder.Skipped):
            output.line(f"{rung.rung}  {rung.what}: skipped, {rung.why}")
        else:
            mark = "ok" if rung.holds else "FAILED"
            output.line(f"{rung.rung}  {rung.what:<52} {rung.deviation:8.1e} <= {rung.tolerance:.0e}  {mark}")
        rows.append({**dataclasses.asdict(rung), "holds": rung.holds})
    held, failed = (sum(row["holds"] is value for row in rows) for value in (True, False))
    output.line(f"{held} of {held + failed} hold")
    output.result({"seed": seed, "rungs": rows})
    return 1 if failed else 0


def bench(name: str, output: Output, threads: int | None, **options: Any) -> None:
    """A benchmark is a module of bench with one `measure`."""
    from .bench import report

    set_threads(threads)
    report.show(import_module(f".bench.{name}", __package__).measure(**options), output)
