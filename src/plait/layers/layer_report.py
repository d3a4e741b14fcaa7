"""Which layers of a model are plait's, which are not, why, and what to do."""

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from .. import engines
from ..errors import PlaitError
from .swappable import Swappable
from .twins import TWINS, NotSwapped, base_of, twin_for

RECURRENT = re.compile(r"(LSTM|GRU|RNN)(Cell)?$")  # how classes are called that are likely to be recurrent
LIKELY = ("policy", "model", "module", "module_", "network", "net", "models")  # where others keep their network
WIDEST = 100  # columns of the table


class Row(NamedTuple):
    """A recurrent layer of a model."""

    name: str  # in the model, as named_modules() has it; of the model itself: ""
    kind: str  # the class
    engine: str | None  # what runs it if it is plait's, else None
    why: str  # why it is not plait's, or why torch runs it
    todo: str  # what to do about it


def report(model: nn.Module) -> list[Row]:
    """Prints a table of the recurrent layers of a model: which are plait's, which are not and why, what to do.

    Returns the rows of the table: name, kind, engine (None: it is not plait's), why, todo.
    """
    check_module("report", model)
    rows = find(model)
    print(table(rows) if rows else absent(model))
    return rows


def find(model: nn.Module, engine: str | None = None) -> list[Row]:
    """One row for each recurrent layer, in the order of named_modules(), then those that modules() does not show.

    engine: that the model is to have; if it is not said, that of its first layer that is plait's
    """
    if engine is None:
        engine = next((module.engine for module in model.modules() if isinstance(module, Swappable)), "auto")
    rows = [row for name, module in model.named_modules() if (row := row_of(name, module, engine)) is not None]
    seen = {id(module) for module in model.modules()}
    for name, hidden in hidden_modules(model, seen):
        others = [(k, m) for k, m in hidden.named_modules() if id(m) not in seen]
        inner = [row for k, m in others if (row := row_of(k, m, engine)) is not None]
        seen.update(map(id, hidden.modules()))
        todo = f"accelerate its {name.rpartition('.')[2]} itself"
        for row in inner:
            why = {} if row.engine else {"why": "hidden from modules()", "todo": todo}
            rows.append(row._replace(name=f"{name}.{row.name}".rstrip("."), **why))
    return rows


def row_of(name: str, module: nn.Module, engine: str) -> Row | None:
    cls = type_before_parametrizations(module)
    if isinstance(module, torch.jit.ScriptModule):
        todo = "leave it to torch: plait cannot run in scripted models"
        return Row(name, module.original_name, None, "scripted", todo) if is_scripted_layer(module) else None
    if isinstance(module, Swappable):
        return Row(name, cls.__name__, *running(module))
    base, kind = base_of(cls), cls.__name__
    if base is not None:
        try:
            twin_for(module, engine)
        except NotSwapped as e:
            return Row(name, kind, None, e.why, e.todo)
        return Row(name, kind, None, "not swapped yet", "plait.accelerate(model)")
    if isinstance(module, nn.RNNBase | nn.RNNCellBase) or (RECURRENT.search(kind) and not holds_layers(module)):
        return Row(name, kind, None, "not one of torch.nn's layers", "use one of torch.nn's there")
    return None


def running(module: Swappable) -> tuple[str, str, str]:
    """-> engine, why that is torch's or cannot run, what to do"""
    weight = next(module.parameters(), None)
    dtype, device = (torch.float32, torch.device("cpu")) if weight is None else (weight.dtype, weight.device)
    try:
        engine = module._plait_engine(dtype, device)
    except PlaitError as e:
        return module.engine, *split(str(e))
    if module.engine == "auto" and engine == "torch":
        return engine, *split(engines.get("fused").why_not(module._plait_cell, dtype, device) or "")
    return engine, "", ""


def split(sentence: str) -> tuple[str, str]:
    """-> what was found, what to do"""
    why, _, todo = sentence.partition(": ")
    return why, todo.rstrip(".")


def is_scripted_layer(module: torch.jit.ScriptModule) -> bool:
    return module.original_name in {theirs.__name__ for theirs in TWINS}


def holds_layers(module: nn.Module) -> bool:
    """Whether a layer inside it has a row of its own."""
    inner = [m for m in module.modules() if m is not module]
    return any(isinstance(m, nn.RNNBase | nn.RNNCellBase) or RECURRENT.search(type(m).__name__) for m in inner)


def hidden_modules(model: nn.Module, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """Networks that are attributes and no submodules, as some losses have them."""
    for name, module in model.named_modules():
        for key, value in modules_in(vars(module)):
            if id(value) not in seen:
                yield f"{name}.{key}".lstrip("."), value


def modules_in(attributes: dict[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    """Modules among attributes, also one level down in a list, tuple or dict: `net`, `models[0]`."""
    for key, value in attributes.items():
        if key in ("_modules", "_parameters", "_buffers"):
            continue
        if isinstance(value, nn.Module):
            yield key, value
        elif isinstance(value, list | tuple | dict):
            items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((f"{key}[{k!r}]", item) for k, item in list(items)[:100] if isinstance(item, nn.Module))


# --- sentences
def absent(model: nn.Module) -> str:
    return (
        f"{type(model).__name__} has no nn.RNN, nn.LSTM or nn.GRU, nor a cell of these. "
        "If it builds its network later, put `with plait.everywhere():` around that."
    )


def nothing_swapped(model: nn.Module, engine: str) -> str | None:
    """None if all its layers are plait's already, in networks that modules() does not show."""
    rows = find(model, engine)
    if not rows:
        return f"plait.accelerate swapped nothing: {absent(model)}"
    rows = [row for row in rows if row.engine is None]
    if not rows:
        return None
    first, more = rows[0], f" ({len(rows) - 1} more: plait.report)" if len(rows) > 1 else ""
    what = f"{first.name or 'the model'} ({first.kind}) is {first.why}: {first.todo}"
    return f"plait.accelerate swapped nothing: {what}{more}."


def check_module(function: str, model: Any) -> None:
    """An error that says what to pass instead, if this is no module."""
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type):
        raise TypeError(f"plait.{function} was given the class {model.__name__}: pass an instance, a torch.nn.Module.")
    later = "call it after fit, or put `with plait.everywhere():` around what builds the network"
    if model is None:
        raise TypeError(f"plait.{function} was given None, expected a torch.nn.Module: {later}.")
    attributes = getattr(model, "__dict__", {})
    found = dict(modules_in(attributes))
    place = min(found, key=lambda key: [*LIKELY, key.partition("[")[0]].index(key.partition("[")[0]), default="")
    unbuilt = next((key for key in LIKELY if key in attributes and attributes[key] is None), None)
    todo = f"pass its .{place}" if found else f"its .{unbuilt} is still None: {later}" if unbuilt else later
    raise TypeError(f"plait.{function} was given a {type(model).__name__}, expected a torch.nn.Module: {todo}.")


def table(rows: list[Row]) -> str:
    """Columns as wide as they need to be, and as the terminal allows: the last one is folded."""
    cells = [("layer", "class", "plait's", "why not, and what to do")]
    for row in rows:
        remark = "; ".join(part for part in (row.why, row.todo) if part)
        cells.append((row.name or "(the model)", row.kind, row.engine or "no", remark))
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    limits = [width // 3, width // 5, 12]
    widths = [min(limit, max(len(cell[k]) for cell in cells)) for k, limit in enumerate(limits)]
    widths.append(max(16, width - sum(widths) - 6))
    lines = []
    for cell in cells:
        folded = [textwrap.wrap(text, w) or [""] for text, w in zip(cell, widths, strict=True)]
        for k in range(max(map(len, folded))):
            parts = [(part[k] if k < len(part) else "").ljust(w) for part, w in zip(folded, widths, strict=True)]
            lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)
