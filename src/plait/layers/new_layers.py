"""Layers that do not exist yet: those that torch makes while this is on are plait's."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any, overload

from torch import nn

from .swap import become_plaits
from .swappable import EVERYWHERE, Swappable
from .twins import TWINS

ABSENT = object()
WATCHED = ("__init__", "__setstate__")  # a new layer; one that was unpickled or copied
MARK = "_plait_own"  # of what stands in a class while it is on: what the class had of its own


@overload
def everywhere(on: None = None) -> AbstractContextManager[None]: ...
@overload
def everywhere(on: bool) -> None: ...
def everywhere(on: bool | None = None) -> AbstractContextManager[None] | None:
    """Every nn.RNN, LSTM and GRU, and cell of these, that is made, copied or loaded inside is plait's, by whomever.

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
    """Watches torch's classes and those derived from them if it is on, and gives back what they had if it is off."""
    for root in dict.fromkeys(theirs.__bases__[0] for theirs in TWINS):  # nn.RNNBase, nn.RNNCellBase
        if EVERYWHERE.is_on:
            put(root, "__init_subclass__", partial(deriving, root))
        else:
            take_back(root, "__init_subclass__")
        for cls in tree(root):
            if EVERYWHERE.is_on:
                watch(cls)
            else:
                for name in WATCHED:
                    take_back(cls, name)


def tree(cls: type) -> Iterator[type]:
    """A class and all that are derived from it, but not plait's own."""
    if not issubclass(cls, Swappable):
        yield cls
        for derived in cls.__subclasses__():
            yield from tree(derived)


def watch(cls: type) -> None:
    for name in WATCHED:
        put(cls, name, partial(watched, cls, name))


def watched(cls: Any, name: str, own: Any) -> Callable[..., None]:
    """That method of a class. A new object becomes plait's when the method of its own class ends: a derived class may
    set attributes after that of its base, and they decide whether it is swapped.
    """

    def run(self: nn.Module, *args: Any, **options: Any) -> None:
        if own is ABSENT:
            getattr(super(cls, self), name)(*args, **options)
        else:
            own(self, *args, **options)
        # another thread may have ended the block meanwhile
        if type(self) is cls and EVERYWHERE.is_on and become_plaits(self):
            self.__dict__["_plait_portable"] = True

    return run if own is ABSENT else wraps(own)(run)


def deriving(root: Any, own: Any) -> Any:
    """A class that is made while it is on is watched, too."""

    def __init_subclass__(cls: Any, /, **options: Any) -> None:
        before = super(root, cls).__init_subclass__ if own is ABSENT else own.__get__(None, cls)
        before(**options)
        if not issubclass(cls, Swappable):
            with EVERYWHERE.lock:
                if EVERYWHERE.is_on:
                    watch(cls)

    return classmethod(__init_subclass__)


# --- methods of others' classes: the one that takes the place knows what was there
def put(cls: type, name: str, make: Callable[[Any], Any]) -> None:
    own = vars(cls).get(name, ABSENT)
    if not hasattr(own, MARK):
        made = make(own)
        setattr(made, MARK, own)
        setattr(cls, name, made)


def take_back(cls: type, name: str) -> None:
    found = vars(cls).get(name)
    own = getattr(found, MARK, None)
    if own is ABSENT:
        delattr(cls, name)
    elif own is not None:
        setattr(cls, name, own)
