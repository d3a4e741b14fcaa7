"""What is done with a trained network, and printed: evaluate, forecast, generate, classify."""

import csv
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ..data.text import UNK
from ..errors import between
from ..tasks.base import NamedTask
from ..tasks.classify import Classify
from ..tasks.forecast import MOST_STEPS, Forecast
from ..tasks.language import Language
from ..tasks.pictures import check_picture, forecast_picture
from ..tasks.runs import trained
from ..tasks.scores import percent
from ..training.files import check_target, write_whole
from ..training.settings import set_threads
from .output import Output


def evaluate(path: str, output: Output, threads: int | None) -> None:
    set_threads(threads)
    _, task = trained(path, NamedTask)  # type: ignore[type-abstract]
    metrics = task.evaluate()
    output.line(task.about()[0])
    output.titled(task.table(metrics))
    output.result(metrics)


def forecast(path: str, steps: int, data: str | None, picture: str | None, output: Output, threads: int | None) -> None:
    set_threads(threads)
    between("steps", steps, 1, MOST_STEPS)
    target = check_picture(picture) if picture is not None else Path(path) / "future.png"
    _, task = trained(path, Forecast)
    source = task.source(data)
    ahead = task.ahead(source.values, steps)
    labels = source.labels_ahead(steps)
    lines = [(f"{task.settings.cell}, the next {steps}", ahead, "tab:blue -")]
    write_whole(target, forecast_picture(source, lines, len(source.values), [*source.labels, *labels], task.season))
    width = max(len(label) for label in labels)
    for label, value in zip(labels, ahead, strict=True):
        output.line(f"{label:>{width}}  {value:,.6g}")
    output.line(f"data     {source.name}{source.notes}, column '{source.column}'")
    output.line(f"picture  {target}")
    output.result({"column": source.column, "labels": labels, "values": ahead.tolist(), "picture": str(target)})


def generate(path: str, prompt: str, output: Output, threads: int | None, seed: int, **options: Any) -> None:
    set_threads(threads)
    _, task = trained(path, Language)
    text = task.generate(prompt, seed=seed, **options)
    if unknown := task.unknown(prompt):
        print(f"plait: not in the vocabulary, read as {UNK}: {' '.join(unknown)}", file=sys.stderr)
    output.text(text)
    output.result({"prompt": prompt, "text": text})


def classify(
    path: str, data: str, out: str | None, changes: dict[str, Any], output: Output, threads: int | None
) -> None:
    """changes: settings of the run that are other ones for these data."""
    set_threads(threads)
    target = None if out is None else Path(out)
    if target is not None:
        check_target(target, f"--out {out}")
    _, task = trained(path, Classify)
    classes = task.data.classes
    found, probabilities = task.read_and_judge(data, changes)
    best = probabilities.argmax(1)
    rows = [
        [name, classes[k], percent(p[k])] for name, k, p in zip(found.names, best.tolist(), probabilities, strict=True)
    ]
    output.table(["sequence", "class", "probability"], rows)
    known = [k for k, label in enumerate(found.labels.tolist()) if label >= 0]
    accuracy = float(np.mean(found.labels.numpy()[known] == best[known])) if known else None
    if known:
        output.line(f"{len(known):,} of them have a label that the run knows: accuracy {percent(accuracy)}")
    if target is not None:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["sequence", "class", *classes])
        for row, p in zip(rows, probabilities.tolist(), strict=True):
            writer.writerow([*row[:2], *(f"{value:.6g}" for value in p)])
        write_whole(target, file.getvalue().encode())
        output.line(f"probabilities  {target}")
    output.result(
        {
            "classes": list(classes),
            "sequences": [
                {"name": row[0], "class": row[1], "probabilities": p}
                for row, p in zip(rows, probabilities.tolist(), strict=True)
            ],
            "accuracy": accuracy,
        }
    )
