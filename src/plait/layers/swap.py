"""torch's layers become plait's in place, and back."""

import warnings
from typing import TypeVar

from torch import nn
from torch.nn.utils.parametrize import _inject_new_class, is_parametrized, type_before_parametrizations

from .. import engines
from ..errors import PlaitWarning
from ..solvers import Solver
from .arguments import check_solver
from .copies import follow_copies, leave_copies
from .import_hook import came, went
from .layer_report import check_module, nothing_swapped, report
from .precision import check_precision
from .recurrent import Recurrent
from .swappable import Swappable, is_own, torch_class
from .twins import NotSwapped, base_of, twin_for

Model = TypeVar("Model", bound=nn.Module)


def accelerate(
    model: Model,
    engine: str = "auto",
    solver: Solver | str | None = None,
    *,
    precision: str | None = None,
    portable: bool = True,
    verbose: bool = False,
) -> Model:
    """Gives every torch.nn.RNN, LSTM and GRU, and cell of these, plait's forward, in place, and returns the model.

    Parameters, hooks, parametrizations, flags and devices do not change. Subclasses of these layers are swapped if
    their forward calls super().forward, or if they have none: their code runs, and lands in plait. Engine and solver
    are also set for layers that are plait's already; without a solver these keep theirs. An engine of CUDA devices runs
    layers: cells stay as they are, and the report names them.

    precision: "bf16", "float32", or None for what the weights and autocast say; None also leaves it to layers that are
    plait's already, to whom it was said before.
    portable: pickles of the model hold torch's classes, and load where there is no plait. False: they keep plait's.
    verbose: prints `plait.report(model)`.
    If nothing in the model is plait's afterwards, a warning says why.
    """
    check_module("accelerate", model)
    engines.check_name(engine)
    check_precision(precision)
    chosen = None if solver is None else check_solver(solver)
    for module in model.modules():
        if become_plaits(module, engine) or "_plait_portable" in module.__dict__:
            module.__dict__["_plait_portable"] = portable
        if isinstance(module, Swappable) and module._plait_knows(engine):
            module.engine = engine
            if precision is not None:
                module.precision = precision
        if isinstance(module, Recurrent) and chosen is not None:
            module.solver = chosen
    follow_copies(model, become_plaits)
    if verbose:
        report(model)
    if not any(isinstance(module, Swappable) for module in model.modules()):
        sentence = nothing_swapped(model, engine)
        if sentence is not None:
            warnings.warn(sentence, PlaitWarning, stacklevel=2)
    return model


def restore(model: Model) -> Model:
    """Undoes `accelerate`, also for layers made as plait.LSTM and so on, and returns the model.

    Layers of cells that torch lacks (ImplicitGRU, and your own) stay as they are.
    """
    check_module("restore", model)
    for module in model.modules():
        theirs = torch_class(type_before_parametrizations(module)) if isinstance(module, Swappable) else None
        if theirs is not None:
            become(module, theirs)
            for name in [name for name in vars(module) if is_own(name)]:
                del module.__dict__[name]
        leave_copies(module)
    return model


def become_plaits(module: nn.Module, engine: str = "auto") -> bool:
    """Whether it was torch's, and is plait's now."""
    cls: type[nn.Module] = type_before_parametrizations(module)
    if base_of(cls) is None or issubclass(cls, Swappable):
        return False
    try:
        become(module, twin_for(module, engine))
    except NotSwapped:
        return False
    return True


def become(module: nn.Module, cls: type[nn.Module]) -> None:
    before, module.__class__ = type(module), cls
    if is_parametrized(module):  # torch made a class for this module alone, with a property for each parametrization
        _inject_new_class(module)
        for name, value in vars(before).items():
            if isinstance(value, property):
                setattr(type(module), name, value)
    if issubclass(cls, Swappable):
        came(module)
    else:
        went(id(module))
