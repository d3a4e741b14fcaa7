"""Data + model + loss + metric + picture. The table of tasks; each lives in a file of its own, imported when used."""

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import unknown

if TYPE_CHECKING:
    from .base import NamedTask

TASKS = {"forecast": (".forecast", "Forecast"), "language": (".language", "Language")}  # name -> where it is


def get(name: str) -> "type[NamedTask]":
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    module, attribute = TASKS[name]
    task: type[NamedTask] = getattr(import_module(module, __name__), attribute)
    return task
