"""The derivative of a cell, traced from its step and written out as straight-line Python.

`step` is run once on nodes that record what is done to them (graph.py); the vector-Jacobian product follows by applying
RULES backwards, and what has to be saved for it is chosen (saved.py). The texts that come out can be read (`plait
equations gru`), run on floats, arrays and tensors, and can be compiled.
"""

import linecache
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar, cast

from ..errors import PlaitError
from .base import FUNCTIONS, NAMES, Cell, Ops, labels
from .graph import Graph, Node, Refused, TracedOps, adjoints, in_order, write
from .saved import choose

MOST = 256  # traces that are remembered
Function = TypeVar("Function", bound=Callable[..., Any])


def remembered(function: Function) -> Function:
    """lru_cache; mypy does not know that classes have a hash."""
    return cast(Function, lru_cache(MOST)(function))


class CannotTrace(PlaitError):
    """A step that is not made of numbers alone: which line, and why."""


@dataclass(frozen=True)
class Trace:
    """A cell's step of length dt and its derivative, as text.

    step: (wx per gate, rh per gate, states, params) -> (new states, saved)
    vjp:  (saved, states, new states, params, d_ of the new states)
          -> (d_wx per gate, d_rh per gate, d_ of the states, d_ of the params)
    """

    step: str
    vjp: str
    saved: tuple[str, ...]  # the names of what is kept
    shared: tuple[bool, ...]  # per gate: d_wx and d_rh are one, for wx and rh meet only in their sum
    reads_h: bool  # the old h itself, not only R h: then h cannot be projected

    @property
    def extra(self) -> int:
        """Columns of a tape beside those of the gates."""
        return max(len(self.saved) - len(self.shared), self.shared.count(False))


@remembered
def trace(cell: type[Cell], dt: float = 1) -> Trace:
    if not 0 < dt < math.inf:
        raise PlaitError(f"dt {dt}: a step must be longer than 0, and finite.")
    if dt != 1 and "dt" not in cell.optional:
        return trace(cell)
    graph = Graph()

    def inputs(group: str) -> list[tuple[str, Node]]:
        return [(label, graph.input(label)) for label in labels(cell, group)]

    wx, rh, old, params, d_new = (inputs(group) for group in ("wx", "rh", "old", "params", "d_new"))
    groups = [tuple(node for _, node in some) for some in (wx, rh, old, params)]
    new_nodes, saved_nodes = run_on_nodes(cell, graph, groups, dt)
    new = list(zip(labels(cell, "new"), new_nodes, strict=True))
    adjoint = adjoints(new_nodes, [node for _, node in d_new])
    zero = graph.node("const", 0.0)
    d_inputs = [(f"d_{label}", adjoint.get(node, zero)) for label, node in (*wx, *rh, *old, *params)]
    given = [*old, *new, *params, *d_new]
    if saved_nodes is None:
        results, at_hand = [node for _, node in d_inputs], {node for _, node in given}
        kept = choose(results, at_hand, {node for _, node in d_new}, len(cell.gates))
        saved = named(cell, kept, {label for label, _ in (*given, *d_inputs)})
    else:
        saved = list(zip(cell.saved or (), saved_nodes, strict=True))
    stops, h = {node for _, node in (*saved, *new)}, old[0][1]
    read = in_order([*new_nodes, *(node for _, node in saved)])
    read += in_order([node for _, node in d_inputs], lambda node: node in stops)
    return Trace(
        step=write(f"{cell.name}_step", [*wx, *rh, *old, *params], [*new, *saved]),
        vjp=write(f"{cell.name}_vjp", [*saved, *given], d_inputs),
        saved=tuple(label for label, _ in saved),
        shared=tuple(d_inputs[g][1] is d_inputs[len(wx) + g][1] for g in range(len(wx))),
        reads_h=any(node is h for node in read),
    )


def why_untraceable(cell: type[Cell], dt: float = 1) -> str | None:
    return _why_untraceable(cell, dt)


why_untraceable._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler's mark, without importing it


@remembered
def _why_untraceable(cell: type[Cell], dt: float) -> str | None:
    try:
        trace(cell, dt)
    except CannotTrace as e:
        return str(e)
    return None


def run_on_nodes(
    cell: type[Cell], graph: Graph, values: list[tuple[Node, ...]], dt: float
) -> tuple[list[Node], list[Node] | None]:
    try:
        wx, rh, old, params = values
        new, saved = cell.run(wx, rh, old, params, dt, TracedOps(graph))
    except PlaitError:
        raise
    except Exception as e:
        why = str(e) if isinstance(e, Refused) else f"{type(e).__name__}: {e}"
        raise CannotTrace(f"cell {cell.name} cannot be traced: {location(cell, e)}: {why}.") from e
    for value in (*new, *(saved or ())):
        if not isinstance(value, Node) or value.is_condition:
            kind = "a comparison" if isinstance(value, Node) else f"{value!r:.40}"
            raise CannotTrace(
                f"cell {cell.name} cannot be traced: {location(cell, None)}: it returns {kind}, which is not a value."
            )
    return list(new), None if saved is None else list(saved)


def location(cell: type[Cell], error: Exception | None) -> str:
    """The innermost line of the cell's file; without an error, that of the step."""
    code = getattr(cell.step, "__code__", None)
    if code is None:
        return "its step"
    file, line = code.co_filename, code.co_firstlineno
    for frame, number in walk_tb(error.__traceback__ if error else None):
        if frame.f_code.co_filename == file:
            line = number
    text = linecache.getline(file, line).strip()
    return f"{Path(file).name}, line {line}" + (f", `{text}`" if text else "")


def named(cell: type[Cell], kept: Iterable[Node], taken: set[str]) -> list[tuple[str, Node]]:
    """A gate's function has its name, an input its own, the others t1, t2, ..."""
    names: dict[str, Node] = {}
    others = []
    taken = taken | set(NAMES)
    for node in kept:
        gates = {g for g in cell.gates if node.op in FUNCTIONS and reads(node, g)}
        label = gates.pop() if len(gates) == 1 else node.args[0] if node.op == "input" else ""
        if not label or label in taken or label in names:
            others.append(node)
        else:
            names[label] = node
    count = 0
    for node in others:
        count += 1
        while f"t{count}" in taken or f"t{count}" in names:
            count += 1
        names[f"t{count}"] = node
    order = {label: k for k, label in enumerate(cell.gates)}
    return sorted(names.items(), key=lambda item: order.get(item[0], len(order)))


def reads(node: Node, gate: str) -> bool:
    """Whether a function is applied directly to that gate's W x + b or R h + c."""
    inner = in_order(node.args, lambda other: other.op in FUNCTIONS)
    return any(n.op == "input" and n.args[0] in (f"wx_{gate}", f"rh_{gate}") for n in inner)


def compiled(text: str, ops: Ops) -> Callable[..., tuple[Any, ...]]:
    """The text as a Python function on whatever numbers `ops` is for."""
    scope: dict[str, Any] = {name: getattr(ops, name, None) or getattr(math, name) for name in NAMES}
    exec(text, scope)  # text that `write` produced
    function = scope[text[4 : text.index("(")]]
    return lambda *args: result if isinstance(result := function(*args), tuple) else (result,)
