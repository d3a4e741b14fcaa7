"""A layer as text for Triton: a block of threads for a group of samples, one launch for all steps.

A step goes through the units tile by tile. A tile's R h is a sum of small products along h, and the cell's own text
follows at once. h is read back from main memory, which the second cache holds; a barrier stands between the writing of
a state and its reading.

A sample's rows are found as layout.py has them: step t begins at row starts[t], and sample b is alive there if it has
that many. past_k holds state k before the first step and after each one: first the initial rows, then the others; in
reverse the others come first.
"""

import re

from ...cells.trace import trace
from .form import Form, block, call, each, indented, step_and_vjp

ZEROS = "tl.zeros((BB, BN), tl.float32)"
FUNCTIONS = """
import triton
import triton.language as tl

inf = tl.constexpr(float("inf"))
nan = tl.constexpr(float("nan"))

@triton.jit
def sigmoid(x):
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, e) / (1.0 + e)

@triton.jit
def tanh(x):
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x * (1.0 + s * (-0.33333334 + s * (0.13333334 + s * (-0.053968254 + s * 0.021869488))))
    return tl.where(s < 0.0625, near, tl.where(x < 0.0, -far, far))

@triton.jit
def relu(x):
    return tl.where((x > 0.0) | (x != x), x, 0.0)

@triton.jit
def softplus(x):
    e = tl.exp(-tl.abs(x))
    return tl.where(x > 0.0, x, 0.0) + tl.where(e < 1e-3, e * (1.0 - e * (0.5 - e * 0.33333334)), tl.log(1.0 + e))

@triton.jit
def maximum(a, b):
    return tl.where((a > b) | (a != a), a, b)

@triton.jit
def minimum(a, b):
    return tl.where((a < b) | (a != a), a, b)

@triton.jit
def where(condition, a, b):
    return tl.where(condition, a, b)

@triton.jit
def full(x, number):
    return tl.full(x.shape, number, x.dtype)
"""
FUNCTIONS += "".join(
    f"\n@triton.jit\ndef {name}(x):\n    return tl.{name}(x)\n" for name in ("exp", "log", "sqrt", "abs")
)
# what a kernel reads and writes: its arguments, in the order in which its text has them
ARRAYS = re.compile(
    r"\b(starts|wx|d_wx|d_rh|w_hh|b_hh|w_hr|gates|extra|raw|d_projected|(?:d_)?param_\d"
    r"|(?:past|after|source|given|d_state)_\d)\b"
)

SIZES = ("T", "B", "N", "H", "P")
TILES = ("BB: tl.constexpr", "BN: tl.constexpr", "BK: tl.constexpr", "PRECISION: tl.constexpr")
DOT = "{total} += tl.dot({a}, {b}, input_precision=PRECISION)"


def product(totals: list[str], rows: str, width: str, depth: str, matrices: list[str]) -> list[str]:
    """Each total (BB, BN) grows by rows (BB, depth) times one of the matrices, of which a tile is {k}, {j}."""
    lines = ["k = k0 + tl.arange(0, BK)", f"in_k = k < {depth}"]
    lines.append(f"left = tl.load({rows}, mask=here[:, None] & in_k[None, :], other=0.0)")
    for total, matrix in zip(totals, matrices, strict=True):
        lines.append(f"right = tl.load({matrix}, mask=in_k[:, None] & in_{width}[None, :], other=0.0)")
        lines.append(DOT.format(total=total, a="left", b="right"))
    return block(f"for k0 in range(0, {depth}, BK):", lines)


def tiles(index: str, end: str, *bodies: list[str]) -> list[str]:
    """For all columns, a tile at a time."""
    head = [f"{index} = {index}0 + tl.arange(0, BN)", f"in_{index} = {index} < {end}"]
    head.append(f"mask = here[:, None] & in_{index}[None, :]")
    return block(f"for {index}0 in range(0, {end}, BN):", head, *bodies)


def at(array: str, row: str, width: str, column: str) -> str:
    return f"{array} + {row}[:, None] * {width} + ({column})[None, :]"


def load(array: str, row: str, width: str, column: str) -> str:
    return f"tl.load({at(array, row, width, column)}, mask=mask, other=0.0)"


def store(array: str, row: str, width: str, column: str, value: str) -> str:
    return f"tl.store({at(array, row, width, column)}, {value}, mask=mask)"


def steps(form: Form, body: list[str], back: bool = False) -> list[str]:
    if form.reverse:
        after = ["after = tl.load(starts + t + 1)"]
        after.append("old = tl.where(b < tl.load(starts + t + 2) - after, after + b, N + b)")
        old = ["old = N + b", *block("if t + 1 < T:", after)]
    else:
        old = ["old = b", *block("if t > 0:", ["old = B + tl.load(starts + t - 1) + b"])]
    live = ["here = b < live", "row = begin + b", f"new = row{'' if form.reverse else ' + B'}", *old, *body]
    head = [f"t = {'T - 1 - s' if form.reverse != back else 's'}", "begin = tl.load(starts + t)"]
    head.append("live = tl.load(starts + t + 1) - begin")
    return block("for s in range(T):", head, block("if live > first:", live))


def place(form: Form, k: int) -> tuple[str, str, str, str]:
    """Where what is saved is: the matrix, its row, its width, the column."""
    G, E = len(form.cell.gates), trace(form.cell, form.dt).extra
    return (
        ("gates", "row", f"({G} * H)", f"{k} * H + j") if k < G else ("extra", "row", f"({E} * H)", f"{k - G} * H + j")
    )


def state(name: str, k: int, row: str, column: str = "j") -> tuple[str, str, str, str]:
    return f"{name}_{k}", row, "P" if k == 0 else "H", column


def reads(form: Form) -> list[str]:
    """The old states, but for an h that is projected; and the cell's own parameters."""
    lines = [f"old_{k} = {ZEROS if form.is_raw(k) else load(*state('past', k, 'old'))}" for k in form.states]
    return lines + each("param_{k}_j = tl.load(param_{k} + j, mask=in_j, other=0.0)[None, :]", form.params)


def forward(form: Form) -> list[str]:
    gates, rows = form.gates, f"({len(form.gates)} * H)"
    unit = each("rh_{k} = " + ZEROS, gates)
    matrices = each("w_hh + ({k} * H + j)[None, :] * P + k[:, None]", gates)
    unit += product(each("rh_{k}", gates), at("past_0", "old", "P", "k"), "j", "P", matrices)
    if form.bias:
        unit += each("rh_{k} += tl.load(b_hh + {k} * H + j, mask=in_j, other=0.0)[None, :]", gates)
    unit += [f"wx_{g} = {load('wx', 'row', rows, f'{g} * H + j')}" for g in gates]
    unit += reads(form)
    results = [*each("new_{k}", form.states), *each("saved_{k}", form.saved)]
    arguments = [*each("wx_{k}", gates), *each("rh_{k}", gates), *each("old_{k}", form.states)]
    unit.append(call(results, "step", [*arguments, *each("param_{k}_j", form.params)]))
    for k in form.states:
        if form.is_raw(k):
            unit.append(store("raw", "row", "H", "j", "new_0"))
            continue
        if form.source:
            unit.append(f"new_{k} += {load(*state('source', k, 'row'))}")
        unit.append(store(*state("past", k, "new"), f"new_{k}"))
    unit += [store(*place(form, k), f"saved_{k}") for k in form.saved]
    body = [*tiles("j", "H", unit), "tl.debug_barrier()"]
    if form.projected:
        unit = [f"total = {ZEROS}"]
        unit += product(["total"], at("raw", "row", "H", "k"), "q", "H", ["w_hr + q[None, :] * H + k[:, None]"])
        if form.source:
            unit.append(f"total += {load(*state('source', 0, 'row', 'q'))}")
        unit.append(store(*state("past", 0, "new", "q"), "total"))
        body += [*tiles("q", "P", unit), "tl.debug_barrier()"]
    return steps(form, body)


def incoming(form: Form, k: int, column: str) -> list[str]:
    """d_ of a state after the step."""
    lines = [f"d_{k} = {load(*state('d_state', k, 'b', column))}"]
    if form.given and form.given[k]:
        lines.append(f"d_{k} += {load(*state('given', k, 'row', column))}")
    return lines


def backward(form: Form) -> list[str]:
    G, S, body, unit = form.gates, form.states, [], []
    if form.projected:
        d_h = [*incoming(form, 0, "q"), store("d_projected", "row", "P", "q", "d_0")]
        body = [*tiles("q", "P", d_h), "tl.debug_barrier()"]
        unit = [f"d_0 = {ZEROS}"]
        unit += product(["d_0"], at("d_projected", "row", "P", "k"), "j", "P", ["w_hr + k[:, None] * H + j[None, :]"])
    unit += [line for k in S if not form.is_raw(k) for line in incoming(form, k, "j")]
    unit += [f"saved_{k} = {load(*place(form, k))}" for k in form.saved]
    for k in S:
        after = state("after", k, "row") if form.apart else state("past", k, "new")
        unit.append(f"new_{k} = {load('raw', 'row', 'H', 'j') if form.is_raw(k) else load(*after)}")
    unit += reads(form)
    results = [*each("d_wx_{k}", G), *each("d_rh_{k}", G), *each("d_old_{k}", S), *each("d_own_{k}", form.params)]
    arguments = [*each("saved_{k}", form.saved), *each("old_{k}", S), *each("new_{k}", S)]
    unit.append(call(results, "vjp", [*arguments, *each("param_{k}_j", form.params), *each("d_{k}", S)]))
    rows = f"({len(G)} * H)"
    for name in ("d_wx",) if form.shared else ("d_wx", "d_rh"):
        unit += [store(name, "row", rows, f"{g} * H + j", f"{name}_{g}") for g in G]
    unit += [store(*state("d_state", k, "b"), f"d_old_{k}") for k in S if not form.is_raw(k)]
    for k in form.params:  # each block has a row of its own, so that the order of the sum is fixed
        unit.append(f"own_{k} = d_param_{k} + tl.program_id(0) * H + j")
        unit.append(f"sum_{k} = tl.sum(tl.where(mask, d_own_{k} + {ZEROS}, 0.0), 0)")
        unit.append(f"tl.store(own_{k}, tl.load(own_{k}, mask=in_j, other=0.0) + sum_{k}, mask=in_j)")
    body += [*tiles("j", "H", unit), "tl.debug_barrier()"]
    unit = [f"total = {ZEROS if form.projected else load(*state('d_state', 0, 'b', 'q'))}"]
    d_rh = at("d_wx" if form.shared else "d_rh", "row", rows, "k")
    unit += product(["total"], d_rh, "q", rows, ["w_hh + k[:, None] * P + q[None, :]"])
    unit.append(store(*state("d_state", 0, "b", "q"), "total"))
    body += [*tiles("q", "P", unit), "tl.debug_barrier()"]
    return steps(form, body, back=True)


def text_of(form: Form, kind: str) -> tuple[str, tuple[str, ...]]:
    """-> the text, whose last function is `kernel`; the arrays in the order of its arguments, which begin with SIZES"""
    begin = ["first = tl.program_id(0) * BB", "b = (first + tl.arange(0, BB)).to(tl.int64)"]
    body = indented([*begin, *{"recur": forward, "recur_vjp": backward}[kind](form)])
    arrays = tuple(dict.fromkeys(ARRAYS.findall(body)))
    head = f"@triton.jit(do_not_specialize=['T', 'B', 'N'])\ndef kernel({', '.join((*SIZES, *arrays, *TILES))}):\n"
    cell = [f"@triton.jit\n{text}" for text in step_and_vjp(form.cell, form.dt)]
    return "\n".join([FUNCTIONS, *cell, head]) + body, arrays
