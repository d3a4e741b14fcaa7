"""Deep copies of modules that build their layers anew when they are copied: those layers become plait's again."""

import copy
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from torch import nn

from .swappable import OWN, Swappable

REBUILDING = ("__setstate__", "__reduce__", "__reduce_ex__", "__deepcopy__")
OPTIONS = ("_plait_portable", *OWN)
Swap = Callable[[nn.Module], bool]
_followed: dict[type, WeakSet[nn.Module]] = {}  # classes with a __deepcopy__ of ours -> the accelerated modules
_lock = threading.RLock()


def follow_copies(model: nn.Module, swap: Swap) -> None:
    """From now on, deep copies of the modules in a model have plait's layers where these have.

    Modules without methods of their own for that are copied attribute by attribute, so their layers stay plait's. The
    others get a __deepcopy__ on their class, which changes nothing for a module without plait's layers.
    """
    for module in model.modules():
        cls = type(module)
        if rebuilds(cls) and any(isinstance(inner, Swappable) for inner in module.modules()):
            with _lock:
                if cls not in _followed:
                    _followed[cls] = WeakSet()
                    cls.__deepcopy__ = following(cls, swap)  # type: ignore[attr-defined]
                _followed[cls].add(module)


def leave_copies(module: nn.Module) -> None:
    """Gives the class of a module back what it had, if this was the last one."""
    cls = type(module)
    with _lock:
        if cls not in _followed:
            return
        _followed[cls].discard(module)
        if not _followed[cls]:
            own = vars(cls)["__deepcopy__"].own
            if own is None:
                del cls.__deepcopy__  # type: ignore[attr-defined]
            else:
                cls.__deepcopy__ = own  # type: ignore[attr-defined]
            del _followed[cls]


def rebuilds(cls: type[nn.Module]) -> bool:
    """Whether someone else's code makes its copies. torch's own modules copy the layers that they have."""
    own = [base for base in cls.__mro__[: cls.__mro__.index(nn.Module)] if not base.__module__.startswith("torch.")]
    return not issubclass(cls, Swappable) and any(name in vars(base) for base in own for name in REBUILDING)


def following(cls: type, swap: Swap) -> Callable[..., Any]:
    found: Callable[..., Any] | None = getattr(cls, "__deepcopy__", None)

    def __deepcopy__(self: nn.Module, memo: dict[int, Any]) -> Any:
        if found is not None:
            return alike(self, found(self, memo), swap)
        return alike(self, copy._reconstruct(self, memo, *self.__reduce_ex__(4)), swap)  # type: ignore[attr-defined]

    __deepcopy__.own = vars(cls).get("__deepcopy__")  # type: ignore[attr-defined]
    return __deepcopy__


def alike(module: nn.Module, other: Any, swap: Swap) -> Any:
    """Makes those layers of a copy plait's that are plait's in the module, with the same options."""
    copies = dict(other.named_modules(remove_duplicate=False))
    for name, layer in module.named_modules(remove_duplicate=False):
        twin = copies.get(name)
        if isinstance(layer, Swappable) and twin is not None and swap(twin):
            twin.__dict__.update({key: layer.__dict__[key] for key in OPTIONS if key in layer.__dict__})
    follow_copies(other, swap)
    return other
