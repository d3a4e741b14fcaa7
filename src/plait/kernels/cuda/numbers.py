"""A cell's text for the device. A number without a type would be a float64 there, and slow: each gets the layer's."""

import ast

from ...cells import Cell
from ...cells.trace import trace

# As cells/ops.py has them for floats: no branch overflows, also not in the simulator, where math's functions raise.
FUNCTIONS = """
def sigmoid(x):
    e = math.exp(-abs(x))
    return (one if x >= zero else e) / (one + e)

def tanh(x):
    return math.tanh(x)

def relu(x):
    return x if x > zero or x != x else zero

def exp(x):
    return inf if x > highest else math.exp(x)

def log(x):
    return math.log(x) if x > zero else (-inf if x == zero else nan)

def sqrt(x):
    return nan if x < zero else math.sqrt(x)

def softplus(x):
    return (x if x > zero else zero) + math.log1p(math.exp(-abs(x)))

def maximum(a, b):
    return a if a > b or a != a else b

def minimum(a, b):
    return a if a < b or a != a else b

def where(condition, a, b):
    return a if condition else b

def full(x, number):
    return number
"""


class Typed(ast.NodeTransformer):
    """1.0 -> plait_real(1.0)"""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, int | float):
            return node
        return ast.Call(ast.Name("plait_real", ast.Load()), [ast.Constant(float(node.value))], [])


def typed(text: str) -> str:
    return ast.unparse(ast.fix_missing_locations(Typed().visit(ast.parse(text)))) + "\n"


def step_and_vjp(cell: type[Cell], dt: float) -> list[str]:
    """The traced texts, under these names."""
    traced = trace(cell, dt)
    named = [(traced.step, "step"), (traced.vjp, "vjp")]
    return [text.replace(f"def {cell.name}_{name}(", f"def {name}(", 1) for text, name in named]


def cell_text(cell: type[Cell], dt: float) -> str:
    """Both, with numbers that have a type."""
    return "\n".join(map(typed, step_and_vjp(cell, dt)))
