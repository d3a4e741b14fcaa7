"""torch.nn's layers with plait's forward, and how one becomes the other in place."""

from collections.abc import Mapping
from typing import TypeVar

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from .. import cells, engines
from ..cells import Cell
from ..solvers import Solver
from .arguments import check_solver
from .recurrent import Recurrent


class RNN(Recurrent, nn.RNN):
    """torch.nn.RNN, run by one of plait's engines. Arguments, parameters and results are the same.

        layer = plait.RNN(
            input_size, hidden_size, num_layers=1, nonlinearity="tanh", bias=True, batch_first=False, dropout=0.0,
            bidirectional=False, device=None, dtype=None, engine="auto", solver=plait.Serial(),
        )
        y, h = layer(x, hx=None, lengths=None, ids=None)

    `engine`, `solver`, `lengths` and `ids` are those of plait.LSTM.
    """

    @property
    def _plait_cell(self) -> type[Cell]:  # type: ignore[override]
        return cells.BY_MODE[self.mode]  # tanh or relu, which a user may change


class LSTM(Recurrent, nn.LSTM):
    """torch.nn.LSTM, run by one of plait's engines. Arguments, parameters and results are the same.

        layer = plait.LSTM(
            input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0,
            bidirectional=False, proj_size=0, device=None, dtype=None, engine="auto", solver=plait.Serial(),
        )
        y, (h, c) = layer(x, hx=None, lengths=None, ids=None)

    `engine` is what runs it: `plait engines` lists them. `solver` is how a sequence is solved over time, or its name.
    `lengths` are those of the sequences in a padded batch: nothing is computed for padding, and outputs beyond a length
    are zero.
    `ids` say which sequences these are, for a solver that starts from the states of their last visit.
    """

    _plait_cell = cells.LSTM


class GRU(Recurrent, nn.GRU):
    """torch.nn.GRU, run by one of plait's engines. Arguments, parameters and results are the same.

        layer = plait.GRU(
            input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0,
            bidirectional=False, device=None, dtype=None, engine="auto", solver=plait.Serial(),
        )
        y, h = layer(x, hx=None, lengths=None, ids=None)

    `engine`, `solver`, `lengths` and `ids` are those of plait.LSTM.
    """

    _plait_cell = cells.GRU


TWINS: dict[type[nn.Module], type[Recurrent]] = {twin.__bases__[1]: twin for twin in (RNN, LSTM, GRU)}
Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model, engine: str = "auto", solver: Solver | str | None = None) -> Model:
    """Gives every torch.nn.RNN, LSTM and GRU in the model plait's forward, in place, and returns the model.

    Parameters, hooks, parametrizations, flags and devices do not change. Your own subclasses of these layers are not
    touched. Engine and solver are also set for layers that are plait's already; without a solver these keep theirs.
    """
    engines.check_name(engine)
    chosen = None if solver is None else check_solver(solver)
    for module in model.modules():
        _swap(module, TWINS)
        if isinstance(module, Recurrent):
            module.engine = engine
            if chosen is not None:
                module.solver = chosen
    return model


def restore(model: Model) -> Model:
    """Undoes `accelerate`, also for layers made as plait.LSTM and so on, and returns the model.

    Layers of cells that torch lacks (ImplicitGRU, and your own) stay as they are.
    """
    for module in model.modules():
        if _swap(module, {ours: theirs for theirs, ours in TWINS.items()}):
            for name in ("engine", "solver", "_plait_warm_starts", "_plait_visits", "_plait_time"):
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
