"""The graph of a step: nodes that record what is done to them, the rules that differentiate them, and their text."""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NoReturn

from ..errors import PlaitError
from .base import FUNCTIONS
from .ops import floats

SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UFUNCS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv}


class Refused(Exception):
    """Something was done to a node that has no text for numbers."""


@dataclass(frozen=True, eq=False)
class Node:
    """One value of a traced step. Equal operations are one node."""

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

    def __pos__(self) -> "Node":
        return self

    def __abs__(self) -> "Node":
        return self.graph.node("abs", self)

    def __pow__(self, power: Any) -> "Node":
        if not isinstance(power, int | float) or power < 1 or power % 1:
            raise Refused(f"** {power!r}: powers are whole numbers from 1; ops.sqrt, ops.exp and ops.log do the others")
        if power % 2:
            return self if power == 1 else self ** (power - 1) * self
        half: Node = self ** (power // 2)
        return half * half

    def __lt__(self, other: Any) -> "Node":
        return self.graph.node("lt", self, other)

    def __le__(self, other: Any) -> "Node":
        return self.graph.node("le", self, other)

    def __gt__(self, other: Any) -> "Node":
        return self.graph.node("gt", self, other)

    def __ge__(self, other: Any) -> "Node":
        return self.graph.node("ge", self, other)

    __hash__ = object.__hash__

    # What numbers cannot do, or what would decide something before there are numbers.
    def __eq__(self, other: object) -> NoReturn:
        raise Refused("== and != compare values that are not there yet: use < <= > >= and ops.where")

    def __bool__(self) -> NoReturn:
        raise Refused("if, while, and, or, not ask for a value that is not there yet: use ops.where")

    def __float__(self) -> NoReturn:
        raise Refused("float() and the functions of math want a number that is not there yet: use those of ops")

    __int__ = __index__ = __complex__ = __round__ = __float__

    def __iter__(self) -> NoReturn:
        raise Refused("a value is one number of one unit: it has no parts")

    __len__ = __getitem__ = __contains__ = __iter__

    def __rpow__(self, base: Any) -> NoReturn:
        raise Refused("a value cannot be an exponent: use ops.exp")

    def __matmul__(self, other: Any) -> NoReturn:
        raise Refused("a step has no matrix products: it is computed for each unit by itself")

    __rmatmul__ = __matmul__

    def __mod__(self, other: Any) -> NoReturn:
        raise Refused("only + - * / and ** are known of Python's operators")

    __rmod__ = __floordiv__ = __rfloordiv__ = __and__ = __or__ = __xor__ = __invert__ = __mod__

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python's and NumPy's questions, not the author's
            raise AttributeError(name)
        raise Refused(f"a value has no .{name}: it is one number of one unit, so there are no sums over units")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise Refused("NumPy wants an array where there is a value of one unit: use the functions of ops")

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise Refused(f"numpy.{function.__name__} does not know these values: use the functions of ops")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> "Node":
        if method == "__call__" and ufunc.__name__ in UFUNCS:  # one of NumPy's numbers stands on the left
            result: Node = UFUNCS[ufunc.__name__](*(i if isinstance(i, Node) else self.graph.wrap(i) for i in inputs))
            return result
        raise Refused(f"numpy.{ufunc.__name__} does not know these values: use the functions of ops")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> NoReturn:
        name = getattr(function, "__name__", "a function")
        raise Refused(f"torch's {name} does not know these values: use the functions of ops, and params for vectors")

    @property
    def is_condition(self) -> bool:
        return self.op in COMPARISONS

    def is_const(self, value: float) -> bool:
        return bool(self.op == "const" and self.args[0] == value)


class TracedOps:
    def __init__(self, graph: "Graph") -> None:
        self.graph = graph

    def __getattr__(self, name: str) -> Callable[..., Node]:
        if name not in FUNCTIONS:
            raise Refused(f"ops has no {name}: it has {', '.join(FUNCTIONS)}")

        def function(*args: Any) -> Node:
            if len(args) != FUNCTIONS[name]:
                raise Refused(f"ops.{name} has {len(args)} arguments, expected {FUNCTIONS[name]}")
            return self.graph.where(*args) if name == "where" else self.graph.node(name, *args)

        return function


@dataclass
class Graph:
    nodes: dict[tuple[Any, ...], Node] = field(default_factory=dict)

    def node(self, op: str, *args: Any) -> Node:
        if op not in ("const", "input"):
            args = tuple(self.wrap(a) for a in args)
            if any(a.is_condition for a in args[op == "where" :]):
                raise Refused("a comparison is not a number: give it to ops.where as its first argument")
            if op in FUNCTIONS and all(a.op == "const" for a in args):
                return self.node("const", getattr(floats, op)(*(a.args[0] for a in args)))
        key = (op, *(id(a) if isinstance(a, Node) else a for a in args))
        return self.nodes.setdefault(key, Node(self, op, args))

    def input(self, name: str) -> Node:
        return self.node("input", name)

    def wrap(self, x: Any) -> Node:
        if isinstance(x, Node):
            return x
        if not isinstance(x, Real):
            raise Refused(f"{type(x).__name__} is neither a number nor a value of the step")
        return self.node("const", float(x))

    # The identities that keep the text short: 0 + x, x + (0 - y), (0 - x) + y, x - 0, 1 * x.
    def add(self, left: Any, right: Any) -> Node:
        x, y = self.wrap(left), self.wrap(right)
        if x.is_const(0.0):
            return y
        if y.is_const(0.0):
            return x
        for a, b in ((x, y), (y, x)):
            if b.op == "sub" and b.args[0].is_const(0.0):
                return self.node("sub", a, b.args[1])
        return self.node("add", x, y)

    def sub(self, left: Any, right: Any) -> Node:
        x, y = self.wrap(left), self.wrap(right)
        return x if y.is_const(0.0) else self.node("sub", x, y)

    def mul(self, left: Any, right: Any) -> Node:
        x, y = self.wrap(left), self.wrap(right)
        if x.is_const(1.0):
            return y
        return x if y.is_const(1.0) else self.node("mul", x, y)

    def where(self, condition: Any, a: Any, b: Any) -> Node:
        if not isinstance(condition, Node) or not condition.is_condition:
            raise Refused("ops.where needs a comparison of values as its first argument, such as x > 0")
        a, b = self.wrap(a), self.wrap(b)
        if all(x.op == "const" for x in condition.args):
            left, right = (x.args[0] for x in condition.args)
            chosen: Node = a if getattr(operator, condition.op)(left, right) else b
            return chosen
        if a.op == b.op == "const":  # arrays and tensors could not tell the precision of two numbers
            b = self.node("full", next(x for x in condition.args if x.op != "const"), b)
        return self.node("where", condition, a, b)


def share(a: Node, b: Node, d: Node) -> tuple[Node, Node]:
    """Of d, what a and b get if the larger of them is taken: all, nothing, or half of it at a tie.

    Who gets what is one number, so that one number can be kept for it instead of two. d is chosen by it and not
    multiplied, for 0 * inf is not 0.
    """
    where, half = d.graph.where, 0.5 * d
    of_a = where(a > b, 1.0, where(a < b, 0.0, 0.5))
    most, least = of_a > 0.75, of_a < 0.25
    return where(most, d, where(least, 0.0, half)), where(least, d, where(most, 0.0, half))


def choice(condition: Node, d: Node) -> tuple[Node, ...]:
    """What the arguments of a `where` get of d; its condition gets nothing."""
    where = d.graph.where
    chosen = where(condition, 1.0, 0.0)  # a number, which can be kept
    return d.graph.node("const", 0.0), where(chosen > 0.5, d, 0.0), where(chosen > 0.5, 0.0, d)


def sign(x: Node) -> Node:
    where = x.graph.where
    return where(x > 0.0, 1.0, where(x < 0.0, -1.0, x))  # x: 0 or NaN


# A node and its adjoint -> the adjoints of its arguments. These, and nothing else, are how plait differentiates.
RULES: dict[str, Callable[[Node, Node], tuple[Node, ...]]] = {
    "add": lambda n, d: (d, d),
    "sub": lambda n, d: (d, -d),
    "mul": lambda n, d: (d * n.args[1], d * n.args[0]),
    "div": lambda n, d: (d / n.args[1], -(d / n.args[1] * n)),
    "sigmoid": lambda n, d: (d * (n * (1 - n)),),
    "tanh": lambda n, d: (d * (1 - n * n),),
    "relu": lambda n, d: (d.graph.where(n <= 0.0, 0.0, d),),
    "exp": lambda n, d: (d * n,),
    "log": lambda n, d: (d / n.args[0],),
    "sqrt": lambda n, d: (d / (2.0 * n),),
    "abs": lambda n, d: (d * sign(n.args[0]),),
    "softplus": lambda n, d: (d * n.graph.node("sigmoid", n.args[0]),),
    "maximum": lambda n, d: share(n.args[0], n.args[1], d),
    "minimum": lambda n, d: share(n.args[1], n.args[0], d),  # a is taken where b is larger
    "where": lambda n, d: choice(n.args[0], d),
}


def in_order(results: Iterable[Node], stop: Callable[[Node], bool] = lambda node: False) -> list[Node]:
    """All that the results depend on, up to `stop`, in topological order."""
    order: dict[Node, None] = {}

    def is_missing(node: Node) -> bool:
        return not (node in order or node.op == "const" or stop(node))

    for result in results:
        stack = [result]  # no recursion: a step may have thousands of nodes, one behind another
        while stack:
            node = stack[-1]
            missing = [a for a in node.args if is_missing(a)] if node.op != "input" and is_missing(node) else []
            if missing:
                stack += reversed(missing)
                continue
            if is_missing(node):
                order[node] = None
            stack.pop()
    return list(order)


def adjoints(outputs: Iterable[Node], d_outputs: Iterable[Node]) -> dict[Node, Node]:
    outputs = tuple(outputs)
    result: dict[Node, Node] = {}
    for node, d in zip(outputs, d_outputs, strict=True):
        result[node] = result[node] + d if node in result else d
    for node in reversed(in_order(outputs)):
        if node.op in ("input", "full") or node not in result:
            continue
        for a, d in zip(node.args, RULES[node.op](node, result[node]), strict=True):
            if a.op != "const" and not a.is_condition:
                result[a] = result[a] + d if a in result else d
    return result


def write(name: str, arguments: list[tuple[str, Node]], results: list[tuple[str, Node]]) -> str:
    names = {node: label for label, node in reversed(arguments)}
    taken = {label for label, _ in arguments}
    wanted = {node: label for label, node in reversed(results) if node not in names and label not in taken}
    taken |= {label for label, _ in results}
    lines: list[str] = []
    temporaries = 0

    def value(node: Node) -> str:
        return repr(node.args[0]) if node.op == "const" else names[node]

    signs = SIGNS | COMPARISONS
    for node in in_order([node for _, node in results], lambda node: node in names):
        if node.op == "input":
            raise PlaitError(f"the derivative {name} needs {node.args[0]}: let step save it.")
        args = [value(a) for a in node.args]
        if node.op not in signs:
            text = f"{node.op}({', '.join(args)})"
        elif node.op == "sub" and node.args[0].is_const(0.0):
            text = f"-{args[1]}"
        else:
            text = f"{args[0]} {signs[node.op]} {args[1]}"
        if node in wanted:
            names[node] = wanted[node]
        else:
            temporaries += 1
            while f"t{temporaries}" in taken:
                temporaries += 1
            names[node] = f"t{temporaries}"
        lines.append(f"    {names[node]} = {text}")
    returned = [value(node) for _, node in results]
    head = f"def {name}({', '.join(label for label, _ in arguments)}):"
    return "\n".join([head, *lines, f"    return {', '.join(returned)}", ""])
