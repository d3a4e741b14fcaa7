"""Recurrent networks inside PyTorch: layers to drop in, engines to choose from, training from the command line."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import PlaitError

if TYPE_CHECKING:
    from . import cells, data, engines
    from .layers import GRU, LSTM, RNN, ImplicitGRU, accelerate, restore

__version__ = "0.1.0"

__all__ = ["GRU", "LSTM", "RNN", "ImplicitGRU", "PlaitError", "accelerate", "cells", "data", "engines", "restore"]


def __getattr__(name: str) -> Any:
    """Everything else is imported when it is first asked for: torch takes seconds, `plait --help` should not."""
    if name in ("cells", "data", "engines"):
        return import_module(f".{name}", __name__)
    if name in __all__:
        value = globals()[name] = getattr(import_module(".layers", __name__), name)
        return value
    raise AttributeError(f"module 'plait' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
