"""Options as they are given in Python: those of the command line, and an optimizer of one's own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer

from ..errors import PlaitError, unknown
from ..training.settings import TrainSettings

OF_OWN = ("data", "loss", "validation")  # what a model of one's own is trained with
OF_OPTIMIZER = ("lr", "lr_batch", "momentum", "weight_decay")  # settings that an Optimizer has by itself
FROM_THE_COMMAND_LINE = ("parallel", "max_restarts", "timeout")


def settings_in(
    options: Mapping[str, Any], kind: type[TrainSettings], what: str, more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Settings for this kind, or more; a number, or a path, may stand where the command line has a word."""
    found, known = {}, {f.name: f.type for f in kind.options()}
    for name, value in options.items():
        if name in FROM_THE_COMMAND_LINE:
            raise PlaitError(f"{name}: from Python one process trains; several are started by plait train --parallel.")
        if name == "loss":
            raise PlaitError(f"loss goes with a model of your own, and {what} has its own: leave it out.")
        if name not in known and name not in more:
            raise unknown("option", name, [*known, *more])
        is_number = isinstance(value, int) and not isinstance(value, bool)
        found[name] = str(value) if isinstance(value, Path) or (is_number and known.get(name) is str) else value
    return found


def split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """-> data, loss and validation of a model of one's own; all others"""
    own = {name: value for name, value in options.items() if name in OF_OWN}
    return own, {name: value for name, value in options.items() if name not in OF_OWN}


def take_optimizer(options: dict[str, Any], model: nn.Module) -> Optimizer | None:
    """An Optimizer that stands among the options, in place of a name."""
    optimizer = options.get("optimizer")
    if not isinstance(optimizer, Optimizer):
        return None
    del options["optimizer"]
    name = type(optimizer).__name__
    for setting in OF_OPTIMIZER:
        if setting in options:
            raise PlaitError(f"{setting} {options[setting]} with an Optimizer, which has its own: give it to {name}.")
    if isinstance(optimizer, LBFGS):
        raise PlaitError("optimizer LBFGS computes the loss several times a step, and plait's loop once: use another.")
    own = {id(p) for p in model.parameters()}
    if any(id(p) not in own for group in optimizer.param_groups for p in group["params"]):
        raise PlaitError(f"optimizer {name} has parameters that the model lacks: make it with model.parameters().")
    try:
        json.dumps([{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups])
    except TypeError as e:
        raise PlaitError(f"optimizer {name} has settings that a checkpoint cannot hold ({e}): give numbers.") from None
    return optimizer


def about_model(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
    """What config.json says of a model of one's own."""
    shapes = {name: list(p.shape) for name, p in model.named_parameters()}
    return {"model": {"class": type(model).__name__, "parameters": shapes}} | (
        {} if optimizer is None else {"optimizer": type(optimizer).__name__}
    )
