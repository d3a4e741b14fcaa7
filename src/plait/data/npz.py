"""NumPy's .npz: x (n, T) or (n, T, D), y (n,), and lengths (n,) if they differ; the same with _test, for the test."""

import io
import re
from typing import Any
from zipfile import ZipFile

import numpy as np

from ..errors import PlaitError
from .files import DAMAGE, ZIP
from .sequences import RawSequences, Source

MOST = 16 * 2**30  # bytes that it may expand to
NAMES = r"[xX](_train|_test)?|(y|lengths)(_train|_test)?"
EXPECTED = "expected arrays x (n, T, D) and y (n,), and lengths (n,) if they differ"


def read(content: bytes, where: str) -> Source:
    arrays = load(content, where)
    parts: dict[str, RawSequences] = {}
    for part, ends in (("train", ("", "_train")), ("test", ("_test",))):
        x, y, lengths = (
            next((arrays[n + end] for end in ends for n in names if n + end in arrays), None)
            for names in ("xX", "y", ["lengths"])
        )
        if x is not None:
            parts[part] = sequences(x, y, lengths, where, part)
    if "train" not in parts:
        raise PlaitError(f"{where} has {', '.join(arrays) or 'nothing'}: {EXPECTED}.")
    width = parts["train"].rows[0].shape[1] if parts["train"].rows else 1
    return Source(where, [str(d + 1) for d in range(width)], parts)


def load(content: bytes, where: str) -> dict[str, Any]:
    try:
        if not content.startswith(ZIP):
            raise ValueError("it is no zip")
        if (size := sum(member.file_size for member in ZipFile(io.BytesIO(content)).infolist())) > MOST:
            raise ValueError(f"it would expand to {size:,} bytes, and {MOST:,} are the most")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            found = {name: file[name] for name in file.files if re.fullmatch(NAMES, name)}
            others = [name for name in file.files if name not in found]
    except (*DAMAGE, KeyError, AttributeError, TypeError) as e:
        if "allow_pickle" in str(e):
            raise PlaitError(
                f"{where} has Python objects, which may run code when they are read: save arrays of numbers, padded, "
                "with their lengths."
            ) from None
        raise PlaitError(f"{where} cannot be read as .npz ({e}): {EXPECTED}.") from None
    if wrong := [name for name, array in found.items() if not isinstance(array, np.ndarray)]:
        raise PlaitError(f"{where}: {wrong[0]} is no array; {EXPECTED}.")
    if not found:
        raise PlaitError(f"{where} has {', '.join(others[:5]) or 'nothing'}: {EXPECTED}.")
    return found


def sequences(x: Any, y: Any, lengths: Any, where: str, part: str) -> RawSequences:
    if x.ndim not in (2, 3) or x.dtype.kind not in "fiub":
        raise PlaitError(f"{where}: x has shape {x.shape} and type {x.dtype}; {EXPECTED}.")
    x = (x if x.ndim == 3 else x[:, :, None]).astype(np.float64)  # (n, T, D)
    for name, other in (("y", y), ("lengths", lengths)):
        if other is not None and other.shape != x.shape[:1]:
            raise PlaitError(f"{where}: {name} has shape {other.shape}, and x has {len(x)} sequences; {EXPECTED}.")
    if lengths is None:
        lengths = np.full(len(x), x.shape[1])
    elif lengths.dtype.kind not in "iu" or not ((lengths >= 0) & (lengths <= x.shape[1])).all():
        raise PlaitError(f"{where}: lengths must be whole numbers from 1 to {x.shape[1]}, the steps of x.")
    if y is not None and y.dtype.kind not in "fiubUS":
        raise PlaitError(f"{where}: y has type {y.dtype}; expected classes, as whole numbers or words.")
    if y is not None and y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "backslashreplace")
    if y is not None and y.dtype.kind == "f":
        if not (np.isfinite(y).all() and np.array_equal(y, np.round(y))):
            raise PlaitError(f"{where}: y has numbers that are not whole; expected classes, as whole numbers or words.")
        y = y.astype(np.int64)
    labels = None if y is None else [str(label) for label in y.tolist()]
    names = [f"sequence {k + 1}" if part == "train" else f"{part} sequence {k + 1}" for k in range(len(x))]
    return RawSequences([rows[:n] for rows, n in zip(x, lengths.tolist(), strict=True)], labels, names)
