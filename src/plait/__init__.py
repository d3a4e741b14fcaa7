"""Recurrent networks inside PyTorch: layers to drop in, engines to choose from, training from the command line."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import PlaitError

if TYPE_CHECKING:
    from . import cells, data, engines, ranks, solvers
    from .cells import Cell
    from .kernels.pool import release
    from .ladder.rungs import check_cell
    from .layers import (
        GRU,
        LSTM,
        RNN,
        GRUCell,
        ImplicitGRU,
        LSTMCell,
        RNNCell,
        accelerate,
        everywhere,
        layer,
        packed,
        report,
        restore,
    )
    from .solvers import Multigrid, Serial, Shooting, compare, fading_memory
    from .trainer import Trainer

__version__ = "0.1.0"

HOMES = {  # name -> the module that has it
    **dict.fromkeys(("GRU", "LSTM", "RNN", "ImplicitGRU", "layer", "packed"), "layers"),
    **dict.fromkeys(("accelerate", "everywhere", "report", "restore"), "layers"),
    **dict.fromkeys(("GRUCell", "LSTMCell", "RNNCell"), "layers"),
    "Cell": "cells",
    **dict.fromkeys(("Multigrid", "Serial", "Shooting", "compare", "fading_memory"), "solvers"),
    "check_cell": "ladder.rungs",
    "release": "kernels.pool",
    "Trainer": "trainer",
}
MODULES = ("cells", "data", "engines", "ranks", "solvers")
__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Cell",
    "GRUCell",
    "ImplicitGRU",
    "LSTMCell",
    "Multigrid",
    "PlaitError",
    "RNNCell",
    "Serial",
    "Shooting",
    "Trainer",
    "accelerate",
    "cells",
    "check_cell",
    "compare",
    "data",
    "engines",
    "everywhere",
    "fading_memory",
    "layer",
    "packed",
    "ranks",
    "release",
    "report",
    "restore",
    "solvers",
]


def __getattr__(name: str) -> Any:
    """Imported when it is first asked for: torch takes seconds."""
    if name in MODULES:
        return import_module(f".{name}", __name__)
    if name in HOMES:
        value = globals()[name] = getattr(import_module(f".{HOMES[name]}", __name__), name)
        return value
    raise AttributeError(f"module 'plait' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
