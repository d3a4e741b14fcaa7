"""Classify: a sequence of rows of numbers in, the name of its class out."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import video
from ..data.labelled import CSV
from ..data.labelled import read as read_labelled
from ..data.long_csv import Columns
from ..data.sequences import Sequences, Source
from ..data.text_batches import grouped
from ..errors import PlaitError, counted, unknown
from ..training.run import Run
from . import features
from .base import SampleTask, Table, sizes
from .dataset import Dataset
from .memory import build_model
from .pictures import confusion_picture, curves_picture
from .pooled import Pooled, predict
from .scores import confusion, percent, scores
from .settings import ClassifySettings


class Classify(SampleTask):
    name, kind = "classify", ClassifySettings
    settings: ClassifySettings
    model: Pooled

    def __init__(self, settings: ClassifySettings, data: Dataset, *, training: bool = True) -> None:
        s = self.settings = settings
        self.data, train = data, data.parts["train"]
        D, C = len(data.columns), len(data.classes)
        batch = s.batch_size(len(train))
        steps = int(train.lengths.max())
        tokens = batch * steps * (1 + s.bidirectional)
        self.model = build_model(s, lambda: Pooled(s, D, C), tokens, steps, training=training)
        self.sampler = grouped(s.buckets, train.lengths, batch, s.seed)
        counts = torch.from_numpy(data.counts("train"))
        balanced = s.class_weights == "balanced"
        self.weights = len(train) / (C * counts) if balanced else torch.ones(C)  # (C,); their mean over all is 1
        self.accuracy: float | None = None  # of the validation part, after the last epoch

    @classmethod
    def read(cls, settings: ClassifySettings) -> "Classify":
        s = settings
        if Path(s.features).is_dir():  # the run is used from other folders, too
            s = replace(s, features=str(Path(s.features).absolute()))
        source = read_all(s)
        if "test" not in source.parts and not s.test:
            raise PlaitError(f"{s.data} has no test part: give --test a share, or --test-data a file.")
        return cls(s, Dataset.of(source, validation=s.validation, test=s.test, missing=s.missing, seed=s.seed))

    @classmethod
    def reopen(cls, settings: ClassifySettings, run: Run, *, training: bool = False) -> "Classify":
        return cls(settings, Dataset.reopen(run), training=training)

    @property
    def digest(self) -> str:
        return self.data.digest

    def files(self) -> dict[str, bytes]:
        return self.data.files()

    def about(self) -> list[str]:
        s, data = self.settings, self.data
        lengths = torch.cat([found.lengths for found in data.parts.values()])
        low, high = int(lengths.min()), int(lengths.max())
        steps = counted(low, "step") if low == high else f"{low} to {high} steps"
        both = ", both directions" if s.bidirectional else ""
        pool = "last state" if s.pool == "last" else "mean over the steps"
        counts, width = {part: len(found) for part, found in data.parts.items()}, len(data.columns)
        return [
            f"{data.name}: {sizes(counts)}; {steps} of {counted(width, 'number')}, {len(data.classes)} classes",
            f"{s.cell}, {s.layers} x {s.hidden} units{both}, {pool}",
        ]

    # --- training
    def loss(self, indices: Tensor) -> tuple[Tensor, int]:
        indices = self.sampler.share(indices, self.rank, self.ranks)
        if not len(indices):
            return torch.zeros(()), 0
        train = self.data.parts["train"]
        return self.nll(self.model(*train.batch(indices), ids=indices), train.labels[indices]).mean(), len(indices)

    def nll(self, logits: Tensor, labels: Tensor) -> Tensor:  # (B, C), (B,) -> (B,)
        return nn.functional.cross_entropy(logits, labels, reduction="none") * self.weights[labels]

    def validate(self) -> float | None:
        if "valid" not in self.data.parts:
            return None
        valid = self.data.parts["valid"]
        logits = predict(self.model, valid)
        self.accuracy = float((logits.argmax(1) == valid.labels).double().mean())
        return self.nll(logits, valid.labels).double().mean().item()

    def figures(self) -> dict[str, float]:
        return {} if self.accuracy is None else {"accuracy": self.accuracy}

    # --- how good it is
    def probabilities(self, source: Source, missing: str | None = None) -> tuple[Sequences, NDArray[np.float64]]:
        """Of new sequences, by class: (n, C)"""
        found = self.data.new(source, missing or self.settings.missing)
        logits = predict(self.model, found)
        if not logits.isfinite().all():
            raise PlaitError("the network gives numbers that are not finite: train again with a lower --lr.")
        return found, logits.double().softmax(1).numpy()

    def read_and_judge(self, path: str, changes: dict[str, Any]) -> tuple[Sequences, NDArray[np.float64]]:
        """New sequences of a file, and their probabilities. changes: settings that are other ones for these data"""
        settings = replace(self.settings, **changes)
        source = read_source(settings, path, alone=True, labelled=False)
        return self.probabilities(source, settings.missing)

    def predict(self, data: str, **changes: Any) -> list[dict[str, Any]]:
        """Of each sequence of a file its name, its class and all probabilities."""
        found, probabilities = self.read_and_judge(data, changes)
        best, classes = probabilities.argmax(1).tolist(), self.data.classes
        return [
            {"name": name, "class": classes[k], "probabilities": p}
            for name, k, p in zip(found.names, best, probabilities.tolist(), strict=True)
        ]

    def evaluate(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, part in (("validation", "valid"), ("test", "test")):
            if part in self.data.parts:
                found, C = self.data.parts[part], len(self.data.classes)
                logits = predict(self.model, found)
                result[name] = scores(confusion(found.labels.numpy(), logits.argmax(1).numpy(), C), self.data.classes)
                result[name]["loss"] = nn.functional.cross_entropy(logits.double(), found.labels).item()
        usual = int(self.data.counts("train").argmax())
        counts = self.data.counts("test")
        result["most frequent"] = {
            "class": self.data.classes[usual],
            "accuracy": float(counts[usual] / counts.sum()),
        }
        return result

    def table(self, metrics: dict[str, Any]) -> Table:
        test, usual = metrics["test"], metrics["most frequent"]
        rows = [
            [row["class"], str(row["count"]), *(percent(row[key]) for key in ("precision", "recall", "f1"))]
            for row in test["classes"]
        ]
        title = (
            f"{counted(test['count'], 'sequence')} of the test, never seen in training: "
            f"accuracy {percent(test['accuracy'])}, balanced {percent(test['balanced'])}\n"
            f"(always '{usual['class']}': {percent(usual['accuracy'])})"
        )
        return Table(title, ["class", "sequences", "precision", "recall", "F1"], rows)

    def pictures(self, metrics: dict[str, Any], history: Sequence[dict[str, Any]]) -> dict[str, bytes]:
        test, name = metrics["test"], self.data.name
        found = {"confusion.png": confusion_picture(name, test["confusion"], self.data.classes, test["accuracy"])}
        return found | ({"curves.png": curves_picture(name, history)} if history else {})

    def afterwards(self, folder: Path) -> tuple[str, str]:
        return "classify", f"plait classify {shlex.quote(str(folder))} NEW_SEQUENCES"


def read_source(s: ClassifySettings, path: str, *, alone: bool = False, labelled: bool = True) -> Source:
    is_video, is_csv = bool(path) and video.holds_videos(Path(path)), Path(path).suffix.lower() in CSV
    if labelled:
        for name in ("features", "download", "frames", "short", "skip_broken", "splits", "split"):
            s.only_with(name, is_video, "videos")
        for name in ("id_column", "time_column", "label_column"):
            s.only_with(name, is_csv, "a CSV file")
    if not is_video:
        return read_labelled(path, Columns(s.id_column, s.time_column, s.label_column), alone=alone, labelled=labelled)
    clips = video.by_class(Path(path)) if labelled else video.all_in(Path(path))
    if labelled:
        for name in s.chosen:  # before any feature is made
            if name not in (known := {clip.label for clip in clips}):
                raise unknown("class", name, known)
        clips = [clip for clip in clips if not s.chosen or clip.label in s.chosen]
        if s.splits is not None:
            clips = video.with_parts(clips, s.splits, s.split)
        if len({clip.label for clip in clips}) < 2:
            raise PlaitError(f"{path} has videos of one class: expected folders of two or more.")
    wanted = features.Wanted(s.features, s.frames, s.short == "pad", s.download)
    return features.read(clips, path, wanted, skip_broken=s.skip_broken, labelled=labelled)


def read_all(s: ClassifySettings) -> Source:
    assert s.data is not None
    source = read_source(s, s.data, alone=s.test_data is not None)
    if s.test_data is not None:
        other = read_source(s, s.test_data, alone=True)
        for path, found in ((s.data, source), (s.test_data, other)):
            if "test" in found.parts:
                raise PlaitError(f"{path} has a training and a test part of its own: leave --test-data out.")
        if Path(s.data).resolve() == Path(s.test_data).resolve():
            raise PlaitError(f"--test-data {s.test_data} is what --data names: expected other sequences for the test.")
        other = other.in_order(source.columns, s.data)
        unseen = sorted({*(other.all_parts().labels or ())} - {*(source.all_parts().labels or ())} - {""})
        if unseen and not s.chosen:
            raise PlaitError(
                f"{s.test_data} has class '{unseen[0]}', which {s.data} has not: add sequences of it there, or leave "
                "it out with --classes."
            )
        source = replace(source, parts={**source.parts, "test": other.all_parts()})
    else:
        s.only_with("test", "test" not in source.parts, "data without a test part")
    return source.only(s.chosen) if s.chosen else source
