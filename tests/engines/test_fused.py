"""The compiled kernels: the same numbers whoever computes them, gradients however they are asked for, any cell."""

import copy
import ctypes
import platform
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import plait
from plait import engines, layers
from plait.cells import CELLS, LSTM, Cell
from plait.engines import Layout, Needs, Weights
from plait.engines.fused import FusedEngine
from plait.engines.plan import Plan
from plait.errors import PlaitError
from plait.kernels.emit.target import Form, Target, host
from plait.kernels.launch import choices, threads
from plait.kernels.launch.choices import Sized
from plait.kernels.launch.costs import BUILT_IN
from plait.kernels.launch.schedule import OFF, Schedule
from plait.kernels.records import Launch, Product
from plait.ladder.compare import deviation, outputs_and_gradients, relative, with_engine
from some_cells import Apart, Awkward, Leaky

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
every_cell = pytest.mark.parametrize("cell", CELLS)
both_ways = pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
pairs = pytest.mark.parametrize(
    ("theirs", "options"),
    [(nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"}), (nn.LSTM, {}), (nn.LSTM, {"proj_size": 2}), (nn.GRU, {})],
    ids=["rnn", "rnn_relu", "lstm", "projected", "gru"],
)
x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="denormals are flushed on x86 only")


def lengths_of(B: int, T: int) -> Tensor:
    """From T down to 1, longest first, some of them twice."""
    return torch.linspace(T, 1, B).long()


def batch(B: int, T: int, *, ragged: bool) -> Layout:
    return Layout.of_lengths(lengths_of(B, T)) if ragged else Layout(T, B)


# --- walks from given wx on ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Problem:
    """A walk, forward and backward: all that it starts from."""

    cell: type[Cell]
    layout: Layout
    weights: list[Weights]
    wx: list[Tensor]
    state0: list[Tensor]
    d_rows: Tensor
    d_finals: list[Tensor]

    @classmethod
    def draw(
        cls, cell: type[Cell], layout: Layout, H: int, P: int = 0, dtype: torch.dtype = torch.float32, I: int = 3
    ) -> "Problem":
        """Both directions."""
        G, N, B = len(cell.gates), layout.N, layout.B
        widths = [P or H, *[H] * (len(cell.states) - 1)]

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=dtype)

        def draw_weights() -> Weights:
            w_hr = draw(P, H) / H**0.5 if P else None
            return Weights(draw(G * H, I), draw(G * H, widths[0]) / H**0.5, draw(G * H), draw(G * H), w_hr)

        return cls(
            cell,
            layout,
            [draw_weights() for _ in range(2)],
            [draw(N, G * H) for _ in range(2)],
            [draw(2, B, width) for width in widths],
            draw(N, 2 * widths[0]),
            [draw(2, B, width) for width in widths],
        )

    def walk(self, engine: FusedEngine) -> list[Tensor]:
        """All states, then all results of the backward pass; then, per state and direction, the first and last ones."""
        cell, layout, S = self.cell, self.layout, len(self.cell.states)
        rows, ends = [], []
        for d, w in enumerate(self.weights):
            p = engine.prepare(cell, w, reverse=d == 1)
            last, tape = engine.recur(p, self.wx[d], [s[d] for s in self.state0], layout)
            rows += [s.clone() for s in tape.states]
            d_rows = self.d_rows[:, d * p.P : (d + 1) * p.P]
            g, d_state0 = engine.recur_vjp(
                p, tape, [d_rows, *[None] * (S - 1)], [f[d] for f in self.d_finals], spend=True
            )
            rows += [g.d_wx, *g.d_rh, *([] if g.d_projected is None else [g.d_projected])]
            ends += [s.unsqueeze(0) for s in (*last, *d_state0)]
        return [*rows, *ends]


def counts_of(plan: Plan) -> list[int]:
    """On how many threads each launch of a plan runs."""
    return [segment.chain.count for variant in plan.variants.values() for segment in variant.segments]


def assert_same_bits(found: list[Tensor], expected: list[Tensor], where: object) -> None:
    same = [torch.equal(a, b) for a, b in zip(found, expected, strict=True)]
    assert all(same), (where, same)


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
@pytest.mark.parametrize(
    ("cell", "dtype"),
    [*((cell, torch.float32) for cell in CELLS), ("lstm", torch.float64), ("gru", torch.float64)],
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_threads_and_how_they_share_do_not_change_a_bit(cell, ragged, dtype, set_threads, monkeypatch) -> None:
    for B, H in product((1, 7, 20), (5, 16, 37, 100)):
        problem, expected = Problem.draw(CELLS[cell], batch(B, 6, ragged=ragged), H, dtype=dtype), None
        for by_units in (False, True):
            monkeypatch.setattr(choices, "by_units", lambda *_, way=by_units: way)
            engine = FusedEngine()  # which remembers how it shared
            for count in (1, 2, 3, 5):
                set_threads(count)
                found = problem.walk(engine)
                expected = expected or found
                assert_same_bits(found, expected, (B, H, by_units, count))
            assert ragged or set(chain(*map(counts_of, engine.plans.values()))) == {1, 2, 3, 5}


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
def test_threads_do_not_change_a_bit_of_a_projection(ragged, set_threads) -> None:
    for B, H, P in product((1, 7, 20), (16, 37), (5, 40)):
        problem, expected = Problem.draw(CELLS["lstm"], batch(B, 6, ragged=ragged), H, P), None
        for count in (1, 2, 3, 5):
            set_threads(count)
            found = problem.walk(FusedEngine())
            expected = expected or found
            assert_same_bits(found, expected, (B, H, P, count))


def test_a_projection_is_never_shared_by_units(set_threads) -> None:
    """Its product needs all units of the step: whoever has finished its own would read what is not there yet."""
    target = Target(double=False, lanes=8, rows=6)
    for B in (1, 2, 20):
        shared = [choices.by_units(BUILT_IN, Form(CELLS["lstm"], 1, target, p), B, 768, 1, 2) for p in (False, True)]
        assert shared == [True, False], B
    set_threads(2)
    layer, x = plait.LSTM(16, 768, proj_size=256, engine="fused"), torch.randn(3, 1, 16)
    expected = outputs_and_gradients(with_engine(layer, "numpy"), x, None)
    assert deviation(outputs_and_gradients(layer, x, None), expected)[0] <= 1e-5


TAKEN = 1 << 40  # tickets: more than there is of anything


@pytest.fixture
def team(set_threads, monkeypatch) -> Callable[[str], list[bool]]:
    """A team of two, the second of which runs alone at first, and is told that somebody else has all work of a kind.

    -> whether it waited, launch by launch, until the first came and did that work
    """
    waited: list[bool] = []
    kind = ""

    @ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
    def parallel(kernel: int, block: int, count: int, flags: int) -> None:
        walk = ctypes.CFUNCTYPE(None, ctypes.c_int64)(kernel)
        launch = (ctypes.c_int64 * Launch.SIZE).from_address(block)
        slices = range(launch[Launch.WALKS] * launch[Launch.SLICES])
        places = {"panels": [block + 8 * Launch.READY_TAKEN], "slices": [launch[Launch.CLAIMS] + 8 * k for k in slices]}
        whole = range(launch[Launch.WHOLE], launch[Launch.PRODUCTS])
        products = [launch[Launch.FIRST_PRODUCT] + k * Product.SIZE * 8 for k in whole]
        places["products"] = [product + 8 * Product.TAKEN for product in products]
        tickets = [ctypes.c_int64.from_address(place) for place in places[kind]]
        for ticket in tickets:
            ticket.value = TAKEN
        second = threading.Thread(target=walk, args=(block,))
        second.start()
        second.join(0.03)
        waited.append(second.is_alive())
        for ticket in tickets:
            ticket.value = 0
        walk(block)
        second.join()

    @ctypes.CFUNCTYPE(ctypes.c_int)
    def size() -> int:
        return 2

    def work(name: str) -> list[bool]:
        nonlocal kind
        kind = name
        return waited

    others = threads.team_functions()[1:]
    monkeypatch.setattr(threads, "team_functions", lambda: (threads.address_of(size), *others))
    monkeypatch.setattr(threads, "run", lambda *args: threads.start()(*args[:3], threads.address_of(parallel), 2))
    set_threads(2)
    return work


@pytest.mark.parametrize("kind", ["panels", "slices", "products"])
def test_what_others_have_taken_is_waited_for(kind, team) -> None:
    """A walk needs all panels, and the products after it need the rows of all slices: lengths 40, 3, 2 and 1."""
    layout, waited = Layout.of_lengths([40, 3, 2, 1]), team(kind)
    problem, x = Problem.draw(CELLS["gru"], layout, 20), torch.randn(layout.N, 3)
    expected = forward_and_backward(engines.get("numpy"), problem, x)
    engine = FusedEngine(Schedule(fold=kind != "products"))  # else there is no product before the walk
    assert_close(forward_and_backward(engine, problem, x), expected)
    assert waited == [True, True]  # forward and backward


@pytest.mark.parametrize(("directions", "count", "expected"), [(1, 2, 2), (2, 2, 1), (2, 3, 2)])
def test_every_thread_has_a_slice_of_some_direction(directions, count, expected, set_threads, monkeypatch) -> None:
    set_threads(count)
    asked, shares = [], Layout.shares
    monkeypatch.setattr(Layout, "shares", lambda self, parts: asked.append(parts) or shares(self, parts))
    layer, x = plait.GRU(3, 5, bidirectional=directions == 2, engine="fused"), torch.randn(4, 7, 3)
    monkeypatch.setattr(Sized, "separates", lambda *_: False)
    layer(x)[0].sum().backward()
    assert asked == [expected] * 2  # forward and backward
    engines.get("fused").plans.clear()
    monkeypatch.setattr(Sized, "separates", lambda *_: True)
    layer(x)[0].sum().backward()
    assert [plan.slabs for plan in engines.get("fused").plans.values()] == [expected]


@pytest.mark.parametrize(("cell", "P"), [*((cell, 0) for cell in CELLS), ("lstm", 5)])
def test_a_sequence_of_a_ragged_batch_is_bitwise_what_it_is_alone(cell, P, set_threads) -> None:
    set_threads(2)
    for B, H in product((3, 20), (5, 37)):
        layout, engine = batch(B, 9, ragged=True), FusedEngine()
        problem = Problem.draw(CELLS[cell], layout, H, P)
        together = problem.walk(engine)
        for b in range(B):
            rows = [start + b for start, size in zip(layout.starts, layout.sizes, strict=True) if b < size]
            alone = replace(
                problem,
                layout=Layout(len(rows), 1),
                wx=[v[rows] for v in problem.wx],
                state0=[s[:, b : b + 1] for s in problem.state0],
                d_rows=problem.d_rows[rows],
                d_finals=[d[:, b : b + 1] for d in problem.d_finals],
            )
            expected = [t[rows] if t.dim() == 2 else t[:, b : b + 1] for t in together]
            assert_same_bits(alone.walk(engine), expected, (B, H, b))


# --- against engine numpy --------------------------------------------------------------------------------------------
def twin(theirs: nn.Module) -> nn.Module:
    """plait's layer with the weights of torch's, on the compiled kernels."""
    return plait.accelerate(copy.deepcopy(theirs), engine="fused")


def random_like(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The same each time, and what outputs_and_gradients draws."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(o.shape, generator=generator, dtype=o.dtype) for o in outputs]


def gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor], **options) -> list[Tensor]:
    """Of a random loss of the outputs."""
    return [g.detach() for g in torch.autograd.grad(outputs, inputs, random_like(outputs), **options)]


def flat(result) -> list[Tensor]:
    """y, *states"""
    y, states = result
    return [y, *states] if isinstance(states, tuple) else [y, states]


def assert_close(found, expected, tolerance: float = 1e-5) -> None:
    assert max(relative(a, b) for a, b in zip(found, expected, strict=True)) <= tolerance


SOME = (slice(0, 1), slice(1, 2), slice(-1, None), slice(None))  # of the outputs: y, h, the last state, all
# T, B, I, H: a few numbers; long sums; many columns; what is left to torch.mm
SIZES = {
    "small": (5, 2, 3, 4),
    "one step": (1, 3, 2, 20),
    "long": (130, 2, 3, 5),
    "wide": (3, 2, 300, 5),
    "large": (6, 60, 80, 80),
}


@pytest.mark.parametrize("bias", [True, False], ids=["", "no bias"])
@pytest.mark.parametrize("size", SIZES)
@every_cell
def test_products_of_every_size(cell, size, bias, set_threads) -> None:
    set_threads(2)
    T, B, I, H = SIZES[size]
    x = torch.randn(T, B, I, dtype=torch.float64)
    for bidirectional, proj_size in product((False, True), (0, 3) if cell == "lstm" else (0,)):
        more = {"proj_size": proj_size} if proj_size else {}
        options = {"bias": bias, "bidirectional": bidirectional, "dtype": torch.float64, **more}
        reference = layers.layer(cell, I, H, engine="numpy", **options)
        for lengths in (None, lengths_of(B, T), *([torch.full((B,), T)] if size == "small" else [])):
            both = (outputs_and_gradients(m, x, None, lengths) for m in (with_engine(reference, "fused"), reference))
            assert deviation(*both)[0] <= 1e-12


@every_cell
def test_every_number_of_units(cell, set_threads) -> None:
    """Blocks that are full, partly full, joined or narrow; W x within the walk (5 sequences) and before it (2)."""
    set_threads(1)
    for H, B in product(range(1, 2 * host().vector_bits // 32 + 4), (2, 5)):
        reference = layers.layer(cell, 3, H, engine="numpy", dtype=torch.float64 if H % 2 else torch.float32)
        x = torch.randn(3, B, 3, dtype=reference.weight_hh_l0.dtype)
        both = (outputs_and_gradients(m, x, None) for m in (with_engine(reference, "fused"), reference))
        assert deviation(*both)[0] <= (1e-11 if H % 2 else 1e-5), (H, B)


@pytest.mark.parametrize(("cell", "H"), [("lstm", 256), ("rnn", 1024), ("gru", 32)])
def test_rows_that_are_whole_pages_apart(cell, H, set_threads) -> None:
    """Their tiles have fewer rows, whether a batch has one row, some, or more than a tile."""
    for B, I in product((1, 3, 8, 9, 33), (6, 1024)):
        reference, x = layers.layer(cell, I, H, engine="numpy"), torch.randn(3, B, I)
        expected = outputs_and_gradients(reference, x, None)
        for count in (1, 2):
            set_threads(count)
            found = outputs_and_gradients(with_engine(reference, "fused"), x, None)
            assert deviation(found, expected)[0] <= 2e-5, (B, I, count)


@pytest.mark.parametrize("schedule", [Schedule(tile=None), Schedule(tile=(64, 16)), OFF], ids=["none", "cache", "off"])
def test_sums_over_many_rows_of_other_tiles(schedule, set_threads) -> None:
    """More rows than are packed at a time, by tiles of one row: a vector reaches past the end of what it packs."""
    set_threads(2)
    layout = Layout(100, 8)
    problem, x = Problem.draw(CELLS["rnn"], layout, 7), torch.randn(layout.N, 3)
    expected = forward_and_backward(engines.get("numpy"), problem, x)
    assert_close(forward_and_backward(FusedEngine(schedule), problem, x), expected)


@pytest.mark.parametrize("size", ["small", "large"])
@every_cell
def test_a_frozen_weight_gets_nothing_and_the_others_what_they_always_get(cell, size, set_threads) -> None:
    set_threads(2)
    T, B, I, H = SIZES[size]
    layer = layers.layer(cell, I, H, engine="fused", bidirectional=True, dtype=torch.float64)
    x = torch.randn(T, B, I, dtype=torch.float64)
    expected = outputs_and_gradients(with_engine(layer, "numpy"), x, None)
    names = [name for name, _ in layer.named_parameters()]
    for trained in (*([name] for name in names), ["weight_ih_l0", "bias_hh_l0"], names[1:4], names[4:]):
        layer.zero_grad()
        for name, p in layer.named_parameters():
            p.requires_grad_(name in trained)
        outputs = flat(layer(x))
        torch.autograd.backward(outputs, random_like(outputs))
        for name, p in layer.named_parameters():
            if name in trained:
                assert relative(p.grad, expected[f"d_{name}"]) <= 1e-12, (trained, name)
            else:
                assert p.grad is None, (trained, name)


@both_ways
@every_cell
def test_a_loss_of_some_outputs_for_some_inputs(cell, bidirectional) -> None:
    layer = layers.layer(cell, 3, 5, engine="fused", bidirectional=bidirectional, dtype=torch.float64)
    parameters = list(layer.parameters())
    states = [torch.randn(1 + bidirectional, 3, 5, dtype=torch.float64) for _ in CELLS[cell].states]

    def run(module: nn.Module, wanted: Sequence[Tensor], chosen: slice, x: Tensor, *more: Any) -> list[Tensor]:
        for t in (x, *states):
            t.requires_grad_(any(t is w for w in wanted))
        return gradients(flat(module(x, *more))[chosen], [*wanted, *module.parameters()])

    several, one = (torch.randn(T, 3, 3, dtype=torch.float64) for T in (3, 1))
    for given, (x, lengths), chosen in product(
        (False, True), ((several, None), (several, [2, 3, 1]), (one, None)), SOME
    ):
        how = chosen, x, None if not given else tuple(states) if len(states) > 1 else states[0], lengths
        d_x, *rest = run(with_engine(layer, "numpy"), [x, *states] if given else [x], *how)
        d_states, d_parameters = rest[: -len(parameters)], rest[-len(parameters) :]
        assert_close(run(layer, [x], *how), [d_x, *d_parameters], 1e-12)
        assert_close(run(layer, [], *how), d_parameters, 1e-12)
        if given:
            assert_close(run(layer, states, *how), [*d_states, *d_parameters], 1e-12)
            assert_close(run(layer, states[-1:], *how), [*d_states[-1:], *d_parameters], 1e-12)


def test_what_does_not_fit_together_is_refused() -> None:
    """The kernels know addresses only: they would read past the end."""
    layer = plait.LSTM(3, 5, engine="fused")
    short = PackedSequence(torch.randn(5, 3), torch.tensor([3, 3, 1]))
    with pytest.raises(PlaitError, match=r"input of shape \(5, 3\): expected 7 rows of 3"):
        layer(short)
    x, w = torch.randn(4, 2, 3), layer.weight_hh_l0
    with pytest.raises(PlaitError, match="the input is on meta, the layer on the CPU: move one of them"):
        layer(x.to("meta"))
    wider = dict(plait.LSTM(3, 8).named_parameters())
    with pytest.raises(PlaitError, match=r"weight w_ih is \(32, 3\) .* expected \(20, 3\)"):
        torch.func.functional_call(layer, wider, (x, (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))))
    for other, found in (
        (torch.randn(20, 4), r"w_hh is \(20, 4\) in torch.float32 on cpu: expected \(20, 5\)"),
        (torch.randn(16, 5), r"w_hh is \(16, 5\) in torch.float32 on cpu: expected \(20, 5\)"),
        (w.detach().double(), r"w_hh is \(20, 5\) in torch.float64 .*: expected \(20, 5\) in torch.float32"),
        (w.detach().to("meta"), r"w_hh is \(20, 5\) in torch.float32 on meta: .*on the CPU"),
    ):
        layer.weight_hh_l0 = nn.Parameter(other)
        with pytest.raises(PlaitError, match=found):
            layer(x)


@pytest.fixture
def back() -> tuple[list, tuple]:
    """Arguments of the derivative's op that fit together: tensors, and the rest."""
    x, tensors = torch.randn(4, 2, 3), [p.detach() for p in plait.LSTM(3, 5).parameters()]
    rest = (None, 2, "fused 1 1 0 0 serial 0 lstm")
    rows, h, c, kept = torch.ops.plait.layer(x, tensors, *rest, True)
    return [x, tensors, [kept], rows, [h, c]], rest


BACK = ("x", "tensors", "kept", "d_rows", "d_finals")


def test_the_ops_of_a_fitting_call_run(back) -> None:
    tensors, rest = back
    assert all(g.isfinite().all() for g in torch.ops.plait.layer_vjp(*tensors, *rest))


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("x", lambda x: x[:3], r"the gradient of the output is \(4, 2, 5\) .* expected \(3, 2, 5\)"),
        ("x", lambda x: x[:, :1], r"input of shape \(4, 1, 3\): expected 8 rows of 3"),
        ("x", lambda x: x.double(), r"input is .*float64 .* expected \(4, 2, 3\) in torch.float32"),
        ("tensors", lambda ts: [ts[0], ts[1][:, :2], *ts[2:]], r"weight w_hh is \(20, 2\)"),
        ("tensors", lambda ts: [t[:-1] for t in ts], r"weight w_ih is \(19, 3\) .* expected \(16, 3\)"),
        ("kept", lambda ts: [ts[0][:-1]], r"a saved tensor is \(\d+,\) .* expected \(\d+,\)"),
        ("kept", lambda ts: [ts[0].double()], r"a saved tensor is .*float64"),
        ("kept", lambda ts: [], r"0 and 2 tensors: expected 1 and 2"),
        ("d_rows", lambda d: d[:3], r"the gradient of the output is \(3, 2, 5\) .* expected \(4, 2, 5\)"),
        ("d_rows", lambda d: d.half(), r"the gradient of the output is .*float16"),
        ("d_finals", lambda ds: [ds[0][:, :1], ds[1]], r"the gradient of the last state h is \(1, 1, 5\)"),
        ("d_finals", lambda ds: ds[:1], r"1 and 1 tensors: expected 1 and 2"),
    ],
)
def test_the_derivatives_op_refuses_what_does_not_fit(back, name: str, change, sentence: str) -> None:
    tensors, rest = back
    k = BACK.index(name)
    with pytest.raises(PlaitError, match=sentence):
        torch.ops.plait.layer_vjp(*tensors[:k], change(tensors[k]), *tensors[k + 1 :], *rest)


def test_a_hook_that_gives_back_other_tensors_is_refused() -> None:
    """Such hooks store what is saved elsewhere, or in less precision."""
    layer, x = plait.LSTM(3, 5, engine="fused"), torch.randn(4, 2, 3)
    for unpack, sentence in ((lambda t: t.half(), "in torch.float16"), (lambda t: t[..., :-1], "expected")):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            y, _ = layer(x)
        with pytest.raises(PlaitError, match=sentence):
            y.sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y, _ = layer(x)
    y.sum().backward()


OTHER_DATA = {
    "shorter": lambda t: t[:6].clone(),
    "a part of itself": lambda t: t[:6],
    "in float64": lambda t: t.double(),
}


@pytest.mark.parametrize("how", OTHER_DATA)
def test_a_weight_whose_data_was_replaced_before_backward_is_refused(how: str) -> None:
    """It is the same tensor, and autograd does not see it. The kernels would write past the end of its gradient."""
    layer = plait.GRU(3, 5, engine="fused")
    y, _ = layer(torch.randn(4, 2, 3))
    layer.weight_hh_l0.data = OTHER_DATA[how](layer.weight_hh_l0.data)
    with pytest.raises(PlaitError, match=r"weight w_hh is .*: expected \(15, 5\) in torch.float32"):
        y.sum().backward()


def test_a_weight_that_is_shorter_than_when_it_was_packed_is_refused() -> None:
    layer, x = plait.GRU(3, 5, engine="fused"), torch.randn(4, 2, 3)
    with plait.packed(layer), torch.no_grad():
        layer(x)
        layer.weight_hh_l0.data = layer.weight_hh_l0.data[:6]
        with pytest.raises(PlaitError, match=r"weight w_hh is \(6, 5\) .* expected \(15, 5\)"):
            layer(x)


@pytest.mark.parametrize("lasting", [False, True])
def test_prepared_weights_that_are_shorter_now_are_refused(lasting: bool) -> None:
    engine, layout, x = FusedEngine(), Layout(4, 2), torch.randn(8, 3)
    w = Weights(torch.randn(20, 3), torch.randn(20, 5))
    p = engine.prepare(LSTM, w, lasting=lasting)
    _, _, kept = engine.forward([p], x, None, layout)
    w.w_hh.data = torch.randn(4, 5)
    sentence = r"a weight is \(4, 5\) .* and was \(20, 5\) .* prepare the weights again"
    with pytest.raises(PlaitError, match=sentence):
        engine.forward([p], x, None, layout)
    with pytest.raises(PlaitError, match=sentence):
        engine.backward([p], x, kept, torch.randn(8, 5), [None, None], layout, needs=Needs.all([p]))


def test_one_bias_alone_is_refused() -> None:
    """The kernels would write the gradient of the other one over what comes next."""
    for b_ih, b_hh in ((torch.zeros(20), None), (None, torch.zeros(20))):
        with pytest.raises(PlaitError, match="give both b_ih and b_hh, or neither"):
            FusedEngine().prepare(LSTM, Weights(torch.randn(20, 3), torch.randn(20, 5), b_ih, b_hh))


def test_a_tape_of_other_weights_is_refused() -> None:
    engine, layout = FusedEngine(), Layout(4, 2)
    plain = engine.prepare(LSTM, Weights(torch.randn(20, 3), torch.randn(20, 5)))
    projected = engine.prepare(LSTM, Weights(torch.randn(20, 3), torch.randn(20, 2), w_hr=torch.randn(2, 5)))
    for p, other, found in ((plain, projected, "lacks"), (projected, plain, "has")):
        _, tape = engine.recur(p, torch.randn(8, 20), None, layout)
        with pytest.raises(PlaitError, match=f"the tape {found} the h before a projection"):
            engine.recur_vjp(other, tape, None, [None, None])


def test_weights_that_another_thread_prepared_are_refused() -> None:
    """A thread could read panels that another one is packing, and both would use one workspace."""
    engine, layout, x = FusedEngine(), Layout(4, 2), torch.randn(8, 3)
    p = engine.prepare(LSTM, Weights(torch.randn(20, 3), torch.randn(20, 5)))
    for _ in range(3):
        engine.forward([p], x, None, layout, keep=False)
    with ThreadPoolExecutor(1) as other:
        found = other.submit(engine.forward, [p], x, None, layout, keep=False).exception()
    assert isinstance(found, PlaitError)
    assert "prepared by another Python thread" in str(found)


class Longer(Cell):
    """A long step counts what was before more often: only at dt = 1 is d_rh the same as d_wx."""

    name, gates, states, saved = "longer", ("a",), ("h",), ("a",)

    def step(wx, rh, state, dt, ops):
        h = ops.tanh(wx[0] + rh[0] if dt == 1 else wx[0] + dt * rh[0])
        return (h,), (h,)


@pytest.mark.parametrize("dt", [1, 2])
def test_what_is_kept_has_the_size_that_the_step_needs(dt: int, monkeypatch) -> None:
    """A long step may keep more than a short one."""
    tiny = Target(double=False, lanes=1, rows=1, vectors=1)  # quickly compiled
    monkeypatch.setattr(Schedule, "target", lambda *_, **__: tiny)
    engine, layout = FusedEngine(), Layout(3, 2)
    p = engine.prepare(Longer, Weights(torch.randn(5, 3), torch.randn(5, 5)))
    (blank,) = engine.blank([p], layout.N, layout.B, torch.empty(0), dt)
    _, _, (kept,) = engine.forward([p], torch.randn(layout.N, 3), None, layout, dt=dt)
    assert kept.shape == blank.shape
    assert dt - 1 == engine.form(engine.key([p], layout, stateful=False, dt=dt)).E  # else this test tells nothing


@pytest.mark.parametrize("lengths", [None, [2, 4]], ids=["dense", "ragged"])
def test_the_default_device_is_not_the_layers(lengths) -> None:
    layer, x = plait.GRU(3, 5, engine="fused", bidirectional=True), torch.randn(4, 2, 3)
    outputs, weights = flat(layer(x, None, lengths)), list(layer.parameters())
    d_outputs = random_like(outputs)
    expected = torch.autograd.grad(outputs, weights, d_outputs)
    with torch.device("meta"):
        found = torch.autograd.grad(flat(layer(x, None, lengths)), weights, d_outputs)
    assert_same_bits(list(found), list(expected), "as on the CPU")


@every_cell
def test_lazily_negated_weights_and_states(cell) -> None:
    layer, x = layers.layer(cell, 3, 1, engine="fused"), torch.randn(4, 1, 3)
    states = [torch.randn(1, 1, 1) for _ in CELLS[cell].states]
    negated = [torch._neg_view(-s) for s in states]
    assert all(s.is_neg() for s in negated)
    weights = {name: torch._neg_view(-p.detach()) for name, p in layer.named_parameters()}
    pair = [tuple(some) if len(some) > 1 else some[0] for some in (negated, states)]
    found = torch.func.functional_call(layer, weights, (x, pair[0]))
    assert_same_bits(flat(found), flat(layer(x, pair[1])), "the same numbers")


# --- the tape is used up, and is the kernel's own --------------------------------------------------------------------
@both_ways
@every_cell
def test_a_second_backward_equals_the_first(cell, bidirectional) -> None:
    layer = layers.layer(cell, 3, 5, 2, engine="fused", bidirectional=bidirectional)
    for lengths in (None, [4, 6, 1]):
        x = torch.randn(6, 3, 3, requires_grad=True)
        inputs = [x, *layer.parameters()]
        outputs = flat(layer(x, None, lengths))
        first = gradients(outputs, inputs, create_graph=True)
        assert_same_bits(gradients(outputs, inputs, create_graph=True), first, "nothing is used up yet")
        assert_same_bits(gradients(outputs, inputs, retain_graph=True), first, "this one uses the tape up")
        assert_same_bits(gradients(outputs, inputs, retain_graph=True), first, "once more")
        assert_same_bits(gradients(outputs, inputs, create_graph=True), first, "to be differentiated again")
        assert_same_bits(gradients(outputs, inputs[:1], retain_graph=True), first[:1], "of x alone")
        assert_same_bits(gradients(outputs, inputs), first, "the last time")


@pytest.mark.parametrize("reentrant", [True, False])
@every_cell
def test_checkpointed_activations(cell, reentrant) -> None:
    from torch.utils.checkpoint import checkpoint

    layer, x = layers.layer(cell, 3, 5, 2, engine="fused", bidirectional=True), torch.randn(6, 3, 3, requires_grad=True)
    d = torch.randn(6, 3, 10)
    inputs = [x, *layer.parameters()]
    expected = torch.autograd.grad(layer(x)[0], inputs, d)
    y, _ = checkpoint(layer, x, use_reentrant=reentrant)
    y.backward(d, retain_graph=True)
    assert_same_bits([v.grad for v in inputs], list(expected), "once")
    y.backward(d)
    assert_same_bits([v.grad for v in inputs], [2 * g for g in expected], "twice")


@both_ways
@every_cell
def test_what_is_done_to_the_outputs_does_not_reach_the_gradient(cell, bidirectional) -> None:
    """Not even behind autograd's back."""
    layer, x = layers.layer(cell, 3, 5, engine="fused", bidirectional=bidirectional), torch.randn(6, 3, 3)
    inputs = list(layer.parameters())
    spoilt = (lambda t: t.data.zero_(), lambda t: t.detach().numpy().fill(0), lambda t: t.data.fill_(float("nan")))
    for lengths in (None, [4, 6, 1]):
        expected = gradients(flat(layer(x, None, lengths)), inputs)
        for k, spoil in product(range(1 + len(CELLS[cell].states)), spoilt):
            outputs = flat(layer(x, None, lengths))
            spoil(outputs[k])
            assert_same_bits(gradients(outputs, inputs), expected, k)


# --- what is not a number, or not there ------------------------------------------------------------------------------
@pytest.mark.parametrize("batch_first", [False, True])
@both_ways
@every_cell
def test_padding_is_not_read(cell, bidirectional, batch_first) -> None:
    layer = layers.layer(cell, 3, 5, 2, engine="fused", bidirectional=bidirectional, batch_first=batch_first)
    lengths = torch.tensor([4, 7, 1, 7, 2])
    padding = torch.arange(7).unsqueeze(1) >= lengths
    x = torch.randn(7, 5, 3)
    x[padding] = float("nan")
    x = (x.transpose(0, 1) if batch_first else x).requires_grad_()
    outputs = flat(layer(x, None, lengths))
    y = outputs[0].transpose(0, 1) if batch_first else outputs[0]
    assert y[padding].eq(0).all()
    d_x, *rest = gradients(outputs, [x, *layer.parameters()])
    assert all(t.isfinite().all() for t in (*outputs, d_x, *rest))
    assert (d_x.transpose(0, 1) if batch_first else d_x)[padding].eq(0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pairs
def test_what_is_not_finite_comes_out_where_torch_has_it(theirs, options, value) -> None:
    for H, dtype in product((5, 37), (torch.float32, torch.float64)):
        reference = theirs(3, H, bidirectional=True, dtype=dtype, **options)
        x = torch.randn(6, 3, 3, dtype=dtype)
        x[2, 0, 1], x[4, 2, 0] = value, value
        for found, expected in zip(flat(twin(reference)(x)), flat(reference(x)), strict=True):
            assert torch.equal(found.isfinite(), expected.isfinite())
            assert torch.equal(found.isnan(), expected.isnan())
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@x86
@pytest.mark.parametrize("count", [1, 2])
def test_denormals_are_zero_in_the_kernel_and_nowhere_else(count, set_threads) -> None:
    set_threads(count)
    layer = plait.RNN(1, 4, nonlinearity="relu", engine="fused")
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.weight_hh_l0.copy_(1e-20 * torch.eye(4))
    x, h = torch.zeros(1, 20, 1), torch.full((1, 20, 4), 1e-20)
    assert with_engine(layer, "numpy")(x, h)[0].gt(0).all()  # 1e-40
    y, _ = layer(x, h)
    assert y.eq(0).all()
    y.sum().backward()
    assert (torch.tensor(1e-40) * 1).item() > 0
    assert np.float32(1e-40) * np.float32(1) > 0
    assert (torch.full((1 << 20,), 1e-40) * 1).gt(0).all()  # on all threads


# --- tensors as they come --------------------------------------------------------------------------------------------
def strided(*shape: int) -> Tensor:
    """Every other number of a larger tensor, whose axes are in another order."""
    return torch.randn([2 * n for n in shape[::-1]]).permute(2, 1, 0)[::2, ::2, ::2]


@pytest.mark.parametrize("batch_first", [False, True])
@pairs
def test_strided_inputs_states_and_gradients(theirs, options, batch_first) -> None:
    P, S = options.get("proj_size", 5), 2 if theirs is nn.LSTM else 1
    reference = theirs(3, 5, 2, bidirectional=True, batch_first=batch_first, **options)
    states = [strided(4, 6 if batch_first else 4, width) for width in (P, 5)[:S]]
    shapes = [(6, 4, 2 * P), *(s.shape for s in states)]
    inputs = strided(6, 4, 3), torch.randn(6, 4, 6)[:, :, ::2], torch.randn(3).expand(6, 4, 3)
    d_outputs = (
        [strided(*shape) for shape in shapes],
        [torch.ones(()).expand(shape) for shape in shapes],
        [torch.randn(shape[2]).expand(shape) for shape in shapes],
        [torch.randn(shape[0], shape[1], 1).expand(shape) for shape in shapes],
        [torch.randn(shape[::-1]).permute(2, 1, 0) for shape in shapes],
    )
    for x, d in product(inputs, d_outputs):
        given = [t.requires_grad_() for t in (x, *states)]
        both = []
        for layer in (twin(reference), reference):
            outputs = flat(layer(x, tuple(states) if S > 1 else states[0]))
            both.append([*outputs, *torch.autograd.grad(outputs, [*given, *layer.parameters()], d)])
        assert_close(*both)


@pairs
def test_sums_and_transposed_outputs(theirs, options) -> None:
    reference, x = theirs(3, 5, bidirectional=True, **options), torch.randn(6, 4, 3, requires_grad=True)
    for loss in (torch.sum, torch.mean, lambda y: (y.transpose(0, 2).contiguous() ** 2).sum(), lambda y: y[2, 1, 3]):
        both = [torch.autograd.grad(loss(m(x)[0]), [x, *m.parameters()]) for m in (twin(reference), reference)]
        assert_close(*both)


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).transpose(0, 1)


class Transposed(nn.Module):
    """The weight that the layer gets is not contiguous."""

    def forward(self, w: Tensor) -> Tensor:
        return w.t().contiguous().t()


@pytest.mark.parametrize(
    "parametrized",
    [
        lambda m: parametrizations.weight_norm(m, "weight_hh_l0"),
        lambda m: parametrize.register_parametrization(m, "weight_hh_l0", Symmetric()),
        lambda m: [parametrize.register_parametrization(m, f"weight_{k}_l0", Transposed()) for k in ("ih", "hh")],
    ],
    ids=["weight_norm", "symmetric", "transposed"],
)
def test_parametrized_weights(parametrized) -> None:
    reference, x = nn.RNN(3, 5), torch.randn(6, 4, 3)
    parametrized(reference)
    layer = twin(reference)
    found, expected = (outputs_and_gradients(m, x, None) for m in (layer, reference))
    assert deviation(found, expected)[0] <= 1e-5


def test_packed_sequences_in_any_order() -> None:
    reference = nn.LSTM(3, 5, 2, bidirectional=True)
    packed = pack_sequence([torch.randn(n, 3) for n in (2, 7, 1, 7, 4)], enforce_sorted=False)
    hx = [torch.randn(4, 5, 5) for _ in range(2)]
    found, expected = (outputs_and_gradients(m, packed, hx) for m in (twin(reference), reference))
    assert deviation(found, expected)[0] <= 1e-5


# --- cells that plait does not have ----------------------------------------------------------------------------------
class Three(Cell):
    """Three states; the gate in the middle is not shared, the last one would be; more is saved than twice the gates."""

    name, gates, states = "three", ("i", "g", "o"), ("h", "c", "m")
    saved = ("o", "g", "i", "rh_g", "c_tanh", "m_tanh", "sum")

    def step(wx, rh, state, dt, ops):
        h, c, m = state
        i, o = ops.sigmoid(wx[0] + rh[0]), ops.sigmoid(wx[2] + rh[2])
        g = ops.tanh(wx[1] + i * rh[1])
        c = 0.5 * c + i * g
        m = m / (1 + i) + 0.25 * c
        c_tanh, m_tanh = ops.tanh(c), ops.tanh(m)
        total = c_tanh - m_tanh
        return (o * total + 0.125 * h, c, m), (o, g, i, rh[1], c_tanh, m_tanh, total)


class Bare(Cell):
    """Two gates, and nothing saved: its derivative needs the new states alone."""

    name, gates, states, saved = "bare", ("a", "b"), ("h", "s"), ()

    def step(wx, rh, state, dt, ops):
        s = ops.sigmoid(wx[1] + rh[1] + 0.5 * state[1])
        return (ops.tanh(wx[0] + rh[0] - s), s), ()


NEW = (Three, Bare, Awkward, Apart)


def forward_and_backward(engine, problem: Problem, x: Tensor) -> list[Tensor]:
    ps = [engine.prepare(problem.cell, w, reverse=d == 1, lasting=False) for d, w in enumerate(problem.weights)]
    rows, finals, kept = engine.forward(ps, x, problem.state0, problem.layout)
    back = engine.backward(
        ps, x, kept, problem.d_rows, problem.d_finals, problem.layout, needs=Needs.all(ps), spend=True
    )
    return [rows, *finals, back.x, *back.states, *(d for some in back.weights for d in some)]


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
@pytest.mark.parametrize("cell", NEW, ids=lambda cell: cell.name)
def test_a_new_cell_has_a_kernel(cell, ragged, set_threads, monkeypatch) -> None:
    set_threads(2)
    for B, H, by_units in product((1, 9), (5, 37), (False, True)):
        monkeypatch.setattr(choices, "by_units", lambda *_, way=by_units: way)
        problem = Problem.draw(cell, batch(B, 6, ragged=ragged), H, dtype=torch.float64)
        x = torch.randn(problem.layout.N, 3, dtype=torch.float64)
        both = [forward_and_backward(e, problem, x) for e in (FusedEngine(), engines.get("numpy"))]
        assert_close(*both, 1e-12)


PROJECTED, PLAIN = ((Leaky, 40, 8), (Leaky, 9, 40)), ((CELLS["gru"], 37, 0),)
ALL = (*PROJECTED, *PLAIN)
SCHEDULES = (  # where options meet that other schedules have alone, one cell is enough: each takes long to compile
    (OFF, ALL),
    (replace(OFF, vectorise=True, apart=True), PROJECTED),
    (Schedule(torch_mm=False), ALL),
    (Schedule(fuse=True, torch_mm=False), ALL),
    (Schedule(apart=True), PLAIN),
    (Schedule(tile=(64, 16)), PROJECTED),
    (Schedule(tile=(3, 24), apart=True, fuse=True), PROJECTED),
)


@pytest.mark.parametrize(("schedule", "cells"), SCHEDULES, ids=range(len(SCHEDULES)))
def test_every_schedule_computes_the_same(schedule, cells, set_threads) -> None:
    set_threads(2)
    for (cell, H, P), ragged in product(cells, (False, True)):
        problem = Problem.draw(cell, batch(7, 5, ragged=ragged), H, P, torch.float64)
        x = torch.randn(problem.layout.N, 3, dtype=torch.float64)
        both = [forward_and_backward(e, problem, x) for e in (FusedEngine(schedule), engines.get("numpy"))]
        assert_close(*both, 1e-12)


def test_a_tile_that_is_too_wide_is_refused() -> None:
    with pytest.raises(PlaitError, match=r"tile \(64, 4096\): 4096 columns, expected 448 at most"):
        Schedule(tile=(64, 4096)).target(double=False)


@pytest.mark.parametrize(("gates_count", "states_count"), [(9, 1), (1, 5)])
def test_a_cell_that_is_too_large_for_the_kernels_is_refused(gates_count, states_count) -> None:
    """They have room for 8 gates and 4 states."""

    def names(letter: str, count: int) -> tuple[str, ...]:
        return tuple(f"{letter}{n}" for n in range(count))

    class Large(Cell):
        gates, states = names("g", gates_count), names("h", states_count)

        def step(wx, rh, state, dt, ops):
            return tuple(ops.tanh(sum(wx[1:], wx[0]) + sum(rh[1:], rh[0])) for _ in state)

    assert FusedEngine().why_not(Large, torch.float32, torch.device("cpu"))


# --- other processors ------------------------------------------------------------------------------------------------
TARGETS = [
    Target(double=False, lanes=4, rows=6),
    Target(double=False, lanes=8, rows=1),
    Target(double=False, lanes=16, rows=12),
    Target(double=False, lanes=16, rows=14),
    Target(double=False, lanes=1, rows=1, vectors=1),
    Target(double=False, lanes=1, rows=5),
    Target(double=False, lanes=4, rows=3, vectors=1),
    Target(double=False, lanes=4, rows=3, vectors=4),
    Target(double=True, lanes=2, rows=6),
    Target(double=True, lanes=8, rows=14),
]
UNPROJECTED = [target for target in TARGETS if target.rows < 6]  # quickly compiled, and all numbers of vectors
QUICK = [(Leaky, target) for target in TARGETS if target.rows != 14 or target.double]
QUICK += [(CELLS["gru"], target) for target in UNPROJECTED if target.rows == 3]


def text_of(target: Target) -> str:
    return f"{target.rows}x{target.vectors}x{target.lanes}{'d' if target.double else ''}"


@pytest.mark.parametrize(
    ("cell", "P", "target"),
    [
        pytest.param(cell, P, target, marks=[] if (cell, target) in QUICK else pytest.mark.slow)
        for cell, P, targets in ((Leaky, 3, TARGETS), (CELLS["gru"], 0, UNPROJECTED))
        for target in targets
    ],
    ids=lambda value: getattr(value, "name", value) if not isinstance(value, Target) else text_of(value),
)
def test_other_vectors_and_registers(cell, P, target, monkeypatch) -> None:
    """A cell with gates of both kinds, and with the products that only a projection has; and one with three gates."""
    dtype = torch.float64 if target.double else torch.float32
    monkeypatch.setattr(Schedule, "target", lambda *_, **__: target)
    for B, H, ragged in product((1, 17), (5, 37), (False, True)):
        problem = Problem.draw(cell, batch(B, 6, ragged=ragged), H, P, dtype)
        x = torch.randn(problem.layout.N, 3, dtype=dtype)
        exact = replace(
            problem,
            weights=[Weights(*(None if t is None else t.double() for t in w[:5])) for w in problem.weights],
            state0=[s.double() for s in problem.state0],
            d_rows=problem.d_rows.double(),
            d_finals=[d.double() for d in problem.d_finals],
        )
        found = forward_and_backward(FusedEngine(), problem, x)
        expected = forward_and_backward(engines.get("numpy"), exact, x.double())
        assert_close(found, expected, 1e-12 if target.double else 1e-5)


# --- widths of vectors -----------------------------------------------------------------------------------------------
WIDTHS = host().widths
BOUND = {torch.float32: 1e-5, torch.float64: 1e-12}
QUICK_WIDTHS = (("gru", torch.float32), ("lstm", torch.float64))


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
@pytest.mark.parametrize(
    ("cell", "dtype"),
    [
        pytest.param(cell, dtype, marks=[] if (cell, dtype) in QUICK_WIDTHS else pytest.mark.slow)
        for cell, dtype in product(("lstm", "gru", "rnn", "implicit_gru"), (torch.float32, torch.float64))
    ],
)
def test_every_width_of_vectors_gives_the_same_bits(cell, dtype, ragged, set_threads) -> None:
    """All results of a layer, forward and backward, whoever computes the products: all tiles sum in the same order."""
    set_threads(2)
    for (B, H, I), torch_mm in product(((1, 5, 3), (7, 37, 30), (20, 100, 30), (17, 64, 3)), (True, False)):
        problem = Problem.draw(CELLS[cell], batch(B, 6, ragged=ragged), H, dtype=dtype, I=I)
        x = torch.randn(problem.layout.N, I, dtype=dtype)
        made = [FusedEngine(Schedule(vector_bits=bits, torch_mm=torch_mm)) for bits in WIDTHS]
        walks, layers = [problem.walk(e) for e in made], [forward_and_backward(e, problem, x) for e in made]
        lanes = [e.schedule.target(dtype is torch.float64).lanes for e in made]
        assert lanes == [bits // (8 * dtype.itemsize) for bits in WIDTHS]
        assert_close(layers[0], forward_and_backward(engines.get("torch"), problem, x), BOUND[dtype])
        for bits, walk, layer in zip(WIDTHS, walks, layers, strict=True):
            assert_same_bits(walk, walks[0], (B, H, I, torch_mm, bits))
            assert_same_bits(layer, layers[0], (B, H, I, torch_mm, bits))
