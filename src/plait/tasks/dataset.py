"""Labelled sequences in parts, scaled: read from files, and stored in the folder of a run."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..data.sequences import PARTS, Scale, Sequences, Source, check_labels, check_rows, stratified
from ..errors import PlaitError
from ..training.run import Run
from ..training.tensors import dumps, loads

FILE = "sequences.safetensors"
KEYS = ("name", "origin", "classes", "columns", "names")


@dataclass(frozen=True)
class Dataset:
    name: str
    classes: Sequence[str]
    columns: Sequence[str]
    scale: Scale
    parts: Mapping[str, Sequences]  # train; valid and test, if there are such parts
    origin: str = ""  # see Source

    @classmethod
    def of(cls, source: Source, *, validation: float, test: float, missing: str, seed: int) -> "Dataset":
        """Missing parts are cut off the training part: a seeded share of each class."""
        classes = check_labels(source)
        parts = {part: check_rows(source, found, missing) for part, found in source.parts.items()}
        for part, share in (("test", test), ("valid", validation)):
            if part not in parts and share:
                train = parts["train"]
                assert train.labels is not None
                stay, taken = stratified(train.labels, share, seed + (part == "valid"))
                if not len(taken):
                    todo = "give more sequences" if part == "test" else "give more sequences, or --validation 0"
                    raise PlaitError(
                        f"{source.name} has {len(train.rows)} sequences of {len(classes)} classes: too few for a "
                        f"{part} part of {share:g}; {todo}."
                    )
                parts["train"], parts[part] = train.where(stay), train.where(taken)
        empty = np.all([np.isnan(rows).all(0) for rows in parts["train"].rows], 0)
        if empty.any():
            raise PlaitError(
                f"{source.name}, column '{source.columns[int(empty.argmax())]}' has no number in the training part: "
                "leave the column out."
            )
        scale = Scale.fit(parts["train"].rows)
        made = {part: Sequences.of(parts[part], scale, classes) for part in PARTS if part in parts}
        return cls(source.name, classes, list(source.columns), scale, made, source.origin)

    def new(self, source: Source, missing: str) -> Sequences:
        if source.origin != self.origin:
            raise PlaitError(f"{source.name}: its features are not those of the training: give the same ResNet.")
        source = source.in_order(self.columns, "the training data")
        return Sequences.of(check_rows(source, source.all_parts(), missing), self.scale, self.classes)

    # --- in the folder of a run
    @classmethod
    def reopen(cls, run: Run) -> "Dataset":
        path = run.path / FILE
        tensors, meta = loads(path, run.read(FILE))
        try:
            name, origin, classes, columns, names = (meta[key] for key in KEYS)
            parts = {
                p: Sequences(tensors[f"{p}.rows"], tensors[f"{p}.starts"], tensors[f"{p}.labels"], names[p])
                for p in names
            }
            scale = Scale(tensors["mean"].numpy(), tensors["std"].numpy())
        except (KeyError, TypeError) as e:
            raise PlaitError(f"{path} lacks {e}: restore it from a copy, or train again.") from None
        for part, found in parts.items():
            if wrong := misfit(found, len(columns), len(classes)):
                raise PlaitError(f"{path}: {wrong} in part {part}: restore it from a copy, or train again.")
        return cls(name, classes, columns, scale, parts, origin)

    def files(self) -> dict[str, bytes]:
        tensors = {"mean": torch.from_numpy(self.scale.mean), "std": torch.from_numpy(self.scale.std)}
        for part, found in self.parts.items():
            tensors |= {f"{part}.rows": found.rows, f"{part}.starts": found.starts, f"{part}.labels": found.labels}
        meta: dict[str, Any] = {"name": self.name, "origin": self.origin}
        meta |= {"classes": list(self.classes), "columns": list(self.columns)}
        meta["names"] = {part: list(found.names) for part, found in self.parts.items()}
        return {FILE: dumps(tensors, meta)}

    @cached_property
    def digest(self) -> str:
        content = hashlib.sha256(json.dumps([self.classes, self.columns]).encode())
        for found in self.parts.values():
            for tensor in (found.rows, found.starts, found.labels):
                content.update(tensor.numpy().data)
        return content.hexdigest()

    def counts(self, part: str) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        return np.bincount(self.parts[part].labels.numpy(), minlength=len(self.classes))


def misfit(found: Sequences, D: int, C: int) -> str | None:
    rows, starts, labels = found.rows, found.starts, found.labels
    if rows.dtype != torch.float32 or rows.dim() != 2 or rows.shape[1] != D or not rows.isfinite().all():
        return f"rows of shape {tuple(rows.shape)} and {rows.dtype}, not finite float32 in {D} columns,"
    if starts.dtype != torch.int64 or starts.dim() != 1 or len(starts) < 2:
        return f"starts of shape {tuple(starts.shape)} and {starts.dtype}, not a row of int64,"
    if int(starts[0]) != 0 or int(starts[-1]) != len(rows) or int(starts.diff().min()) < 1:
        return f"starts that do not rise from 0 to {len(rows)}"
    if labels.dtype != torch.int64 or labels.shape != (len(starts) - 1,) or len(found.names) != len(labels):
        return f"labels of shape {tuple(labels.shape)} and {labels.dtype}, for {len(starts) - 1} sequences,"
    if int(labels.min()) < 0 or int(labels.max()) >= C:
        return f"labels from {int(labels.min())} to {int(labels.max())}, with {C} classes,"
    return None
