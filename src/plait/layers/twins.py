"""Which of plait's classes takes the place of a class of torch's, and of classes that others derived from it."""

import dis
import inspect
import threading
import types
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakValueDictionary

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from ..errors import PlaitError
from .drop_in import GRU, LSTM, RNN
from .step_cells import GRUCell, LSTMCell, RNNCell
from .swappable import TAKEN, Swappable, is_own, taken_name

# The one table that accelerate, restore, report and everywhere read.
TWINS: dict[type[nn.Module], type[Swappable]] = {
    **{nn.RNN: RNN, nn.LSTM: LSTM, nn.GRU: GRU},
    **{nn.RNNCell: RNNCell, nn.LSTMCell: LSTMCell, nn.GRUCell: GRUCell},
}
for theirs, ours in TWINS.items():
    ours._plait_torch = theirs

# What forward of torch's layers calls, and that of plait's does not.
UNCALLED = frozenset(("check_input", "check_hidden_size", "check_forward_args", "permute_hidden"))
UNCALLED |= {"get_expected_hidden_size", "get_expected_cell_size"}
_made: WeakValueDictionary[type, type[Swappable]] = WeakValueDictionary()  # theirs -> the class made from both
_lock = threading.RLock()


class NotSwapped(PlaitError):
    """Why a class has no twin, as words for a table, and what to do."""

    def __init__(self, why: str, todo: str) -> None:
        super().__init__(f"{why}: {todo}")
        self.why, self.todo = why, todo


def base_of(cls: type) -> type[nn.Module] | None:
    """The class of the table that it is, or is derived from."""
    return next((base for base in cls.__mro__ if base in TWINS), None)


def twin_of(cls: type[nn.Module]) -> type[Swappable]:
    """plait's class for it: of the table, or made from both, so that their code runs and lands in plait's forward."""
    if cls in TWINS:
        return TWINS[cls]
    with _lock:
        found = _made.get(cls)
        if found is None:
            found = _made[cls] = make(cls)
    return found


def twin_for(module: nn.Module, engine: str = "auto") -> type[Swappable]:
    """That of its class, unless the module itself has something of a name that plait's layers need."""
    taken = taken_name(module)
    if taken is not None:
        raise NotSwapped(f"a layer with an attribute '{taken}', as plait's have", "rename it")
    twin = twin_of(type_before_parametrizations(module))
    if not twin._plait_knows(engine):
        raise NotSwapped(f"a cell, and {engine} runs layers", "accelerate it by itself, with engine='auto'")
    return twin


def make(cls: type[nn.Module]) -> type[Swappable]:
    base = base_of(cls)
    if base is None or issubclass(cls, Swappable):
        raise NotSwapped("not one of torch.nn's layers", "use one of torch.nn's there")
    before = cls.__mro__[: cls.__mro__.index(base)]
    changed = [name for c in before for name in vars(c) if name in UNCALLED]
    if changed:
        raise NotSwapped(f"a subclass with a {changed[0]} of its own", "leave it to torch: plait does not call that")
    taken = [name for c in before for name in vars(c) if is_own(name) or name in TAKEN]
    if taken:
        raise NotSwapped(f"a subclass with an attribute '{taken[0]}', as plait's layers have", "rename it")
    if not lands(before):
        raise NotSwapped("a subclass with a forward of its own", "call super().forward in it")
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    body = {**names, "_plait_torch": cls, "_plait_is_made": True}
    try:
        return types.new_class(cls.__name__, (cls, TWINS[base]), exec_body=lambda space: space.update(body))
    except Exception as e:  # a metaclass or an __init_subclass__ of theirs, which may raise anything
        why = f"a subclass that refuses to be derived from ({type(e).__name__}: {e})"
        raise NotSwapped(why, "let its __init_subclass__ or metaclass allow that, or leave it to torch") from e


# --- whether a forward of theirs ends in super().forward
def lands(before: tuple[type, ...], start: int = 0) -> bool:
    """Whether the first forward of `before[start:]`, if there is one, ends in that of the class behind them all."""
    for k in range(start, len(before)):
        if "forward" in vars(before[k]):
            function = inspect.unwrap(vars(before[k])["forward"])
            if not isinstance(function, FunctionType):
                return False
            called = [following(names, function, k, before) for names in receivers(function.__code__)]
            return any(lands(before, j) for j in called if j is not None and j > k)
    return True


def following(names: list[str], function: FunctionType, k: int, before: tuple[type, ...]) -> int | None:
    """Where in `before` the search for a forward goes on, if it is called on these names; None if it bypasses plait."""
    if names == ["super"]:
        return k + 1
    is_super = names[0] == "super"
    found = resolved(names[1:] if is_super else names, function, before[k])
    if found not in before:
        return None  # torch's class by its name, or something else
    place = before.index(found)
    return place + 1 if is_super else place if "forward" in vars(found) else None


def resolved(names: list[str], function: FunctionType, owner: type) -> Any:
    name, *attributes = names
    free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    if name == "__class__":
        found: Any = owner
    else:
        found = free[name].cell_contents if name in free else function.__globals__.get(name)
    for attribute in attributes:
        found = getattr(found, attribute, None)
    return found


def receivers(code: CodeType) -> Iterator[list[str]]:
    """The names before each `.forward` in a function: [super], [super, Theirs], [nn, LSTM]."""
    names: list[str] = []
    for step in dis.get_instructions(code):
        operation = step.opname
        if operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            names = [*names, step.argval] if names == ["super"] else [step.argval]
        elif operation in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            if step.argval == "forward" and names:
                yield names
            names = [*names, step.argval] if names and step.argval != "forward" else []
        elif operation not in ("PUSH_NULL", "CACHE", "EXTENDED_ARG") and names[:1] != ["super"]:
            names = []
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from receivers(inner)
