"""What is said of a task before it is trained, and what is written after it."""

from collections.abc import Sequence
from typing import Any

import torch

from .. import cells, engines
from ..errors import counted
from ..training.run import Run
from .base import NamedTask, Usable


def described(task: Usable) -> list[str]:
    parameters, threads = sum(p.numel() for p in task.model.parameters()), torch.get_num_threads()
    *data, model = task.about()
    how = counted(threads, "thread")
    if isinstance(task, NamedTask):
        s = task.settings
        engine = engines.choose(s.engine, cells.get(s.cell), torch.float32, torch.device("cpu"))
        solver = "" if s.solver == "serial" else f", solver {s.solver}"
        precision = "" if s.precision == "float32" else f", {s.precision}"
        how = f"engine {f'{engine} (auto)' if s.engine == 'auto' else engine}{precision}, {how}{solver}"
    return [*data, f"{model}, {parameters:,} parameters", how]


def write_results(
    run: Run, task: NamedTask, history: Sequence[dict[str, Any]], metrics: dict[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """-> the names of its pictures, and what history.json says"""
    pictures, said = task.pictures(metrics, history), {"epochs": list(history), "test": metrics}
    for name, content in pictures.items():
        run.write(name, content)
    run.write_json("history.json", said)
    return list(pictures), said
