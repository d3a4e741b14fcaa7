"""What is done with a trained network, and printed: evaluate, forecast, generate."""

import sys
from pathlib import Path
from typing import Any

from ..data import series
from ..data.text import UNK
from ..errors import PlaitError, between
from ..tasks.base import NamedTask
from ..tasks.forecast import Forecast
from ..tasks.language import Language
from ..tasks.pictures import check_picture, forecast_picture
from ..training.files import write_whole
from .options import set_threads
from .output import Output
from .runs import trained


def evaluate(path: str, output: Output, threads: int | None) -> None:
    set_threads(threads)
    _, task = trained(path, NamedTask)  # type: ignore[type-abstract]
    metrics = task.evaluate()
    if isinstance(task, Forecast):
        output.line(f"data {task.data.name}, column '{task.data.column}'")
    output.titled(task.table(metrics))
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
