"""From the folder of a run to its task, with the settings, the data and the weights that are there."""

import dataclasses
from typing import Any, TypeVar

from .. import tasks
from ..errors import PlaitError
from ..kernels.launch import costs
from ..tasks.base import NamedTask
from ..training.run import Run
from ..training.settings import set_threads
from ..training.tensors import load_weights

AnyTask = TypeVar("AnyTask", bound=NamedTask)


def open_run(path: str, task: str | None = None, changes: dict[str, Any] | None = None) -> tuple[Run, NamedTask]:
    """A run and its task, as it was started, but for the changes."""
    run = Run.open(path)
    config = run.config(task)
    cls = tasks.get(config["task"])
    try:
        settings = cls.kind(**config["settings"])
        stored = {**settings.as_dict(), "threads": config["threads"]}
    except PlaitError as e:
        raise PlaitError(f"{path}/config.json has settings that make no sense: {e}") from None
    except (TypeError, KeyError, ValueError, OverflowError) as e:
        raise PlaitError(f"{path}/config.json has settings that this version does not know: {e}.") from None
    run.check_unchanged(config)
    if changes is not None:
        settings = dataclasses.replace(settings, **allowed(changes, stored, settings.free(), path))
        set_threads(config["threads"])  # the last bits of sums depend on threads and costs
        if "costs" in config:  # not in runs of earlier versions
            costs.use(config["costs"])
    opened = cls.reopen(settings, run, training=changes is not None)
    if changes:
        with run.locked():  # not while another process trains it
            run.write_config({**config, "settings": settings.as_dict()})
    return run, opened


def allowed(changes: dict[str, Any], stored: dict[str, Any], free: set[str], path: str) -> dict[str, Any]:
    for name, value in changes.items():
        if name not in free and value != stored.get(name):
            was = f"the run has {stored[name]}" if name in stored else "the run has a folder"
            raise PlaitError(
                f"--{name.replace('_', '-')} {value}: {was}, and --resume goes on with what {path} began with; "
                "leave the option out, or start a new run."
            )
    return {name: value for name, value in changes.items() if name in free}


def trained(path: str, kind: type[AnyTask]) -> tuple[Run, AnyTask]:
    run, task = open_run(path, None if kind is NamedTask else kind.name)
    assert isinstance(task, kind)
    weights, _ = run.read_tensors("model.safetensors")
    load_weights(task.model, weights, run.path / "model.safetensors")
    return run, task
