"""torch.nn's layers with plait's forward, and how one becomes the other in place."""

from collections.abc import Mapping
from typing import TypeVar

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from .. import cells, engines
from ..cells import Cell
from .recurrent import Recurrent


class Twin(Recurrent):
    """Its second base is a layer of torch.nn, whose `mode` says which cell it has."""

    @property
    def _plait_cell(self) -> type[Cell]:  # type: ignore[override]
        return cells.BY_MODE[self.mode]


class RNN(Twin, nn.RNN):
    """torch.nn.RNN, run by one of plait's engines.

    The arguments, parameters and results are the same. There are more arguments: `engine` (see `plait engines`),
    `solver` (how a sequence is solved over time), and in calls `lengths=`, for sequences of different lengths in a
    padded batch.
    """


class LSTM(Twin, nn.LSTM):
    """torch.nn.LSTM, run by one of plait's engines.

    The arguments, parameters and results are the same. There are more arguments: `engine` (see `plait engines`),
    `solver` (how a sequence is solved over time), and in calls `lengths=`, for sequences of different lengths in a
    padded batch.
    """


class GRU(Twin, nn.GRU):
    """torch.nn.GRU, run by one of plait's engines.

    The arguments, parameters and results are the same. There are more arguments: `engine` (see `plait engines`),
    `solver` (how a sequence is solved over time), and in calls `lengths=`, for sequences of different lengths in a
    padded batch.
    """


TWINS: dict[type[nn.Module], type[Recurrent]] = {twin.__bases__[1]: twin for twin in (RNN, LSTM, GRU)}
Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model, engine: str = "auto") -> Model:
    """Gives every torch.nn.RNN, LSTM and GRU in the model plait's forward, in place, and returns the model.

    Parameters, hooks, parametrizations, flags and devices do not change. Your own subclasses of these layers are not
    touched. The engine is also set for layers that are plait's already.
    """
    engines.check_name(engine)
    for module in model.modules():
        _swap(module, TWINS)
        if isinstance(module, Recurrent):
            module.engine = engine
    return model


def restore(model: Model) -> Model:
    """Undoes `accelerate`, also for layers made as plait.LSTM and so on. (ImplicitGRU, which torch lacks, stays.)"""
    for module in model.modules():
        if _swap(module, {ours: theirs for theirs, ours in TWINS.items()}):
            for name in ("engine", "solver"):
                module.__dict__.pop(name, None)
    return model


def _swap(module: nn.Module, twins: Mapping[type[nn.Module], type[nn.Module]]) -> bool:
    cls = type(module)
    if cls in twins:
        module.__class__ = twins[cls]
        return True
    if is_parametrized(module) and cls.__bases__[0] in twins:  # torch made a class for this module: make one like it
        body = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
        twin = twins[cls.__bases__[0]]
        module.__class__ = type(f"Parametrized{twin.__name__}", (twin,), body)
        return True
    return False
