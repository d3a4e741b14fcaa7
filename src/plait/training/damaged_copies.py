"""model.safetensors and history.json are copies of what state.safetensors has, for others to read. Before a run goes on
and writes them again, what is wrong with them is said, and a damaged file is kept under another name.
"""

import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import PlaitError, PlaitWarning
from .files import writing
from .run import Run


def check_copies(run: Run, weights: Mapping[str, Tensor], history: Sequence[dict[str, Any]]) -> None:
    """Call it once state.safetensors was read, and the run is locked."""
    for name, why in (
        ("model.safetensors", wrong_weights(run, weights)),
        ("history.json", wrong_history(run, history)),
    ):
        path = run.path / name
        if why is not None and os.path.lexists(path):
            kept = free_name(path)
            with writing(path):
                path.rename(kept)
            what = f"{path} {why}: it is kept as {kept.name}, and written again from state.safetensors."
            warnings.warn(what, PlaitWarning, stacklevel=2)
        elif why is not None:
            what = f"{path} is missing: it is written again from state.safetensors."
            warnings.warn(what, PlaitWarning, stacklevel=2)


def wrong_weights(run: Run, expected: Mapping[str, Tensor]) -> str | None:
    """Older weights are fine: a killed process may have written state.safetensors alone."""
    try:
        found, _ = run.read_tensors("model.safetensors")
    except PlaitError as e:
        return finding(e, run.path / "model.safetensors")
    for name, tensor in expected.items():
        if name not in found:
            return f"has no {name}, which the model has"
        if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            there, here = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (found[name], tensor))
            return f"has {name} as {there}, and the model has {here}"
    return next((f"has {name}, which the model lacks" for name in found if name not in expected), None)


def wrong_history(run: Run, expected: Sequence[dict[str, Any]]) -> str | None:
    try:
        found = history_of(run)
    except PlaitError as e:
        return finding(e, run.path / "history.json")
    return None if found == list(expected[: len(found)]) else "has other epochs than state.safetensors"


def history_of(run: Run) -> list[dict[str, Any]]:
    try:
        found = json.loads(run.content("history.json"))["epochs"]
        if isinstance(found, list):
            return found
    except PlaitError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    path = run.path / "history.json"
    raise PlaitError(f"{path} is truncated or damaged: restore it from a copy, or train again.")


def finding(error: PlaitError, path: Path) -> str:
    """What was found, without what to do."""
    return re.sub(r": (restore|expected) .*", "", str(error).removeprefix(f"{path} ")).rstrip(".")


def free_name(path: Path) -> Path:
    kept, k = path.with_name(f"{path.name}.damaged"), 2
    while os.path.lexists(kept):
        kept, k = path.with_name(f"{path.name}.damaged-{k}"), k + 1
    return kept
