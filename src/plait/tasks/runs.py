"""From the folder of a run to its task, with the settings, the data and the weights that are there."""

import dataclasses
import os
from typing import Any, TypeVar

from .. import tasks
from ..errors import PlaitError
from ..ranks.shape import Shape
from ..training.run import OWN, Run
from ..training.settings import TrainSettings
from ..training.tensors import load_weights
from .base import NamedTask

AnyTask = TypeVar("AnyTask", bound=NamedTask)


def open_run(path: str, task: str | None = None, changes: dict[str, Any] | None = None) -> tuple[Run, NamedTask]:
    """A run and its task, as it was started, but for the changes, which nothing writes. None: it will not be trained"""
    run = Run.open(path)
    config = run.config(task)
    if config["task"] == OWN:
        name = f"'{config.get('model', {}).get('class', '?')}'" if isinstance(config.get("model"), dict) else "it"
        raise PlaitError(
            f"{path} has a model that was trained from Python ({name}): use plait.Trainer.load, with the model."
        )
    cls = tasks.get(config["task"])
    settings = stored_settings(run, config, cls.kind, changes)
    if changes is not None:
        os.close(run.lock())  # another process may be training it: that is said before anything else
    return run, cls.reopen(settings, run, training=changes is not None)


def stored_settings(
    run: Run, config: dict[str, Any], kind: type[TrainSettings], changes: dict[str, Any] | None
) -> TrainSettings:
    """What the run began with, but for the changes, if they are allowed."""
    try:
        settings = kind(**config["settings"])
        stored = {**settings.as_dict(), "threads": config["threads"]}
    except PlaitError as e:
        raise PlaitError(f"{run.path}/config.json has settings that make no sense: {e}") from None
    except (TypeError, KeyError, ValueError, OverflowError) as e:
        raise PlaitError(f"{run.path}/config.json has settings that this version does not know: {e}.") from None
    run.check_unchanged(config)
    if changes and "out" in changes and os.path.realpath(str(changes["out"])) == os.path.realpath(run.path):
        stored["out"] = changes["out"]  # the folder that it has
    return dataclasses.replace(settings, **allowed(changes or {}, stored, settings.free(), str(run.path)))


def allowed(changes: dict[str, Any], stored: dict[str, Any], free: set[str], path: str) -> dict[str, Any]:
    for name, value in changes.items():
        if name not in free and value != stored.get(name):
            was = f"the run has {stored[name]}" if name in stored else "the run has a folder"
            raise PlaitError(
                f"--{name.replace('_', '-')} {value}: {was}, and --resume goes on with what {path} began with; "
                "leave the option out, or start a new run."
            )
    return {name: value for name, value in changes.items() if name in free}


def mesh_of(config: dict[str, Any], path: str) -> Shape | None:
    """Of a run that several ranks have trained."""
    found = config.get("parallel")
    try:
        return Shape.parse(found["mesh"]) if found else None
    except (KeyError, TypeError, AttributeError, PlaitError):
        raise PlaitError(
            f"{path}/config.json has a mesh that makes no sense ({found!r:.40}): restore it from a copy."
        ) from None


def trained(path: str, kind: type[AnyTask]) -> tuple[Run, AnyTask]:
    run, task = open_run(path, None if kind is NamedTask else kind.name)
    assert isinstance(task, kind)
    weights, _ = run.read_tensors("model.safetensors")
    load_weights(task.model, weights, run.path / "model.safetensors")
    return run, task
