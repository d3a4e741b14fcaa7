"""Versions 1 to 3 as text: what one training step does for one sample, and the kernel around it.

Rows are step after step: sample b has rows b, B + b, 2 B + b and so on. past_k holds state k before the first step, B
rows, and after each one, so that the state after row r is in row r + B. Gradients are sums over samples, and threads
must not be in each other's way. A number without a type would be a float64, and slow: each gets the layer's.
"""

import inspect
import re
from string import Template
from textwrap import dedent, indent

from ...cells import Cell
from ...cells.ops import Floats
from ...kernels.cuda.form import Form, call, each, step_and_vjp

SIZES = "    B, N, I, H = y.shape[0], x.shape[0], x.shape[1], w_hh.shape[1]\n"
SAMPLE = """for j in range(H):
    $clear
for row in range(b, N, B):
    for j in range(H):
        $start
        for i in range(I):
            $add_wx
        for q in range(H):
            $add_rh
        $step
scale = plait_real(1.0) / plait_real(y.size)
loss[b] = zero
for o in range(w_out.shape[0]):
    total = b_out[o]
    for q in range(H):
        total += w_out[o, q] * past_0[N + b, q]
    error = total - y[b, o]
    loss[b] += error * error * scale
    error = (error + error) * scale
    cuda.atomic.add(d_b_out, o, error)
    for q in range(H):
        cuda.atomic.add(d_w_out, (o, q), error * past_0[N + b, q])
        d_state_0[b, q] += error * w_out[o, q]
for row in range(N - B + b, -1, -B):
    for j in range(H):
        $vjp
    for q in range(H):
        total = d_state_0[b, q]
        for r in range(w_hh.shape[0]):
            total += d_rh[row, r] * w_hh[r, q]
        d_state_0[b, q] = total
for r in range(w_ih.shape[0]):
    for i in range(I):
        total = zero
        for row in range(b, N, B):
            total += d_wx[row, r] * x[row, i]
        cuda.atomic.add(d_w_ih, (r, i), total)
    for q in range(H):
        total = zero
        for row in range(b, N, B):
            total += d_rh[row, r] * past_0[row, q]
        cuda.atomic.add(d_w_hh, (r, q), total)
    total = zero
    of_rh = zero
    for row in range(b, N, B):
        total += d_wx[row, r]
        of_rh += d_rh[row, r]
    cuda.atomic.add(d_b_ih, r, total)
    cuda.atomic.add(d_b_hh, r, of_rh)
"""


def typed(text: str) -> str:
    """1.0 -> plait_real(1.0)"""
    return re.sub(r"(?<![\w.])(\d[\d.]*(e-?\d+)?)", r"plait_real(\1)", text)


def floats() -> list[str]:
    """What a step may call, as cells/ops.py has it for floats: no branch overflows, also not in the simulator."""
    every = (some.__func__ for some in vars(Floats).values() if isinstance(some, staticmethod))
    texts = [dedent(inspect.getsource(function)) for function in every if inspect.isfunction(function)]
    return [re.sub(r"@staticmethod\n|: \w+(?=[,)])| -> \w+", "", text) for text in texts]


def text_of(cell: type[Cell]) -> tuple[str, str, tuple[str, ...]]:
    """-> the functions that the kernel calls, the kernel, and its arrays, which are its arguments"""
    form = Form(cell)
    gates, states, params = (range(len(some)) for some in (cell.gates, cell.states, cell.params))
    G, own = len(gates), each("param_{k}[j]", params)
    saved = [f"gates[row, {k} * H + j]" if k < G else f"extra[row, {k - G} * H + j]" for k in form.saved]
    old, new = each("past_{k}[row, j]", states), each("past_{k}[row + B, j]", states)
    wx, rh = each("wx_{k}", gates), each("rh_{k}", gates)
    d_wx = each("d_wx[row, {k} * H + j]", gates)
    d_rh = each("d_rh_{k}" if form.shared else "d_rh[row, {k} * H + j]", gates)
    d_states, d_own = each("d_state_{k}[b, j]", states), each("d_own_{k}", params)
    step = call([*new, *saved], "step", [*wx, *rh, *old, *own])
    vjp = call([*d_wx, *d_rh, *d_states, *d_own], "vjp", [*saved, *old, *new, *own, *d_states])
    lines = {
        "clear": [f"{place} = zero" for place in (*each("past_{k}[b, j]", states), *d_states)],
        "start": each("wx_{k} = b_ih[{k} * H + j]; rh_{k} = b_hh[{k} * H + j]", gates),
        "add_wx": each("wx_{k} += w_ih[{k} * H + j, i] * x[row, i]", gates),
        "add_rh": each("rh_{k} += w_hh[{k} * H + j, q] * past_0[row, q]", gates),
        "step": [step],
        "vjp": [vjp, *each("cuda.atomic.add(d_param_{k}, j, d_own_{k})", params)],
    }
    body = Template(SAMPLE).substitute({name: "; ".join(some) for name, some in lines.items()})
    body = body.replace("d_rh[", "d_wx[") if form.shared else body
    found = re.findall(r"add\((\w+)|(?<![.\w])(\w+)\[", body)
    arrays = tuple(dict.fromkeys(added or used for added, used in found))
    head = f"def kernel({', '.join(arrays)}):\n{SIZES}    for b in range(cuda.grid(1), B, cuda.gridsize(1)):\n"
    functions = typed("\n".join([*floats(), *step_and_vjp(cell, 1)]))
    return functions, head + indent(body, " " * 8), arrays
