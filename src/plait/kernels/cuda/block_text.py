"""A layer as text for Triton: a block of threads for a group of samples, one launch for all steps.

A step goes through the units tile by tile. A tile's R h is a sum of small products along h, and the cell's own text
follows at once. h is read back from main memory, which the second cache holds; a barrier stands between the writing of
a state and its reading.

A sample's rows are found as layout.py has them: step t begins at row starts[t], and sample b is alive there if it has
that many. past_k holds state k before the first step and after each one: first the initial rows, then the others; in
reverse the others come first.
"""

from ...cells import Cell
from ...cells.trace import trace
from .form import Form, block, call, each, indented, saved_places, step_and_vjp

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
def exp(x):
    return tl.exp(x)

@triton.jit
def log(x):
    return tl.log(x)

@triton.jit
def sqrt(x):
    return tl.sqrt(x)

@triton.jit
def abs(x):
    return tl.abs(x)

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

SIZES = ("T", "B", "N", "H", "P")
TILES = ("BB: tl.constexpr", "BN: tl.constexpr", "BK: tl.constexpr", "PRECISION: tl.constexpr")
DOT = "{total} += tl.dot({a}, {b}, input_precision=PRECISION)"


def cell_text(cell: type[Cell], dt: float) -> str:
    return "\n".join(f"@triton.jit\n{text}" for text in step_and_vjp(cell, dt))


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
        old = [
            "old = N + b",
            *block(
                "if t + 1 < T:",
                [
                    "after = tl.load(starts + t + 1)",
                    "old = tl.where(b < tl.load(starts + t + 2) - after, after + b, N + b)",
                ],
            ),
        ]
    else:
        old = ["old = b", *block("if t > 0:", ["old = B + tl.load(starts + t - 1) + b"])]
    live = ["here = b < live", "row = begin + b", f"new = row{'' if form.reverse else ' + B'}", *old, *body]
    head = [f"t = {'T - 1 - s' if form.reverse != back else 's'}", "begin = tl.load(starts + t)"]
    head.append("live = tl.load(starts + t + 1) - begin")
    return block("for s in range(T):", head, block("if live > first:", live))


def place(form: Form, k: int) -> tuple[str, str, str]:
    """Where what is saved is: the matrix, its width, the column."""
    G, E = len(form.cell.gates), trace(form.cell, form.dt).extra
    return ("gates", f"({G} * H)", f"{k} * H + j") if k < G else ("extra", f"({E} * H)", f"{k - G} * H + j")


def width_of(form: Form, k: int) -> str:
    return "P" if k == 0 else "H"


def forward(form: Form) -> tuple[tuple[str, ...], list[str]]:
    """-> arguments, lines"""
    cell, G = form.cell, len(form.cell.gates)
    gates, saved = range(G), range(len(saved_places(form)))
    params = each("param_{k}", range(len(cell.params)))
    unit = each("rh_{k} = " + ZEROS, gates)
    matrices = each("w_hh + ({k} * H + j)[None, :] * P + k[:, None]", gates)
    unit += product(each("rh_{k}", gates), at("past_0", "old", "P", "k"), "j", "P", matrices)
    if form.bias:
        unit += each("rh_{k} += tl.load(b_hh + {k} * H + j, mask=in_j, other=0.0)[None, :]", gates)
    unit += [f"wx_{g} = {load('wx', 'row', f'({G} * H)', f'{g} * H + j')}" for g in gates]
    for k in form.states:
        reads = ZEROS if form.projected and k == 0 else load(f"past_{k}", "old", width_of(form, k), "j")
        unit.append(f"old_{k} = {reads}")
    unit += [f"{p}_j = tl.load({p} + j, mask=in_j, other=0.0)[None, :]" for p in params]
    results = [*each("new_{k}", form.states), *each("saved_{k}", saved)]
    arguments = [
        *each("wx_{k}", gates),
        *each("rh_{k}", gates),
        *each("old_{k}", form.states),
        *(f"{p}_j" for p in params),
    ]
    unit.append(call(results, "step", arguments))
    for k in form.states:
        if form.projected and k == 0:
            unit.append(store("raw", "row", "H", "j", "new_0"))
            continue
        if form.source:
            unit.append(f"new_{k} += {load(f'source_{k}', 'row', width_of(form, k), 'j')}")
        unit.append(store(f"past_{k}", "new", width_of(form, k), "j", f"new_{k}"))
    unit += [
        store(matrix, "row", width, column, f"saved_{k}") for k in saved for matrix, width, column in [place(form, k)]
    ]
    body = [*tiles("j", "H", unit), "tl.debug_barrier()"]
    if form.projected:
        unit = [f"total = {ZEROS}"]
        unit += product(["total"], at("raw", "row", "H", "k"), "q", "H", ["w_hr + q[None, :] * H + k[:, None]"])
        if form.source:
            unit.append(f"total += {load('source_0', 'row', 'P', 'q')}")
        unit.append(store("past_0", "new", "P", "q", "total"))
        body += [*tiles("q", "P", unit), "tl.debug_barrier()"]
    arrays = [
        "starts",
        "wx",
        "w_hh",
        *(("b_hh",) if form.bias else ()),
        *params,
        *each("past_{k}", form.states),
        "gates",
    ]
    arrays += [
        "extra",
        *(("w_hr", "raw") if form.projected else ()),
        *(each("source_{k}", form.states) if form.source else ()),
    ]
    return tuple(arrays), steps(form, body)


def backward(form: Form) -> tuple[tuple[str, ...], list[str]]:
    cell, G, S = form.cell, len(form.cell.gates), form.states
    saved, params = range(len(saved_places(form))), each("param_{k}", range(len(cell.params)))
    given = form.given or (False,) * len(S)

    def incoming(k: int, column: str) -> list[str]:
        lines = [f"d_{k} = {load(f'd_state_{k}', 'b', width_of(form, k), column)}"]
        return lines + ([f"d_{k} += {load(f'given_{k}', 'row', width_of(form, k), column)}"] if given[k] else [])

    body, unit = [], []
    if form.projected:
        body = [
            *tiles("q", "P", [*incoming(0, "q"), store("d_projected", "row", "P", "q", "d_0")]),
            "tl.debug_barrier()",
        ]
        unit = [f"d_0 = {ZEROS}"]
        unit += product(["d_0"], at("d_projected", "row", "P", "k"), "j", "P", ["w_hr + k[:, None] * H + j[None, :]"])
    unit += [line for k in S if not (form.projected and k == 0) for line in incoming(k, "j")]
    for k in saved:
        unit.append(f"saved_{k} = {load(place(form, k)[0], 'row', *place(form, k)[1:])}")
    for k in S:
        inner = form.projected and k == 0
        unit.append(f"old_{k} = {ZEROS if inner else load(f'past_{k}', 'old', width_of(form, k), 'j')}")
        matrix, row = (f"after_{k}", "row") if form.apart else (f"past_{k}", "new")
        unit.append(f"new_{k} = {load('raw', 'row', 'H', 'j') if inner else load(matrix, row, width_of(form, k), 'j')}")
    unit += [f"{p}_j = tl.load({p} + j, mask=in_j, other=0.0)[None, :]" for p in params]
    results = [*each("d_wx_{k}", range(G)), *each("d_rh_{k}", range(G)), *each("d_old_{k}", S)]
    results += each("d_own_{k}", range(len(params)))
    arguments = [*each("saved_{k}", saved), *each("old_{k}", S), *each("new_{k}", S), *(f"{p}_j" for p in params)]
    unit.append(call(results, "vjp", [*arguments, *each("d_{k}", S)]))
    rows = f"({G} * H)"
    unit += [store("d_wx", "row", rows, f"{g} * H + j", f"d_wx_{g}") for g in range(G)]
    unit += [] if form.shared else [store("d_rh", "row", rows, f"{g} * H + j", f"d_rh_{g}") for g in range(G)]
    unit += [
        store(f"d_state_{k}", "b", width_of(form, k), "j", f"d_old_{k}") for k in S if not (form.projected and k == 0)
    ]
    for k in range(len(params)):  # each block has a row of its own, so that the order of the sum is fixed
        unit.append(f"own_{k} = d_param_{k} + tl.program_id(0) * H + j")
        unit.append(f"sum_{k} = tl.sum(tl.where(mask, d_own_{k} + {ZEROS}, 0.0), 0)")
        unit.append(f"tl.store(own_{k}, tl.load(own_{k}, mask=in_j, other=0.0) + sum_{k}, mask=in_j)")
    body += [*tiles("j", "H", unit), "tl.debug_barrier()"]
    total = ZEROS if form.projected else load("d_state_0", "b", "P", "q")
    unit = [f"total = {total}"]
    unit += product(["total"], at(form.d_rh, "row", rows, "k"), "q", rows, ["w_hh + k[:, None] * P + q[None, :]"])
    unit.append(store("d_state_0", "b", "P", "q", "total"))
    body += [*tiles("q", "P", unit), "tl.debug_barrier()"]
    arrays = ["starts", "w_hh", *params, *each("past_{k}", S), *(each("after_{k}", S) if form.apart else [])]
    arrays += [*(("w_hr", "raw", "d_projected") if form.projected else ()), "gates", "extra"]
    arrays += [
        *(f"given_{k}" for k in S if given[k]),
        *each("d_state_{k}", S),
        "d_wx",
        *([] if form.shared else ["d_rh"]),
    ]
    return (*arrays, *each("d_param_{k}", range(len(params)))), steps(form, body, back=True)


def text_of(form: Form, kind: str) -> tuple[str, tuple[str, ...]]:
    """-> the text, whose last function is `kernel`; the arrays in the order of its arguments, which begin with SIZES"""
    arrays, lines = {"recur": forward, "recur_vjp": backward}[kind](form)
    head = f"@triton.jit(do_not_specialize=['T', 'B', 'N'])\ndef kernel({', '.join((*SIZES, *arrays, *TILES))}):\n"
    begin = ["first = tl.program_id(0) * BB", "b = (first + tl.arange(0, BB)).to(tl.int64)"]
    return "\n".join([FUNCTIONS, cell_text(form.cell, form.dt), head]) + indented([*begin, *lines]), arrays
