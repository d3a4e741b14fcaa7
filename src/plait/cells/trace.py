"""The derivative of a cell, traced from its step and written out as straight-line Python.

`step` is run once on nodes that record what is done to them; the vector-Jacobian product follows by applying RULES
backwards. The text that comes out can be read (`plait equations gru`), runs on floats, arrays and tensors, and can be
compiled.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

from .base import Cell, Ops

SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
FUNCTIONS = ("sigmoid", "tanh", "relu", "masked")


@dataclass(frozen=True, eq=False)
class Node:
    """One value of a traced step. Nodes with the same operation and arguments are one node."""

    graph: "Graph"
    op: str
    args: tuple[Any, ...]

    def __add__(self, other: Any) -> "Node":
        return self.graph.add(self, other)

    def __radd__(self, other: Any) -> "Node":
        return self.graph.add(other, self)

    def __sub__(self, other: Any) -> "Node":
        return self.graph.sub(self, other)

    def __rsub__(self, other: Any) -> "Node":
        return self.graph.sub(other, self)

    def __mul__(self, other: Any) -> "Node":
        return self.graph.mul(self, other)

    def __rmul__(self, other: Any) -> "Node":
        return self.graph.mul(other, self)

    def __truediv__(self, other: Any) -> "Node":
        return self.graph.node("div", self, other)

    def __rtruediv__(self, other: Any) -> "Node":
        return self.graph.node("div", other, self)

    def __neg__(self) -> "Node":
        return self.graph.sub(0.0, self)

    def is_const(self, value: float) -> bool:
        return self.op == "const" and self.args[0] == value


@dataclass
class Graph:
    nodes: dict[tuple[Any, ...], Node] = field(default_factory=dict)

    def node(self, op: str, *args: Any) -> Node:
        if op not in ("const", "input"):
            args = tuple(self.wrap(a) for a in args)
        key = (op, *(id(a) if isinstance(a, Node) else a for a in args))
        return self.nodes.setdefault(key, Node(self, op, args))

    def wrap(self, x: Node | float) -> Node:
        return x if isinstance(x, Node) else self.node("const", float(x))

    # The identities that keep the text short: 0 + x, x + (0 - y), (0 - x) + y, x - 0, 1 * x.
    def add(self, left: Node | float, right: Node | float) -> Node:
        x, y = self.wrap(left), self.wrap(right)
        if x.is_const(0.0):
            return y
        if y.is_const(0.0):
            return x
        for a, b in ((x, y), (y, x)):
            if b.op == "sub" and b.args[0].is_const(0.0):
                return self.node("sub", a, b.args[1])
        return self.node("add", x, y)

    def sub(self, left: Node | float, right: Node | float) -> Node:
        x, y = self.wrap(left), self.wrap(right)
        return x if y.is_const(0.0) else self.node("sub", x, y)

    def mul(self, left: Node | float, right: Node | float) -> Node:
        x, y = self.wrap(left), self.wrap(right)
        if x.is_const(1.0):
            return y
        return x if y.is_const(1.0) else self.node("mul", x, y)

    @property
    def ops(self) -> Ops:
        def function(op: str) -> Callable[..., Node]:
            return lambda *args: self.node(op, *args)

        return SimpleNamespace(**{op: function(op) for op in FUNCTIONS})


# A node and its adjoint -> the adjoints of its arguments. These, and nothing else, are how plait differentiates.
RULES: dict[str, Callable[[Node, Node], tuple[Node, ...]]] = {
    "add": lambda n, d: (d, d),
    "sub": lambda n, d: (d, -d),
    "mul": lambda n, d: (d * n.args[1], d * n.args[0]),
    "div": lambda n, d: (d / n.args[1], -(d / n.args[1] * n)),
    "sigmoid": lambda n, d: (d * (n * (1 - n)),),
    "tanh": lambda n, d: (d * (1 - n * n),),
    "relu": lambda n, d: (n.graph.node("masked", d, n),),
}


def adjoints(outputs: Iterable[Node], d_outputs: Iterable[Node]) -> dict[Node, Node]:
    """Every node that the outputs depend on -> its adjoint."""
    outputs = tuple(outputs)
    order: dict[Node, None] = {}  # arguments before the nodes that use them

    def visit(node: Node) -> None:
        if node in order or node.op == "const":
            return
        for a in node.args:
            if isinstance(a, Node):
                visit(a)
        order[node] = None

    for node in outputs:
        visit(node)
    result: dict[Node, Node] = {}
    for node, d in zip(outputs, d_outputs, strict=True):
        result[node] = result[node] + d if node in result else d
    for node in reversed(order):
        if node.op == "input" or node not in result:
            continue
        for a, d in zip(node.args, RULES[node.op](node, result[node]), strict=True):
            if a.op != "const":
                result[a] = result[a] + d if a in result else d
    return result


def write(name: str, arguments: list[tuple[str, Node]], results: list[tuple[str, Node]]) -> str:
    """The text of a function that computes the results from the arguments, and from nothing else."""
    names = {node: label for label, node in reversed(arguments)}
    wanted = {node: label for label, node in reversed(results) if node not in names and node.op != "const"}
    lines: list[str] = []
    temporaries = 0

    def value(node: Node) -> str:
        nonlocal temporaries
        if node in names:
            return names[node]
        if node.op == "const":
            return repr(node.args[0])
        if node.op == "input":
            raise ValueError(f"the derivative of {name} needs {node.args[0]}: let step save it.")
        args = [value(a) for a in node.args]
        if node.op not in SIGNS:
            text = f"{node.op}({', '.join(args)})"
        elif node.op == "sub" and node.args[0].is_const(0.0):
            text = f"-{args[1]}"
        else:
            text = f"{args[0]} {SIGNS[node.op]} {args[1]}"
        if node in wanted:
            names[node] = wanted[node]
        else:
            temporaries += 1
            names[node] = f"t{temporaries}"
        lines.append(f"    {names[node]} = {text}")
        return names[node]

    returned = [value(node) for _, node in results]
    head = f"def {name}({', '.join(label for label, _ in arguments)}):"
    return "\n".join([head, *lines, f"    return {', '.join(returned)}", ""])


@dataclass(frozen=True)
class Trace:
    """A cell's step of length dt and its derivative, as text.

    step: (wx per gate, rh per gate, state) -> (new state, saved)
    vjp:  (saved, state, new state, d_ of the new state) -> (d_wx per gate, d_rh per gate, d_ of the state)
    """

    step: str
    vjp: str
    shared: int  # for so many gates, counted from the first, d_wx and d_rh are one: wx and rh meet only in their sum


@lru_cache(maxsize=256)
def trace(cell: Cell, dt: float = 1) -> Trace:
    if not 0 < dt < float("inf"):
        raise ValueError(f"dt {dt}: a step must be longer than 0, and finite.")
    graph = Graph()

    def inputs(pattern: str, labels: Iterable[str]) -> list[tuple[str, Node]]:
        names = [pattern.format(label) for label in labels]
        return [(name, graph.node("input", name)) for name in names]

    wx, rh = inputs("wx_{}", cell.gates), inputs("rh_{}", cell.gates)
    old, d_new = inputs("{}", cell.states), inputs("d_{}_new", cell.states)
    values = [[node for _, node in group] for group in (wx, rh, old)]
    new_nodes, saved_nodes = cell.step(values[0], values[1], values[2], dt, graph.ops)
    new = [(f"{s}_new", graph.wrap(node)) for s, node in zip(cell.states, new_nodes, strict=True)]
    saved = [(s, graph.wrap(node)) for s, node in zip(cell.saved, saved_nodes, strict=True)]
    adjoint = adjoints([node for _, node in new], [node for _, node in d_new])
    zero = graph.node("const", 0.0)
    d_inputs = [(f"d_{label}", adjoint.get(node, zero)) for label, node in (*wx, *rh, *old)]
    count = len(cell.gates)
    return Trace(
        step=write(f"{cell.name}_step", [*wx, *rh, *old], [*new, *saved]),
        vjp=write(f"{cell.name}_vjp", [*saved, *old, *new, *d_new], d_inputs),
        shared=sum(1 for _ in takewhile(lambda g: d_inputs[g][1] is d_inputs[count + g][1], range(count))),
    )


def compiled(text: str, ops: Ops) -> Callable[..., tuple[Any, ...]]:
    """The text as a Python function on whatever numbers `ops` is for."""
    scope: dict[str, Any] = {op: getattr(ops, op) for op in FUNCTIONS}
    exec(text, scope)  # text that `write` produced
    function = scope[text[4 : text.index("(")]]
    return lambda *args: result if isinstance(result := function(*args), tuple) else (result,)
