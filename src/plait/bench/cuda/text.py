"""Versions 1 to 3 as text: what one training step does for one sample, and the kernel around it.

A sample's rows are found as layout.py has them: step t begins at row starts[t], and sample b is alive there if it has
that many. past_k holds state k before the first step, B rows, and after each one. Everything is in the device's main
memory. A number without a type would be a float64 there, and slow: each gets the layer's.
"""

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...cells import Cell
from ...cells.ops import Floats
from ...cells.trace import trace
from ...kernels.cuda.form import Form, call, each, indented, saved_places, step_and_vjp

SIZES = ("T", "B", "N", "I", "H")
TANH = "def tanh(x):\n    return math.tanh(x)\n"
# By whether there is a thread for each sample, or one for all. Gradients are sums over samples: threads must not be in
# each other's way.
ADD = {
    False: "def add(array, place, value):\n    array[place] += value\n",
    True: "def add(array, place, value):\n    cuda.atomic.add(array, place, value)\n",
}
SAMPLE = """
last = b
for t in range(T):
    if b < starts[t + 1] - starts[t]:
        row = starts[t] + b
        new = B + row
        old = b if t == 0 else B + starts[t - 1] + b
        last = new
        for r in range(w_ih.shape[0]):
            total = b_ih[r]
            for i in range(I):
                total += w_ih[r, i] * x[row, i]
            wx[row, r] = total
        for j in range(H):
            $start_rh
            for q in range(H):
                $add_rh
            $step
            $keep
loss[b] = zero
for j in range(H):
    $clear
for o in range(w_out.shape[0]):
    total = b_out[o]
    for q in range(H):
        total += w_out[o, q] * past_0[last, q]
    error = total - y[b, o]
    loss[b] += error * error * scale[0]
    error = (error + error) * scale[0]
    add(d_b_out, o, error)
    for q in range(H):
        add(d_w_out, (o, q), error * past_0[last, q])
        d_state_0[b, q] += error * w_out[o, q]
for s in range(T):
    t = T - 1 - s
    if b < starts[t + 1] - starts[t]:
        row = starts[t] + b
        new = B + row
        old = b if t == 0 else B + starts[t - 1] + b
        for j in range(H):
            $vjp
            $spread
        for q in range(H):
            total = d_state_0[b, q]
            for r in range(w_hh.shape[0]):
                total += d_rh[row, r] * w_hh[r, q]
            d_state_0[b, q] = total
for r in range(w_ih.shape[0]):
    for i in range(I):
        total = zero
        for t in range(T):
            if b < starts[t + 1] - starts[t]:
                total += d_wx[starts[t] + b, r] * x[starts[t] + b, i]
        add(d_w_ih, (r, i), total)
    for q in range(H):
        total = zero
        for t in range(T):
            if b < starts[t + 1] - starts[t]:
                old = b if t == 0 else B + starts[t - 1] + b
                total += d_rh[starts[t] + b, r] * past_0[old, q]
        add(d_w_hh, (r, q), total)
    total = zero
    of_rh = zero
    for t in range(T):
        if b < starts[t + 1] - starts[t]:
            total += d_wx[starts[t] + b, r]
            of_rh += d_rh[starts[t] + b, r]
    add(d_b_ih, r, total)
    add(d_b_hh, r, of_rh)
"""
AROUND = {False: "    for b in range(B):\n", True: "    b = cuda.grid(1)\n    if b < B:\n"}


class Typed(ast.NodeTransformer):
    """1.0 -> plait_real(1.0)"""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, int | float):
            return node
        return ast.Call(ast.Name("plait_real", ast.Load()), [ast.Constant(float(node.value))], [])


def typed(text: str) -> str:
    return ast.unparse(ast.fix_missing_locations(Typed().visit(ast.parse(text)))) + "\n"


def functions() -> list[str]:
    """What a step may call, as cells/ops.py has it for floats: no branch overflows, also not in the simulator."""
    texts = [TANH]
    for node in ast.walk(ast.parse(inspect.getsource(Floats))):
        if isinstance(node, ast.FunctionDef) and node.name != "like":
            node.decorator_list, node.returns = [], None
            for argument in node.args.args:
                argument.annotation = None
            texts.append(typed(ast.unparse(node)))
    return texts


def filled(template: str, lines: Mapping[str, Sequence[str]]) -> list[str]:
    """The lines of a template. A line `$name` stands for the lines of that name, with its indentation."""
    found = []
    for line in template.strip().splitlines():
        indent, dollar, name = line.partition("$")
        found += [indent + some for some in lines[name]] if dollar else [line]
    return found


class Text(NamedTuple):
    functions: str  # that the kernel calls
    kernel: str
    arrays: tuple[str, ...]  # in the order of its arguments, which begin with SIZES


def text_of(cell: type[Cell], positioned: bool) -> Text:
    """positioned: a thread for each sample; else one thread runs all of them."""
    gates, states, params = (range(len(some)) for some in (cell.gates, cell.states, cell.params))
    saved, shared = saved_places(Form(cell)), all(trace(cell).shared)
    old, new, own = (
        each(one, some)
        for one, some in (("past_{k}[old, j]", states), ("past_{k}[new, j]", states), ("param_{k}[j]", params))
    )
    stepped = [*each("new_{k}", states), *each("saved_{k}", range(len(saved)))]
    derived = [*each("d_wx_{k}", gates), *each("d_rh_{k}", gates), *each("d_old_{k}", states)]
    derived += each("d_own_{k}", params)
    lines = filled(
        SAMPLE,
        {
            "start_rh": each("rh_{k} = b_hh[{k} * H + j]", gates),
            "add_rh": each("rh_{k} += w_hh[{k} * H + j, q] * past_0[old, q]", gates),
            "step": [call(stepped, "step", [*each("wx[row, {k} * H + j]", gates), *each("rh_{k}", gates), *old, *own])],
            "keep": [*each("past_{k}[new, j] = new_{k}", states), *(f"{p} = saved_{k}" for k, p in enumerate(saved))],
            "clear": each("d_state_{k}[b, j] = zero", states),
            "vjp": [call(derived, "vjp", [*saved, *old, *new, *own, *each("d_state_{k}[b, j]", states)])],
            "spread": [
                *each("d_wx[row, {k} * H + j] = d_wx_{k}", gates),
                *([] if shared else each("d_rh[row, {k} * H + j] = d_rh_{k}", gates)),
                *each("d_state_{k}[b, j] = d_old_{k}", states),
                *each("add(d_param_{k}, j, d_own_{k})", params),
            ],
        },
    )
    body = indented(lines, 2)
    body = body.replace("d_rh[", "d_wx[") if shared else body
    arrays = tuple(dict.fromkeys(added or used for added, used in re.findall(r"add\((\w+)|(?<![.\w])(\w+)\[", body)))
    kernel = f"def kernel({', '.join((*SIZES, *arrays))}):\n{AROUND[positioned]}{body}"
    return Text("\n".join([*functions(), ADD[positioned], *map(typed, step_and_vjp(cell, 1))]), kernel, arrays)
