"""Who runs the recurrence of a layer.

names()          the engines that there are; `plait engines` says which of them can run here, and why not
get(name)        one of them. Its `why_not(cell, dtype, device)` is None, or a sentence

Each has a file of its own, which is imported when it is first used.
"""

from functools import cache
from importlib import import_module
from typing import Any

import torch

from ..cells import Cell
from ..cells.trace import why_untraceable
from ..errors import PlaitError, unknown
from ..layout import Layout
from .base import Derivative, Engine, Gradients, Needs, Prepared, Weights
from .tape import Tape

ENGINES = {  # name -> where it is
    "fused": (".fused", "FusedEngine"),
    "torch": (".torch", "TorchEngine"),
    "torch:steps": (".torch", "TorchStepsEngine"),
    "numpy": (".numpy", "NumpyEngine"),
    "python": (".python", "PythonEngine"),
    "cuda:v4": (".cuda_blocks", "BlocksEngine"),
    "cuda": (".cuda_blocks", "CudaEngine"),
}
AUTO = ("fused", "torch")  # what `auto` tries, best first
MOVED = {  # names that were engines -> what to use instead
    "python:quadratic": "python",
    "cuda:v1": "cuda",
    "cuda:v2": "cuda",
    "cuda:v3": "cuda",
}


def names() -> list[str]:
    """All engines, whether they can run here or not: `get(name).why_not(...)` tells."""
    return list(ENGINES)


def of_the_host() -> list[str]:
    """Those that need no device."""
    return [name for name in ENGINES if not name.startswith("cuda")]


@cache
def get(name: str) -> Engine:
    """The engine of that name. There is one of each."""
    if name in MOVED:
        raise PlaitError(
            f"engine '{name}' is no engine for layers any more, it is a training step of `plait bench ladder`: "
            f"use '{MOVED[name]}' or 'auto'."
        )
    if name not in ENGINES:
        raise unknown("engine", name, ["auto", *ENGINES])
    module, attribute = ENGINES[name]
    engine: Engine = getattr(import_module(module, __name__), attribute)()
    return engine


def check_name(name: str) -> str:
    """The name itself, or an error if there is no such engine."""
    if name != "auto":
        get(name)
    return name


def choose(name: str, cell: type[Cell], dtype: torch.dtype, device: torch.device) -> str:
    """As `chosen`, for code that torch.compile traces."""
    return chosen(name, cell, dtype, device)  # type: ignore[arg-type]  # mypy takes a class's hash for its objects'


choose._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler's mark, without importing dynamo


@cache
def chosen(name: str, cell: Any, dtype: torch.dtype, device: torch.device) -> str:
    """The name of the engine that runs the layer: for `auto` the first of AUTO that can. An error if none can."""
    reasons = []
    for candidate in AUTO if name == "auto" else (name,):
        reason = get(candidate).why_not(cell, dtype, device)
        if reason is None:
            return candidate
        reasons.append(reason)
    if why_untraceable(cell) in reasons:
        reasons.append("Use engine='torch', which runs it by autograd.")
    raise PlaitError(" ".join(reasons))


__all__ = ["AUTO", "ENGINES", "Derivative", "Engine", "Gradients", "Layout", "Needs", "Prepared", "Tape", "Weights"]
__all__ += ["check_name", "choose", "chosen", "get", "names", "of_the_host"]
