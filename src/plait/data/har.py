"""The folders of UCI HAR: a file for each signal, with a window in each line, and the labels beside them."""

import io
import re
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from ..errors import PlaitError
from .containers import Container
from .files import decoded
from .sequences import RawSequences, Source

SIGNALS = "Inertial Signals/"


def root(names: list[str]) -> str | None:
    """The folder that holds train/Inertial Signals: '', or a name that ends in /."""
    for name in names:
        at = name.find(f"train/{SIGNALS}")
        if at == 0 or (at > 0 and name[at - 1] == "/"):
            return name[:at]
    return None


def read(inside: Container, top: str, *, labelled: bool = True) -> Source:
    """labelled: False for new data, which may do without the labels."""
    labels = f"{top}activity_labels.txt"
    words = dict[str, str]()
    parts_of_it = ("_train.txt", "_test.txt", "activity_labels.txt")
    inside.check(name for name in inside.names if name.startswith(top) and name.endswith(parts_of_it))
    if labels in inside.names:  # such as: 1 WALKING
        lines = decoded(inside.read(labels), inside.called(labels)).split("\n")
        words = {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in lines if len(line.split()) > 1}
    columns, parts = list[str](), dict[str, RawSequences]()
    for part in ("train", "test"):
        begin = f"{top}{part}/{SIGNALS}"
        files = [name for name in inside.names if name.startswith(begin) and name.endswith(f"_{part}.txt")]
        signals = [PurePosixPath(name).name.removesuffix(f"_{part}.txt") for name in files]
        if part == "test" and not files:
            continue
        columns = columns or signals
        if signals != columns or not files:
            other = sorted(set(signals) ^ set(columns))
            raise PlaitError(
                f"{inside.called(begin)} has {len(signals)} signals, and the training part {len(columns)} "
                f"({', '.join(other[:3])}): expected the same in both."
            )
        target = f"{top}{part}/y_{part}.txt"
        has_labels = target in inside.names
        if labelled and not has_labels:
            raise PlaitError(f"{inside.called(target)} is missing: expected the label of each window there.")
        found = [matrix(inside, name) for name in files]
        numbers = decoded(inside.read(target), inside.called(target)).split() if has_labels else None
        counts = dict(zip(files, map(len, found), strict=True)) | ({} if numbers is None else {target: len(numbers)})
        for name, count in counts.items():
            if count != len(found[0]):
                raise PlaitError(
                    f"{inside.called(name)} has {count} lines, and {inside.called(files[0])} has {len(found[0])}: "
                    "expected one for each window."
                )
        for name, windows in zip(files, found, strict=True):
            if windows.shape != found[0].shape:
                steps = f"{windows.shape[1]} numbers in a line"
                raise PlaitError(
                    f"{inside.called(name)} has {steps}, and {inside.called(files[0])} has "
                    f"{found[0].shape[1]}: expected as many steps in each signal."
                )
        stacked = np.stack(found, 2)  # (n, T, D)
        parts[part] = RawSequences(
            list(stacked),
            None if numbers is None else [words.get(n, n) for n in numbers],
            [f"{part} window {k + 1}" for k in range(len(stacked))],
        )
    return Source("UCI HAR", columns, parts)


def matrix(inside: Container, name: str) -> NDArray[np.float64]:  # (n, T)
    text = decoded(inside.read(name), inside.called(name))
    try:
        return np.loadtxt(io.StringIO(text), ndmin=2)
    except ValueError as e:
        why = re.sub(r";.*", "", str(e).replace("\n", " "))
        raise PlaitError(f"{inside.called(name)}: {why}; expected rows of numbers, equally long.") from None
