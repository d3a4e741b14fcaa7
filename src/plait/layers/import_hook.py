"""Other libraries that must know of plait's layers are told when they are imported, while there are such layers."""

import sys
import weakref
from collections.abc import Callable
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

Tell = Callable[[Any], None]
AWAITED: dict[str, Tell] = {}  # modules that were not told yet, and what tells them
_layers: dict[int, weakref.ref[Any]] = {}  # plait's that live, by id: not all of them can be hashed


class Finder(MetaPathFinder):
    """An import hook: it leaves finding to the other finders, and hooks the loader of a module that is awaited."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in AWAITED:
            return None
        for finder in [*sys.meta_path]:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                hook(spec.loader, name)
                return spec
        return None


FINDER = Finder()


def hook(loader: Any, name: str) -> None:
    run = loader.exec_module

    def exec_module(module: Any) -> None:
        del loader.exec_module
        run(module)
        tell(name, module)

    loader.exec_module = exec_module


def tell(name: str, module: Any) -> None:
    told = AWAITED.pop(name, None)  # once, by one thread
    if told is not None:
        told(module)
        set_up()


def came(layer: Any) -> None:
    """A layer of plait's is there. What is imported already is told of it now."""
    key = id(layer)
    _layers[key] = weakref.ref(layer, lambda _: went(key))
    for name in [name for name in AWAITED if name in sys.modules]:
        tell(name, import_module(name))  # which waits for a thread that imports it at the moment
    set_up()


def went(key: int) -> None:
    """The layer with that id is gone, or is torch's again."""
    _layers.pop(key, None)
    set_up()


def set_up() -> None:
    """Puts the finder in its place if it is needed, and takes it away if it is not.

    Without a lock, because garbage collection comes here at any time: it looks again until all is as it should be.
    """
    while sys.meta_path is not None and is_there() != bool(AWAITED and _layers):  # None: the interpreter ends
        if is_there():  # a new list: another thread may be going through this one
            sys.meta_path = [finder for finder in sys.meta_path if finder is not FINDER]
        else:
            sys.meta_path.insert(0, FINDER)


def is_there() -> bool:
    return any(finder is FINDER for finder in sys.meta_path)
