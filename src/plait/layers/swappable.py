"""A layer that stands in for one of torch's: what copies, pickles and torch's own tools get to see of it."""

import copy
import copyreg
import threading
from typing import Any, Self

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from .. import engines
from ..cells import Cell
from ..errors import PlaitError
from .autograd import no_trace
from .import_hook import came

TAKEN = ("plan", "last_solve")  # of the classes
# Attributes of an instance that torch's layers lack, beside those named _plait_...
OWN = ("engine", "solver", "precision", "checkpoint")


class Switch:
    """Whether `plait.everywhere` is on, in the whole process: new layers are plait's, and pickles keep plait's."""

    def __init__(self) -> None:
        self.lock, self.blocks, self.is_switched_on = threading.RLock(), 0, False

    @property
    def is_on(self) -> bool:
        return self.is_switched_on or self.blocks > 0


EVERYWHERE = Switch()


def is_own(name: str) -> bool:
    return name in OWN or name.startswith("_plait_")


def taken_name(module: nn.Module) -> str | None:
    """An attribute of this module of torch's, or a submodule or tensor, with a name that plait's layers need."""
    names = (*vars(module), *module._modules, *module._buffers, *module._parameters)
    return next((name for name in names if is_own(name) or name in TAKEN), None)


def torch_class(cls: type) -> type[nn.Module] | None:
    """What `restore` gives back; None for classes that torch lacks, and for those that users derive from ours."""
    return vars(cls).get("_plait_torch")


class Swappable(nn.Module):
    """A mixin for plait's layers, before the class of torch.nn that they derive from.

    A deep copy is plait's. A pickle holds torch's class if the layer was torch's before (`_plait_portable`), so that
    it loads where there is no plait.
    """

    _plait_cell: type[Cell]
    _plait_torch: type[nn.Module] | None = None  # the class that `restore` gives back
    _plait_is_made = False  # the class was made from a subclass of torch's and plait's (twins.py)
    _plait_portable = False
    engine = "auto"
    precision: str | None = None

    def __new__(cls, *args: Any, **options: Any) -> Self:
        self = super().__new__(cls)
        came(self)
        return self

    @classmethod
    def _plait_knows(cls, engine: str) -> bool:
        """Whether layers of this class can have that engine, on whatever device."""
        return True

    def _plait_engine(self, dtype: torch.dtype, device: torch.device) -> str:
        """What runs it on such weights. `forward` and `plait.report` ask here."""
        if dtype is torch.bfloat16 and device.type == "cpu" and self.engine in ("auto", "fused"):
            dtype = torch.float32  # converted at each call (precision.py)
        choose: Any = engines.choose if torch.compiler.is_compiling() else engines.chosen
        name: str = choose(self.engine, self._plait_cell, dtype, device)
        return name

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(protocol)
        theirs = torch_class(type(self))
        if theirs is None or isinstance(reduced, str) or reduced[1][:1] != (type(self),):
            return reduced  # as it is: a class of the user's own, or one that says itself how to make it
        make, arguments, state, *rest = reduced
        if self._plait_portable and not EVERYWHERE.is_on:
            # not __newobj__: pickle insists on the class of the object there
            make, arguments = copyreg._reconstructor, (theirs, object, None)  # type: ignore[attr-defined]
            state = {k: v for k, v in state.items() if not is_own(k)} if isinstance(state, dict) else state
        elif self._plait_is_made:
            make, arguments = blank, (theirs,)
        return make, arguments, state, *rest

    def __copy__(self) -> Any:
        other = copy._reconstruct(self, None, *super().__reduce_ex__(4))  # type: ignore[attr-defined]
        for name in ("_plait_step", "_plait_block"):  # a copy is not in the block of `plait.packed`
            other.__dict__.pop(name, None)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if not is_parametrized(self):
            return copy._reconstruct(self, memo, *super().__reduce_ex__(4))  # type: ignore[attr-defined]
        other = memo[id(self)] = type(self).__new__(type(self))  # torch refuses their __getstate__
        other.__dict__ = copy.deepcopy(self.__dict__, memo)
        return other

    def __prepare_scriptable__(self) -> Any:
        raise no_trace("torch.jit.script", self._plait_cell)

    def _plait_no_quantization(self) -> PlaitError:
        todo = "torch has no such layer" if self._plait_torch is None else "plait.restore(model) first"
        return PlaitError(f"torch.ao.quantization cannot quantize plait's layers: {todo}.")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "qconfig" and value is not None:  # torch.ao.quantization sets it first; None says: not this one
            raise self._plait_no_quantization()
        super().__setattr__(name, value)


def blank(theirs: type[nn.Module]) -> nn.Module:
    """An instance without attributes of the class that is plait's for theirs: a pickle fills it."""
    from .twins import twin_of

    cls = twin_of(theirs)
    return cls.__new__(cls)
