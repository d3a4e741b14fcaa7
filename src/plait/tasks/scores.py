"""How good a classifier is: shares of right answers, per class and in all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]


def confusion(truth: Whole, predicted: Whole, classes: int) -> Whole:  # (C, C): truth, predicted
    return np.bincount(truth * classes + predicted, minlength=classes**2).reshape(classes, classes)


def scores(matrix: Whole, classes: Sequence[str]) -> dict[str, Any]:
    """Balanced accuracy is the mean recall. None where there is nothing to share."""
    right, true, called = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    rows = []
    for k, name in enumerate(classes):
        precision, recall = share(right[k], called[k]), share(right[k], true[k])
        f1 = share(2 * right[k], true[k] + called[k])
        rows.append({"class": name, "count": int(true[k]), "precision": precision, "recall": recall, "f1": f1})
    there = [right[k] / true[k] for k in range(len(classes)) if true[k]]
    return {
        "count": int(matrix.sum()),
        "accuracy": share(right.sum(), matrix.sum()),
        "balanced": float(np.mean(there)) if there else None,
        "classes": rows,
        "confusion": matrix.tolist(),
    }


def share(count: int, whole: int) -> float | None:
    return float(count / whole) if whole else None


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
