"""Sequences of rows of numbers, each with a label: what was read, and what a network learns from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import PlaitError, unknown
from ..layout import Layout
from .numbers import MISSING

Rows = NDArray[np.float64]  # (T, D)
PARTS = ("train", "valid", "test")
LARGEST = 1e150  # of a value, so that its square is a number, too


class RawSequences(NamedTuple):
    rows: Sequence[Rows]  # (T, D) each
    labels: Sequence[str] | None  # None if there are none, as in new data
    names: Sequence[str]  # what a message or a result calls each of them

    def where(self, chosen: Sequence[int] | NDArray[np.int64]) -> "RawSequences":
        labels = None if self.labels is None else [self.labels[k] for k in chosen]
        return RawSequences([self.rows[k] for k in chosen], labels, [self.names[k] for k in chosen])


@dataclass(frozen=True)
class Source:
    name: str
    columns: Sequence[str]  # (D,)
    parts: Mapping[str, RawSequences]  # train; test, if the data say which sequences are for the test
    origin: str = ""  # what has made the numbers, if new ones must be made in the same way

    def in_order(self, columns: Sequence[str], like: str) -> "Source":
        """With its columns in the order of other data. like: what those are called"""
        if list(self.columns) == list(columns):
            return self
        if len(self.columns) != len(columns):
            known = f"{', '.join(columns[:5])}{' ...' if len(columns) > 5 else ''}"
            raise PlaitError(f"{self.name} has {len(self.columns)} columns, and {like} has {len(columns)} ({known}).")
        numbered = [str(d + 1) for d in range(len(columns))]  # columns without names
        if numbered in (list(self.columns), list(columns)):
            return replace(self, columns=columns)
        if {*self.columns} != {*columns}:
            other = next(name for name in self.columns if name not in columns)
            raise PlaitError(f"{self.name} has a column '{other}', and {like} has none: expected the same columns.")
        order = [list(self.columns).index(name) for name in columns]
        parts = {p: f._replace(rows=[r[:, order] for r in f.rows]) for p, f in self.parts.items()}
        return replace(self, columns=columns, parts=parts)

    def all_parts(self) -> RawSequences:
        found = list(self.parts.values())
        labels = None if any(f.labels is None for f in found) else [label for f in found for label in f.labels or ()]
        return RawSequences([r for f in found for r in f.rows], labels, [n for f in found for n in f.names])

    def only(self, classes: Sequence[str]) -> "Source":
        if any(found.labels is None for found in self.parts.values()):
            raise PlaitError(f"{self.name} has no labels: expected one for each sequence.")
        known = {label for found in self.parts.values() for label in found.labels or ()}
        for name in classes:
            if name not in known:
                raise unknown("class", name, known)
        chosen = {
            part: found.where([k for k, label in enumerate(found.labels or ()) if label in classes])
            for part, found in self.parts.items()
        }
        return replace(self, parts=chosen)


# --- what is wrong with them
TO_DO = "use --missing interpolate, or put it in"


def check_rows(source: Source, found: RawSequences, missing: str, todo: str = TO_DO) -> RawSequences:
    """Every sequence has steps, every number is finite. todo: about missing ones"""
    if missing not in MISSING:
        raise unknown("--missing", missing, MISSING)
    if not found.rows:
        raise PlaitError(f"{source.name} has no sequences: expected at least one.")
    if not source.columns:
        raise PlaitError(f"{source.name} has no columns of numbers: expected one or more.")
    filled = []
    for name, rows in zip(found.names, found.rows, strict=True):
        where = f"{source.name}, {name}"
        if not len(rows):
            raise PlaitError(f"{where}: it has no steps; expected one or more: leave it out.")
        if rows.shape[1] != len(source.columns):
            raise PlaitError(f"{where}: it has {rows.shape[1]} columns, and the others have {len(source.columns)}.")
        beyond = np.isinf(rows) | (np.abs(rows).astype(np.float64) > LARGEST)
        if beyond.any():
            t, d = np.argwhere(beyond)[0]
            raise PlaitError(
                f"{where}, step {t + 1}, column '{source.columns[d]}': {rows[t, d]:g} is too large; expected numbers "
                f"up to {LARGEST:g}."
            )
        gaps = np.isnan(rows)
        if gaps.any():
            if missing == "error":
                t, d = np.argwhere(gaps)[0]
                raise PlaitError(
                    f"{where}, step {t + 1}, column '{source.columns[d]}': the number is missing (NaN); {todo}."
                )
            rows = interpolated(rows, gaps)
        filled.append(rows)
    return found._replace(rows=filled)


def interpolated(rows: Rows, gaps: NDArray[np.bool_]) -> Rows:
    """Linear in between; a column without numbers stays as it is."""
    steps, rows = np.arange(len(rows)), rows.copy()
    for d in np.flatnonzero(gaps.any(0)):
        gap = gaps[:, d]
        if not gap.all():
            rows[gap, d] = np.interp(steps[gap], steps[~gap], rows[~gap, d])
    return rows


def check_labels(source: Source) -> list[str]:
    """Every sequence has a label, and there are two classes or more -> the classes"""
    for part, found in source.parts.items():
        if found.labels is None:
            raise PlaitError(f"{source.name} has no labels in its {part} part: expected one for each sequence.")
        for name, label in zip(found.names, found.labels, strict=True):
            if not label:
                raise PlaitError(f"{source.name}, {name}: it has no label; expected the name of its class.")
            if not label.isprintable():
                raise PlaitError(
                    f"{source.name}, {name}: label {label!r:.60} has signs that cannot be shown: rename it."
                )
    if "train" not in source.parts:
        raise PlaitError(f"{source.name} has no sequences to train on: expected some, beside those of the test part.")
    train = source.parts["train"].labels or ()
    classes = sorted(set(train), key=by_number)
    if len(classes) < 2:
        of = f"of class '{classes[0]}'" if classes else "not there"
        raise PlaitError(f"{source.name}: all {len(train)} sequences to train on are {of}; expected two classes.")
    if "test" in source.parts:
        unseen = sorted(set(source.parts["test"].labels or ()) - set(classes), key=by_number)
        if unseen:
            raise PlaitError(
                f"{source.name}: class '{unseen[0]}' is in the test part, and not in the training part; add sequences "
                "of it there, or leave it out with --classes."
            )
    return classes


def by_number(label: str) -> tuple[float, str]:
    """10 comes after 9, and words come after numbers, by the alphabet."""
    try:
        value = float(label)
    except ValueError:
        value = math.inf
    return value if math.isfinite(value) else math.inf, label


# --- parts
def stratified(labels: Sequence[str], share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A seeded part with about the same share of each class -> the numbers of those that stay, and of those in it.

    It has round(share * n) sequences, and of each class so many that its share is as near as can be; but one of each
    class stays.
    """
    rng, found = np.random.default_rng([seed, 7]), np.array(labels)
    names, counts = np.unique(found, return_counts=True)
    ideal = share * counts
    quota = np.minimum(np.floor(ideal).astype(int), counts - 1)
    wanted = min(round(share * len(found)), int((counts - 1).sum()))
    while quota.sum() < wanted:  # to the class that has lost most by rounding, of those that can give one more
        quota[np.where(quota < counts - 1, ideal - quota, -np.inf).argmax()] += 1
    taken = [rng.permutation(np.flatnonzero(found == name))[:n] for name, n in zip(names, quota, strict=True)]
    inside = np.sort(np.concatenate(taken))
    return np.setdiff1d(np.arange(len(found)), inside), inside


@dataclass(frozen=True)
class Scale:
    """Per column; fitted on the training part alone."""

    mean: NDArray[np.float64]  # (D,)
    std: NDArray[np.float64]  # (D,)

    @classmethod
    def fit(cls, rows: Sequence[Rows]) -> "Scale":
        """What is missing does not count. A column that never changes is only moved."""
        count = sum((~np.isnan(r)).sum(0) for r in rows)
        safe = np.maximum(count, 1)
        mean = sum(np.nansum(r, 0, dtype=np.float64) for r in rows) / safe
        std = np.sqrt(sum(np.nansum((r - mean) ** 2, 0) for r in rows) / safe)
        noise = 4 * np.finfo(rows[0].dtype).eps * np.abs(mean)  # what rounding leaves of equal numbers
        return cls(mean, np.where(std > noise, std, 1.0))

    def apply(self, rows: Rows) -> NDArray[np.float32]:
        """Missing numbers become 0, the mean of the training part."""
        scaled = (rows - self.mean) / self.std
        with np.errstate(over="ignore"):
            return np.nan_to_num(scaled, nan=0.0).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Sequences:
    """Scaled rows, one sequence after the other."""

    rows: Tensor  # (N, D) float32
    starts: Tensor  # (n + 1,): where each sequence begins, and where the last one ends
    labels: Tensor  # (n,): the number of the class; -1 if it is not known
    names: Sequence[str]  # (n,)

    @classmethod
    def of(cls, found: RawSequences, scale: Scale, classes: Sequence[str]) -> "Sequences":
        rows = np.concatenate([scale.apply(r) for r in found.rows])
        if not np.isfinite(rows).all():
            k = next(k for k, r in enumerate(found.rows) if not np.isfinite(scale.apply(r)).all())
            raise PlaitError(
                f"{found.names[k]} has a number that is too far from those of the training part (10**38 times their "
                "spread, or more): expected numbers of one kind; look for a mistake in it."
            )
        starts = np.cumsum([0, *(len(r) for r in found.rows)])
        number = {name: k for k, name in enumerate(classes)}
        labels = [-1] * len(found.rows) if found.labels is None else [number.get(name, -1) for name in found.labels]
        return cls(torch.from_numpy(rows), torch.from_numpy(starts), torch.tensor(labels), tuple(found.names))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> Tensor:  # (n,)
        return self.starts.diff()

    def where(self, indices: Tensor) -> "Sequences":
        lengths = self.lengths[indices]
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        within = torch.arange(int(starts[-1])) - starts[:-1].repeat_interleave(lengths)
        rows = self.rows[self.starts[indices].repeat_interleave(lengths) + within]
        return Sequences(rows, starts, self.labels[indices], [self.names[k] for k in indices.tolist()])

    def batch(self, indices: Tensor) -> tuple[Tensor, Layout]:
        """The rows of some sequences (N, D), and their layout."""
        starts, lengths = self.starts[indices], self.starts[indices + 1] - self.starts[indices]
        T = int(lengths[0])
        if bool((lengths == T).all()):
            layout = Layout(T, len(indices))
            places = starts + torch.arange(T).unsqueeze(1)  # (T, B)
            return self.rows[places.flatten()], layout
        layout = Layout.of_lengths(lengths)
        return self.rows[starts[layout.sequence] + layout.step], layout
