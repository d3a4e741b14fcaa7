"""The ladder: everything that computes is compared with the next slower thing, down to autograd on the bare equations.

1. every derivative rule, and the traced derivative of every cell, for steps of several lengths = autograd, float64
2. engine `python` = `step` iterated under autograd
3. every other engine, and torch.nn itself, = engine `python`: outputs and every gradient
4. every solver that cuts time = one exact walk: outputs and every gradient, at a stated tolerance
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import engines, layers
from ..cells import CELLS, Cell
from ..cells.base import FUNCTIONS
from ..cells.graph import RULES, SIGNS, Graph, adjoints, write
from ..cells.load import is_cell
from ..cells.ops import tensors as ops
from ..cells.trace import CannotTrace, compiled, trace
from ..engines import Layout, Needs, Weights
from ..errors import PlaitError
from ..layers.call import Call
from ..solvers import parse
from .compare import ONE_ROUNDING, TOLERANCE, deviation, outputs_and_gradients, with_engine, worst
from .rounded import drawn

LENGTHS_OF_STEP = (1, 2, 3, 4)
MULTIGRID = "levels=3,coarsening=2,forward_iterations=18,backward_iterations=18"  # as many as there are pieces
OF_SOLVERS = 1e-8


@dataclass(frozen=True)
class Rung:
    rung: int
    what: str
    deviation: float
    tolerance: float
    why: str = ""  # it could not be computed

    @property
    def holds(self) -> bool:
        return self.deviation <= self.tolerance  # and so not NaN

    def __str__(self) -> str:
        if self.why:
            return f"{self.rung}  {self.what}: FAILED, {self.why}"
        mark = "ok" if self.holds else "FAILED"
        return f"{self.rung}  {self.what:<52} {self.deviation:8.1e} <= {self.tolerance:.0e}  {mark}"


@dataclass(frozen=True)
class Skipped:
    rung: int
    what: str
    why: str
    holds: None = None

    def __str__(self) -> str:
        return f"{self.rung}  {self.what}: skipped, {self.why}"


class Rungs(list[Rung | Skipped]):
    def __repr__(self) -> str:
        return "\n".join(map(str, self))


# --- rung 1: derivatives
def rule_deviation(op: str, generator: torch.Generator) -> float:
    """One rule alone; where arguments are equal or 0, there may be a kink."""
    graph = Graph()
    inputs, d = [graph.input(f"x{k}") for k in range(4)], graph.input("d")
    a, b, c, e = inputs
    count = 2 if op in SIGNS else FUNCTIONS[op]
    node = graph.where(c < e, a, b) if op == "where" else graph.node(op, *inputs[:count])
    adjoint, zero = adjoints([node], [d]), graph.node("const", 0.0)
    arguments = [*((f"x{k}", n) for k, n in enumerate(inputs)), ("d", d)]
    vjp = compiled(write("rule", arguments, [(f"d{k}", adjoint.get(n, zero)) for k, n in enumerate(inputs)]), ops)
    step = compiled(write("value", arguments, [("y", node)]), ops)
    x = [torch.randn(64, generator=generator, dtype=torch.float64) for _ in range(4)]
    x[0][:8], x[1][8:16] = 0.0, x[0][8:16]
    x = [(v.abs() + 0.1 if op in ("log", "sqrt") else v).requires_grad_() for v in x]
    d_y = torch.randn(64, generator=generator, dtype=torch.float64)
    gradients = torch.autograd.grad(step(*x, d_y)[0], x, d_y, allow_unused=True)
    expected = [torch.zeros_like(v) if g is None else g for v, g in zip(x, gradients, strict=True)]
    return worst(spread(vjp(*(v.detach() for v in x), d_y), expected), expected)


def spread(values: Sequence[Tensor | float], like: Sequence[Tensor]) -> list[Tensor]:
    return [v if isinstance(v, Tensor) else torch.full_like(e, v) for v, e in zip(values, like, strict=True)]


def derivative_deviation(cell: type[Cell], dt: int, generator: torch.Generator) -> float:
    def draw(count: int) -> list[Tensor]:
        return [torch.randn(64, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(count)]

    G, S = len(cell.gates), len(cell.states)
    wx, rh, old, d_new = draw(G), draw(G), draw(S), [d.detach() for d in draw(S)]
    params = draw(len(cell.params))
    new = cell.advance(wx, rh, old, params, dt, ops)
    inputs = [*wx, *rh, *old, *params]
    gradients = torch.autograd.grad(new, inputs, d_new, allow_unused=True)
    expected = [torch.zeros_like(v) if g is None else g for v, g in zip(inputs, gradients, strict=True)]
    with torch.no_grad():
        saved = compiled(trace(cell, dt).step, ops)(*inputs)[S:]
        found = compiled(trace(cell, dt).vjp, ops)(*saved, *old, *new, *params, *d_new)
    return worst(spread(found, expected), expected)


# --- rung 2: an engine against the bare equations
def engine_deviation(cell: type[Cell], name: str, dt: int, generator: torch.Generator) -> float:
    H, I, batch_sizes = 3, 2, torch.tensor([3, 3, 2, 1])
    G, layout = len(cell.gates), Layout.ragged(batch_sizes)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def draw_states() -> list[Tensor]:
        return [draw(2, layout.B, H) for _ in cell.states]

    def draw_weights() -> Weights:
        params = tuple(draw(H) for _ in cell.params)
        return Weights(draw(G * H, I), draw(G * H, H), draw(G * H), draw(G * H), None, params)

    x, state0, weights = draw(layout.N, I), draw_states(), [draw_weights(), draw_weights()]
    d_rows, d_final, engine = draw(layout.N, 2 * H), draw_states(), engines.get(name)
    ps = [engine.prepare(cell, w, reverse) for w, reverse in zip(weights, (False, True), strict=True)]
    rows, final, kept = engine.forward(ps, x, state0, layout, dt=dt)
    back = engine.backward(ps, x, kept, d_rows, d_final, layout, needs=Needs.all(ps), dt=dt)
    assert back.x is not None
    found = [rows, *final, back.x, *back.states, *(d for group in back.weights for d in group if d is not None)]

    inputs = [x, *state0, *(t for w in weights for t in w.tensors)]
    call = Call(cell, name, layout, 2, bias=True, stateful=True, H=H)
    inputs = [t.clone().requires_grad_() for t in inputs]
    outputs = call.differentiable(inputs[0], inputs[1:], dt=dt)
    expected = [*outputs, *torch.autograd.grad(outputs, inputs, (d_rows, *d_final))]
    return worst(found, expected)


# --- rung 3: whole layers
def layer_deviation(
    cell: type[Cell], engine: str, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> float:
    """Two layers, both directions, dense and ragged, from a random state."""
    largest = 0.0
    projected = cell.mode in (None, "LSTM") and not trace(cell).reads_h  # torch has it for the LSTM alone
    for proj_size in (0, 2) if projected else (0,):
        options = {"proj_size": proj_size} if proj_size else {}
        reference = layers.layer(cell, 3, 4, 2, engine="python", bidirectional=True, dtype=dtype, **options)
        x, lengths = torch.randn(5, 3, 3, generator=generator, dtype=dtype), torch.tensor([3, 5, 1])
        widths = (proj_size or 4, *[4] * (len(cell.states) - 1))
        hx = [torch.randn(4, 3, width, generator=generator, dtype=dtype) for width in widths]
        for some in (None, lengths):
            expected = outputs_and_gradients(reference, x, hx, some)
            layer = with_engine(reference, engine).to(device)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
                found = outputs_and_gradients(layer, x.to(device), [s.to(device) for s in hx], some)
            largest = max(largest, deviation({k: v.cpu() for k, v in found.items()}, expected)[0])
    return largest


def rounded_deviation(cell: type[Cell], generator: torch.Generator) -> float:
    """Products of bfloat16 numbers: both directions, dense and ragged; an odd number of units has a zero beside it."""
    layouts = Layout(5, 3), Layout.ragged(torch.tensor([3, 2, 2, 1]))
    return max(drawn(cell, layout, 6, 11, 11, 2, True, generator).deviation() for layout in layouts)


def ladder(seed: int = 0) -> Iterator[Rung | Skipped]:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    exact = TOLERANCE[torch.float64]
    for op in RULES:
        yield Rung(1, f"derivative rule '{op}' = autograd", rule_deviation(op, generator), exact)
    for cell in CELLS.values():
        found = max(derivative_deviation(cell, dt, generator) for dt in LENGTHS_OF_STEP)
        yield Rung(1, f"derivative of {cell.name} = autograd", found, exact)
    for cell in CELLS.values():
        found = max(engine_deviation(cell, "python", dt, generator) for dt in LENGTHS_OF_STEP)
        yield Rung(2, f"engine python, {cell.name} = step iterated", found, exact)
    for name in engines.names():
        if name != "python":
            yield from engine_rungs(name, torch.device("cpu"), generator)
    for solver, iterations in (("shooting", "chunks=5,warmup=2,tolerance=1e-10"), ("multigrid", MULTIGRID)):
        if CELLS:
            found = max(solver_deviation(cell, f"{solver}:{iterations},fallback=no") for cell in CELLS.values())
            yield Rung(4, f"solver {solver} = one exact walk", found, OF_SOLVERS)
    if not torch.cuda.is_available():
        yield Skipped(3, "cuda", "torch sees no CUDA device here")
        return
    for name in engines.names():
        yield from engine_rungs(name, torch.device("cuda"), generator)


def solver_deviation(cell: type[Cell], solver: str) -> float:
    """Both directions of a layer, sequences of different lengths, initial states."""
    layer = layers.layer(cell, 3, 5, bidirectional=True, dtype=torch.float64)
    x, lengths = torch.randn(33, 3, 3, dtype=torch.float64), torch.tensor([20, 33, 7])
    hx = [torch.randn(2, 3, 5, dtype=torch.float64) for _ in cell.states]
    exact = outputs_and_gradients(layer, x, hx, lengths)
    layer.solver = parse(solver)
    return deviation(outputs_and_gradients(layer, x, hx, lengths), exact)[0]


def engine_rungs(name: str, device: torch.device, generator: torch.Generator) -> Iterator[Rung | Skipped]:
    what = f"engine {name}" if device.type == "cpu" else f"engine {name} on {device}"
    missing = {engines.get(name).why_not(cell, torch.float32, device) for cell in CELLS.values()}
    if name not in engines.of_the_host() and None not in missing:
        why = min(map(str, missing)).partition(": ")[0]  # `plait engines` says what to do about it
        yield Skipped(3, what, why)
        return
    for dtype, tolerance in TOLERANCE.items():
        reasons = [engines.get(name).why_not(cell, dtype, device) for cell in CELLS.values()]
        able = [cell for cell, why in zip(CELLS.values(), reasons, strict=True) if why is None]
        for why in sorted({why for why in reasons if why}):
            yield Skipped(3, f"{what}, {str(dtype)[6:]}", why)
        if able:
            found = max(layer_deviation(cell, name, dtype, device, generator) for cell in able)
            yield Rung(3, f"{what}, {str(dtype)[6:]} = engine python", found, tolerance)
    able = [cell for cell in CELLS.values() if engines.get(name).why_not(cell, torch.float64, device) is None]
    if name == "fused" and device.type == "cpu":
        found = max(rounded_deviation(cell, generator) for cell in able)
        yield Rung(3, f"{what}, bfloat16 = its roundings, step by step", found, ONE_ROUNDING)
    if device.type == "cpu" and able:
        pairs = [(cell, dt) for cell in able for dt in LENGTHS_OF_STEP]
        found = max(engine_deviation(cell, name, dt, generator) for cell, dt in pairs)
        yield Rung(3, f"{what}, longer steps = step iterated", found, TOLERANCE[torch.float64])


# --- one cell, a user's
def check_cell(cell: Any, seed: int = 0) -> Rungs:
    """Compares a cell's traced derivative with autograd's, every engine that can run it with its `step` iterated, and
    layers of it (two directions, dense and ragged) in every engine with engine `python`.

    The result is a list of lines. Nothing is raised: a rung's `holds` is True, False if something is wrong with the
    cell, or None where there is nothing to compare, and then the line says why.
    """
    if not is_cell(cell):
        found = f"{cell!r:.60} is not a cell: expected a class that is derived from plait.Cell."
        return Rungs([Rung(1, "a cell", float("inf"), 0.0, found)])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Rungs(cell_rungs(cell, torch.Generator().manual_seed(seed)))


def cell_rungs(cell: type[Cell], generator: torch.Generator) -> Iterator[Rung | Skipped]:
    device, exact = torch.device("cpu"), TOLERANCE[torch.float64]

    def over_steps(deviation: Callable[[int], float]) -> Callable[[], float]:
        return lambda: max(deviation(dt) for dt in LENGTHS_OF_STEP)

    derivative = over_steps(partial(derivative_deviation, cell, generator=generator))
    first = attempt(1, f"derivative of {cell.name} = autograd", derivative, exact)
    yield first
    if first.why:  # there is no derivative, and so nothing to compare
        return
    for name in engines.names():
        what = f"engine {name}, {cell.name} = step iterated"
        why = engines.get(name).why_not(cell, torch.float64, device)
        if why is None:
            yield attempt(2, what, over_steps(partial(engine_deviation, cell, name, generator=generator)), exact)
        elif name in engines.of_the_host():  # that there is no device says nothing about a cell
            yield Skipped(2, what, why)
    for name in engines.names():
        for dtype, tolerance in TOLERANCE.items():
            if name != "python" and engines.get(name).why_not(cell, dtype, device) is None:
                what = f"layer of {cell.name}, {name}, {str(dtype)[6:]} = python"
                yield attempt(3, what, partial(layer_deviation, cell, name, dtype, device, generator), tolerance)
    if "fused" in engines.names() and engines.get("fused").why_not(cell, torch.float32, device) is None:
        what = f"layer of {cell.name}, fused, bfloat16 = its roundings"
        yield attempt(3, what, partial(rounded_deviation, cell, generator), ONE_ROUNDING)


def attempt(rung: int, what: str, deviation: Callable[[], float], tolerance: float) -> Rung | Skipped:
    try:
        return Rung(rung, what, deviation(), tolerance)
    except CannotTrace as e:
        return Skipped(rung, what, str(e))
    except Exception as e:
        why = str(e) if isinstance(e, PlaitError) else f"{type(e).__name__}: {e}"
        return Rung(rung, what, float("inf"), tolerance, why)
