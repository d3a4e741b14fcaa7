"""Versions 1 to 3, as text: what is done for one sample b, part by part, and the kernels that are made of the parts.

A sample's rows are found as layout.py has them: step t begins at row starts[t], and sample b is alive there if it has
that many. past_k holds state k before the first step and after each one: first the initial rows, then the others; in
reverse the others come first. Everything is in the device's main memory; a thread runs its sample alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...cells import Cell
from ...cells.trace import trace
from .numbers import FUNCTIONS, cell_text

SIZES = ("T", "B", "N", "I", "H", "P")
STEPS = "for t in range(T):"


@dataclass(frozen=True)
class Form:
    """All that the text depends on."""

    cell: type[Cell]
    dt: float = 1
    reverse: bool = False
    bias: bool = True
    projected: bool = False
    positioned: bool = True  # a thread for each sample; else one thread runs all of them
    source: bool = False  # something is added to each new state
    given: tuple[bool, ...] = ()  # per state: a gradient comes in at every step
    apart: bool = False  # the new states are in after_k, and not in past_k: the steps were linearised elsewhere

    @property
    def states(self) -> range:
        return range(len(self.cell.states))

    @property
    def shared(self) -> bool:
        """d_rh is d_wx, in all gates."""
        return all(trace(self.cell, self.dt).shared)

    @property
    def d_rh(self) -> str:
        return "d_wx" if self.shared else "d_rh"


class Part(NamedTuple):
    """A device function of one sample."""

    name: str
    arrays: tuple[str, ...]
    lines: list[str]

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("b", *SIZES, *self.arrays)

    @property
    def text(self) -> str:
        return f"def {self.name}({', '.join(self.arguments)}):\n" + indented(self.lines)


def indented(lines: Iterable[str], by: int = 1) -> str:
    return "".join(f"{'    ' * by}{line}\n" for line in lines)


def block(head: str, *bodies: Iterable[str]) -> list[str]:
    return [head, *(f"    {line}" for body in bodies for line in body)]


def each(pattern: str, count: Iterable[int]) -> list[str]:
    return [pattern.format(k=k) for k in count]


def call(results: Sequence[str], function: str, arguments: Iterable[str]) -> str:
    return f"{', '.join(results)} = {function}({', '.join(arguments)})"


def live(form: Form, *bodies: Iterable[str]) -> list[str]:
    """For a step t, if the sample is alive: its row, and those of past_k before (if it is used) and after it."""
    if not any("old" in line for body in bodies for line in body):
        old: list[str] = []
    elif form.reverse:
        old = ["old = N + b"]
        old += block("if t + 1 < T:", block("if b < starts[t + 2] - starts[t + 1]:", ["old = starts[t + 1] + b"]))
    else:
        old = ["old = b", *block("if t > 0:", ["old = B + starts[t - 1] + b"])]
    rows = ["row = starts[t] + b", f"new = row{'' if form.reverse else ' + B'}", *old]
    return block("if b < starts[t + 1] - starts[t]:", rows, *bodies)


def steps(form: Form, *bodies: Iterable[str], back: bool = False) -> list[str]:
    return block("for s in range(T):", [f"t = {'T - 1 - s' if form.reverse != back else 's'}"], live(form, *bodies))


# --- the parts ---------------------------------------------------------------------------------------------------
def project(form: Form) -> Part:
    """wx = W x + b"""
    total = "b_ih[r]" if form.bias else "zero"
    unit = [f"total = {total}", *block("for i in range(I):", ["total += w_ih[r, i] * x[row, i]"]), "wx[row, r] = total"]
    arrays = ("starts", "x", "w_ih", *(("b_ih",) if form.bias else ()), "wx")
    return Part("project", arrays, steps(form, block("for r in range(w_ih.shape[0]):", unit)))


def saved_places(form: Form) -> list[str]:
    G = len(form.cell.gates)
    count = len(trace(form.cell, form.dt).saved)
    return [f"gates[row, {k} * H + j]" if k < G else f"extra[row, {k - G} * H + j]" for k in range(count)]


def walk(form: Form) -> Part:
    """The steps of the cell."""
    gates, saved = range(len(form.cell.gates)), saved_places(form)
    params = each("param_{k}", range(len(form.cell.params)))
    results = [*each("new_{k}", form.states), *each("saved_{k}", range(len(saved)))]
    old = ["zero" if form.projected and k == 0 else f"past_{k}[old, j]" for k in form.states]
    arguments = [*each("wx[row, {k} * H + j]", gates), *each("rh_{k}", gates), *old, *(f"{p}[j]" for p in params)]
    width = [*each("rh_{k} = b_hh[{k} * H + j]" if form.bias else "rh_{k} = zero", gates)]
    width += block("for k in range(P):", each("rh_{k} += w_hh[{k} * H + j, k] * past_0[old, k]", gates))
    width.append(call(results, "step", arguments))
    for k in form.states:
        if form.projected and k == 0:
            width.append("raw[row, j] = new_0")
        else:
            width.append(f"past_{k}[new, j] = new_{k}{f' + source_{k}[row, j]' if form.source else ''}")
    width += [f"{place} = saved_{k}" for k, place in enumerate(saved)]
    projection = []
    if form.projected:
        inner = ["total = zero", *block("for j in range(H):", ["total += w_hr[q, j] * raw[row, j]"])]
        projection = block("for q in range(P):", inner)
        projection += each(f"    past_0[new, q] = total{' + source_0[row, q]' if form.source else ''}", [0])
    arrays = ["starts", "wx", "w_hh", *(("b_hh",) if form.bias else ()), *params, *each("past_{k}", form.states)]
    arrays += [*(("w_hr", "raw") if form.projected else ()), *(each("source_{k}", form.states) if form.source else ())]
    return Part("walk", (*arrays, *kept(saved)), steps(form, block("for j in range(H):", width), projection))


def kept(places: Sequence[str]) -> list[str]:
    return [name for name in ("gates", "extra") if any(place.startswith(name) for place in places)]


def head(form: Form) -> Part:
    """A linear layer on the last h, and its squared error; the way back begins with the gradients of both."""
    last = ["last = b", *block(STEPS, live(form, ["last = new"]))]
    out = ["total = b_out[o]", *block("for q in range(P):", ["total += w_out[o, q] * past_0[last, q]"])]
    out += ["error = total - y[b, o]", "loss[b] += error * error * scale[0]", "error = (error + error) * scale[0]"]
    out.append(add(form, "d_b_out", "o", "error"))
    inner = [add(form, "d_w_out", "o, q", "error * past_0[last, q]"), "d_state_0[b, q] += error * w_out[o, q]"]
    out += block("for q in range(P):", inner)
    zeros = ["loss[b] = zero", *block("for q in range(P):", ["d_state_0[b, q] = zero"])]
    zeros += [line for k in form.states[1:] for line in block("for j in range(H):", [f"d_state_{k}[b, j] = zero"])]
    arrays = ("starts", "w_out", "b_out", "y", "scale", "past_0", *each("d_state_{k}", form.states))
    lines = [*last, *zeros, *block("for o in range(w_out.shape[0]):", out)]
    return Part("head", (*arrays, "loss", "d_w_out", "d_b_out"), lines)


def add(form: Form, array: str, place: str, value: str) -> str:
    """Into a gradient that all samples share. Threads must not be in each other's way."""
    if not form.positioned:
        return f"{array}[{place}] += {value}"
    return f"cuda.atomic.add({array}, {f'({place})' if ',' in place else place}, {value})"


def back(form: Form) -> Part:
    """Backpropagation through time: d_state_k holds the gradient of the state, and ends as that of the initial one."""
    cell, G, saved = form.cell, len(form.cell.gates), saved_places(form)
    params, given = each("param_{k}", range(len(cell.params))), form.given or (False,) * len(form.states)
    d_new = [f"d_state_{k}[b, {{j}}]{f' + given_{k}[row, {{j}}]' if given[k] else ''}" for k in form.states]
    entry, width = [], []
    if form.projected:
        entry = block("for q in range(P):", [f"d_projected[row, q] = {d_new[0].format(j='q')}"])
        width = ["d_0 = zero", *block("for q in range(P):", ["d_0 += d_projected[row, q] * w_hr[q, j]"])]
    width += [f"d_{k} = {d_new[k].format(j='j')}" for k in form.states if not (form.projected and k == 0)]
    old = ["zero" if form.projected and k == 0 else f"past_{k}[old, j]" for k in form.states]
    after = [f"after_{k}[row, j]" if form.apart else f"past_{k}[new, j]" for k in form.states]
    if form.projected:
        after[0] = "raw[row, j]"
    results = [*each("d_wx_{k}", range(G)), *each("d_rh_{k}", range(G)), *each("d_old_{k}", form.states)]
    results += each("d_param_of_{k}", range(len(cell.params)))
    width.append(
        call(results, "vjp", [*saved, *old, *after, *(f"{p}[j]" for p in params), *each("d_{k}", form.states)])
    )
    width += each("d_wx[row, {k} * H + j] = d_wx_{k}", range(G))
    width += [] if form.shared else each("d_rh[row, {k} * H + j] = d_rh_{k}", range(G))
    width += [f"d_state_{k}[b, j] = d_old_{k}" for k in form.states if not (form.projected and k == 0)]
    width += [add(form, f"d_param_{k}", "j", f"d_param_of_{k}") for k in range(len(cell.params))]
    through = [f"total = {'zero' if form.projected else 'd_state_0[b, q]'}"]
    through += block("for r in range(w_hh.shape[0]):", [f"total += {form.d_rh}[row, r] * w_hh[r, q]"])
    through.append("d_state_0[b, q] = total")
    arrays = ["starts", "w_hh", *params, *each("past_{k}", form.states)]
    arrays += each("after_{k}", form.states) if form.apart else []
    arrays += ["w_hr", "raw", "d_projected"] if form.projected else []
    arrays += [
        *kept(saved),
        *(f"given_{k}" for k in form.states if given[k]),
        *each("d_state_{k}", form.states),
        "d_wx",
    ]
    arrays += [*([] if form.shared else ["d_rh"]), *each("d_param_{k}", range(len(cell.params)))]
    body = [*entry, *block("for j in range(H):", width), *block("for q in range(P):", through)]
    return Part("back", tuple(arrays), steps(form, body, back=True))


def weights(form: Form, d_x: bool = True) -> Part:
    """The gradients of the weights, each summed over the steps of the sample first; then that of x."""

    def sums(place: str, array: str, value: str) -> list[str]:
        return ["total = zero", *block(STEPS, live(form, [f"total += {value}"])), add(form, array, place, "total")]

    rows = block("for i in range(I):", sums("r, i", "d_w_ih", "d_wx[row, r] * x[row, i]"))
    rows += block("for q in range(P):", sums("r, q", "d_w_hh", f"{form.d_rh}[row, r] * past_0[old, q]"))
    if form.bias:
        rows += [*sums("r", "d_b_ih", "d_wx[row, r]"), *sums("r", "d_b_hh", f"{form.d_rh}[row, r]")]
    lines = block("for r in range(w_ih.shape[0]):", rows)
    if form.projected:
        inner = block("for j in range(H):", sums("q, j", "d_w_hr", "d_projected[row, q] * raw[row, j]"))
        lines += block("for q in range(P):", inner)
    if d_x:
        inner = ["total = zero", *block("for r in range(w_ih.shape[0]):", ["total += d_wx[row, r] * w_ih[r, i]"])]
        lines += steps(form, block("for i in range(I):", [*inner, "d_x[row, i] = total"]))
    arrays = ["starts", "x", "w_ih", "past_0", "d_wx", *([] if form.shared else ["d_rh"])]
    arrays += ["raw", "d_projected", "d_w_hr"] if form.projected else []
    arrays += ["d_w_ih", "d_w_hh", *(("d_b_ih", "d_b_hh") if form.bias else ()), *(("d_x",) if d_x else ())]
    return Part("weights", tuple(arrays), lines)


# --- the kernels -------------------------------------------------------------------------------------------------
def parts_of(form: Form, kind: str) -> list[Part]:
    """recur, recur_vjp: the walks alone. forward, backward: a layer. train: a layer, its head, and the way back."""
    made = {
        "recur": lambda: [walk(form)],
        "recur_vjp": lambda: [back(form)],
        "forward": lambda: [project(form), walk(form)],
        "backward": lambda: [back(form), weights(form)],
        "train": lambda: [project(form), walk(form), head(form), back(form), weights(form, d_x=False)],
    }
    return made[kind]()


class Text(NamedTuple):
    functions: str  # of the cell, and the parts
    kernel: str
    arrays: tuple[str, ...]  # in the order of its arguments, which begin with SIZES


def text_of(form: Form, kind: str) -> Text:
    parts = parts_of(form, kind)
    arrays = tuple(dict.fromkeys(name for part in parts for name in part.arrays))
    calls = [f"{part.name}({', '.join(part.arguments)})" for part in parts]
    alone, one = block("for b in range(B):", calls), ["b = cuda.grid(1)", *block("if b < B:", calls)]
    kernel = f"def kernel({', '.join((*SIZES, *arrays))}):\n" + indented(one if form.positioned else alone)
    functions = "\n".join([FUNCTIONS, cell_text(form.cell, form.dt), *(part.text for part in parts)])
    return Text(functions, kernel, arrays)
