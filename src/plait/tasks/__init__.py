"""Data + model + loss + metric + picture. The table of tasks; each lives in a file of its own, imported when used."""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from ..errors import unknown
from .settings import ClassifySettings, ForecastSettings, LanguageSettings, RotateSettings

if TYPE_CHECKING:
    from ..training.settings import TrainSettings
    from .base import NamedTask


class Known(NamedTuple):
    where: str  # module and class
    kind: "type[TrainSettings]"
    about: str  # for --help


TASKS = {
    "forecast": Known(
        ".forecast:Forecast",
        ForecastSettings,
        "Train a network to forecast a series of numbers: the airline passengers, or a column of a CSV file.",
    ),
    "language": Known(
        ".language:Language",
        LanguageSettings,
        "Train a network to predict the next word, or character, of a text.",
    ),
    "classify": Known(
        ".classify:Classify",
        ClassifySettings,
        "Train a network to name the class of a sequence: motion, .ts files, tables in long form, videos.",
    ),
    "rotate": Known(
        ".rotate:Rotate",
        RotateSettings,
        "Train a network to turn images: from each step to the next, 10 degrees further.",
    ),
}


def get(name: str) -> "type[NamedTask]":
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    module, attribute = TASKS[name].where.split(":")
    task: type[NamedTask] = getattr(import_module(module, __name__), attribute)
    return task
