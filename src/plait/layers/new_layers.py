"""Layers that do not exist yet: those that torch makes while this is on are plait's."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, overload

from torch import nn

from .swap import become_plaits
from .swappable import EVERYWHERE
from .twins import TWINS

ABSENT = object()
WATCHED = ("__init__", "__setstate__")  # a new layer; one that was unpickled or copied
_before: dict[tuple[type, str], Any] = {}  # what the classes had of their own, while it is on


@overload
def everywhere(on: None = None) -> AbstractContextManager[None]: ...
@overload
def everywhere(on: bool) -> None: ...
def everywhere(on: bool | None = None) -> AbstractContextManager[None] | None:
    """Every nn.RNN, LSTM and GRU that is made, copied or loaded inside is plait's, whoever makes it.

        with plait.everywhere():
            model.fit(data)  # builds its network here

    `plait.everywhere(True)` turns it on until `plait.everywhere(False)`, outside of blocks. It holds for all threads of
    the process, and not for processes that are started anew. The rules are those of `plait.accelerate`. Pickles that
    are made inside keep plait's classes. Blocks may be nested; when the last one ends, torch's classes are as before.
    """
    if on is None:
        return block()
    with EVERYWHERE.lock:
        EVERYWHERE.is_switched_on = bool(on)
        set_up()
    return None


@contextmanager
def block() -> Iterator[None]:
    with EVERYWHERE.lock:
        EVERYWHERE.blocks += 1
        set_up()
    try:
        yield
    finally:
        with EVERYWHERE.lock:
            EVERYWHERE.blocks -= 1
            set_up()


def set_up() -> None:
    """Watches torch's classes if it is on, and gives back what they had if it is off."""
    if EVERYWHERE.is_on and not _before:
        for cls in dict.fromkeys(theirs.__bases__[0] for theirs in TWINS):  # nn.RNNBase, nn.RNNCellBase
            for name in WATCHED:
                _before[cls, name] = vars(cls).get(name, ABSENT)
                setattr(cls, name, watched(getattr(cls, name)))
    elif not EVERYWHERE.is_on:
        for (cls, name), value in _before.items():
            if value is ABSENT:
                delattr(cls, name)
            else:
                setattr(cls, name, value)
        _before.clear()


def watched(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def run(self: nn.Module, *args: Any, **options: Any) -> None:
        method(self, *args, **options)
        if EVERYWHERE.is_on and become_plaits(self):  # another thread may have ended the block meanwhile
            self.__dict__["_plait_portable"] = True

    return run
