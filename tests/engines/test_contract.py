"""The contract that chunks of a pipeline and sweeps of a solver stand on: any engine, in pieces, is the whole."""

import random
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from plait import PlaitError, engines
from plait.cells import CELLS, Cell
from plait.engines import Layout, Needs, Prepared, Weights, fused
from plait.engines.fused import FusedEngine
from plait.kernels.launch import choices
from plait.ladder.compare import TOLERANCE, relative
from some_cells import Apart, Awkward, PeepholeLSTM

ENGINES = ("python", "numpy", "torch:steps", "fused")
DTYPES = {"float64": torch.float64, "float32": torch.float32}


class Shift(Cell):
    """States that are passed on as they are."""

    gates, states = ("a",), ("h", "k", "l")

    def step(wx, rh, state, ops):
        h, k, m = state
        return ops.tanh(wx[0] + rh[0] + 0.5 * k) + 0.1 * m, h, k


ALL = {**CELLS, "shift": Shift, "peephole": PeepholeLSTM, "awkward": Awkward, "apart": Apart}
every_engine = pytest.mark.parametrize("engine", ENGINES)
every_cell = pytest.mark.parametrize("cell", ALL)
# the other cells in one precision: each form of a cell takes seconds to compile
every_cell_and_dtype = pytest.mark.parametrize(
    ("cell", "dtype"), [(c, d) for c in ALL for d in DTYPES if c in CELLS or d == "float64"]
)
some_cells = pytest.mark.parametrize("cell", ["rnn", "lstm", "gru", "peephole"])
both_layouts = pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


@dataclass(frozen=True)
class Problem:
    p: Prepared
    x: Tensor
    layout: Layout
    state0: list[Tensor]
    d_states: list[Tensor]
    d_last: list[Tensor]


def problem(
    engine: str, cell: str, dtype: str, ragged: bool, reverse: bool, P: int = 0, T: int = 9, H: int = 7, times: int = 1
) -> Problem:
    c, g, kind = ALL[cell], torch.Generator().manual_seed(0), DTYPES[dtype]
    G, I, lengths = len(c.gates), 5, ([T, T, T - 2, 4, 4, 1] if ragged else [T] * 4) * times
    layout = Layout.of_lengths(lengths) if ragged else Layout(T, len(lengths))

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=kind)

    w_hr = draw(P, H) / 2 if P else None
    params = tuple(draw(H) for _ in c.params)
    w = Weights(draw(G * H, I) / 2, draw(G * H, P or H) / 2, draw(G * H), draw(G * H), w_hr, params)
    widths = w.widths(c)
    return Problem(
        engines.get(engine).prepare(c, w, reverse),
        draw(layout.N, I),
        layout,
        [draw(layout.B, n) for n in widths],
        [draw(layout.N, n) for n in widths],
        [draw(layout.B, n) for n in widths],
    )


def whole(engine: str, q: Problem) -> list[Tensor]:
    """Last states, all h, d_x, d_ of the initial states and of the weights."""
    e = engines.get(engine)
    h = torch.empty_like(q.d_states[0])
    last, tape = e.recur(q.p, e.project(q.p, q.x), q.state0, q.layout, out=[h, *[None] * (len(q.state0) - 1)])
    g, d_state0 = e.recur_vjp(q.p, tape, q.d_states, q.d_last)
    return [*last, h, e.input_gradient(q.p, g), *d_state0, *e.weight_gradients(q.p, q.x, tape, g)]


@cache
def slowest(cell: str, dtype: str, ragged: bool, reverse: bool) -> list[Tensor]:
    return whole("python", problem("python", cell, dtype, ragged, reverse))


def in_chunks(engine: str, q: Problem, cuts: list[tuple[int, int]]) -> list[Tensor]:
    """The same, chunk after chunk, as layout.py says; the weights' part is added up, at the end of each chunk."""
    e, order = engines.get(engine), cuts[::-1] if q.p.reverse else cuts
    running, kept, h = [s.clone() for s in q.state0], {}, torch.empty_like(q.d_states[0])
    for t0, t1 in order:
        chunk, rows = q.layout.cut(t0, t1), q.layout.rows(t0, t1)
        wx = e.project(q.p, q.x[rows])
        out = [h[rows], *[None] * (len(running) - 1)]
        last, kept[t0] = e.recur(q.p, wx, [s[: chunk.B] for s in running], chunk, out=out)
        for s, new in zip(running, last, strict=True):
            s[: chunk.B] = new
    d_running, d_x = [d.clone() for d in q.d_last], torch.empty_like(q.x)
    d_w = [torch.zeros_like(t) for t in q.p.weights.tensors]
    for t0, t1 in order[::-1]:
        chunk, rows, tape = q.layout.cut(t0, t1), q.layout.rows(t0, t1), kept[t0]
        some = [d[: chunk.B] for d in d_running]
        g, d_state0 = e.recur_vjp(q.p, tape, [d[rows] for d in q.d_states], some, spend=True)
        d_x[rows] = e.input_gradient(q.p, g)
        for d, new in zip(d_running, d_state0, strict=True):
            d[: chunk.B] = new
        assert e.weight_gradients(q.p, q.x[rows], tape, g, into=d_w)[0] is d_w[0]
    return [*running, h, d_x, *d_running, *d_w]


def assert_close(found: list[Tensor], expected: list[Tensor], dtype: str) -> None:
    off = [relative(a, b) for a, b in zip(found, expected, strict=True)]
    assert max(off) <= TOLERANCE[DTYPES[dtype]], off


def random_cuts(T: int, seed: int) -> list[tuple[int, int]]:
    r = random.Random(seed)
    return list(pairwise([0, *sorted(r.sample(range(1, T), r.randint(1, T - 1))), T]))


@both_ways
@both_layouts
@every_cell_and_dtype
@every_engine
def test_chunks_are_the_whole(engine, cell, dtype, ragged, reverse) -> None:
    q = problem(engine, cell, dtype, ragged, reverse)
    expected = whole(engine, q)
    assert_close(expected, slowest(cell, dtype, ragged, reverse), dtype)
    for seed in range(1 if engine == "python" else 3):
        assert_close(in_chunks(engine, q, random_cuts(q.layout.T, seed)), expected, dtype)


@both_ways
@both_layouts
@every_engine
def test_chunks_of_a_projection_are_the_whole(engine, ragged, reverse) -> None:
    q = problem(engine, "lstm", "float64", ragged, reverse, P=3)
    assert_close(in_chunks(engine, q, random_cuts(q.layout.T, 0)), whole(engine, q), "float64")


@both_ways
@both_layouts
@every_cell
@every_engine
def test_a_tape_can_be_cut_and_is_left_as_it_is(engine, cell, ragged, reverse) -> None:
    """The backward pass through views of the whole's tape, twice: the same bits, and those of the whole to rounding."""
    q, e = problem(engine, cell, "float64", ragged, reverse), engines.get(engine)
    _, tape = e.recur(q.p, e.project(q.p, q.x), q.state0, q.layout)
    before = tape.memory.view(torch.int64).clone()  # as bits: not all of it was written
    expected = e.recur_vjp(q.p, tape, q.d_states, q.d_last)[0].d_wx
    cuts = random_cuts(q.layout.T, 1)
    results = []
    for _ in range(2):
        d_running, d_wx = [d.clone() for d in q.d_last], torch.empty_like(expected)
        for t0, t1 in cuts if reverse else cuts[::-1]:
            part, rows = tape.cut(t0, t1), q.layout.rows(t0, t1)
            assert part.gates.data_ptr() == tape.gates[rows].data_ptr()
            some = [d[: part.layout.B] for d in d_running]
            g, d_state0 = e.recur_vjp(q.p, part, [d[rows] for d in q.d_states], some)
            d_wx[rows] = g.d_wx
            for d, new in zip(d_running, d_state0, strict=True):
                d[: part.layout.B] = new
        results.append([d_wx, *d_running])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert_close(results[0][:1], [expected], "float64")
    assert torch.equal(tape.memory.view(torch.int64), before)


@both_ways
@both_layouts
@every_cell_and_dtype
@every_engine
def test_linearised_twice_gives_the_same_bits(engine, cell, dtype, ragged, reverse) -> None:
    """At the states of the walk it is the tape of the walk; at others it is that of their steps."""
    q, e = problem(engine, cell, dtype, ragged, reverse), engines.get(engine)
    wx = e.project(q.p, q.x)
    _, tape = e.recur(q.p, wx, q.state0, q.layout)
    expected, d_expected = e.recur_vjp(q.p, tape, q.d_states, q.d_last)
    here = e.linearise(q.p, wx, tape.states, q.state0, q.layout)
    twice = [e.recur_vjp(q.p, here, q.d_states, q.d_last) for _ in range(2)]
    flat = [[g.d_wx, *g.d_rh, *g.d_params, *d] for g, d in twice]
    assert all(torch.equal(a, b) for a, b in zip(*flat, strict=True))
    assert_close(flat[0], [expected.d_wx, *expected.d_rh, *expected.d_params, *d_expected], dtype)
    others = [torch.randn(s.shape, dtype=s.dtype) for s in tape.states]
    there = e.linearise(q.p, wx, others, q.state0, q.layout)
    for k, s in enumerate(there.states):  # each step by itself, from the state before it
        one, _ = e.recur(q.p, wx, [there.before_all(j) for j in range(len(others))], Layout(1, q.layout.N), keep=False)
        assert_close([s], [one[k]], dtype)
    g, _ = e.recur_vjp(q.p, there, q.d_states, q.d_last)
    assert relative(g.d_wx, expected.d_wx) > 1e-3


@both_ways
@both_layouts
@every_cell_and_dtype
@every_engine
def test_without_a_tape_the_bits_are_the_same(engine, cell, dtype, ragged, reverse, monkeypatch) -> None:
    q, e = problem(engine, cell, dtype, ragged, reverse), engines.get(engine)
    wx = e.project(q.p, q.x)
    untouched = wx.clone()
    expected, tape = e.recur(q.p, wx, q.state0, q.layout)
    for room in (1, 1 << 12, 1 << 20):  # in how much memory `fused` walks on, if nothing is kept
        monkeypatch.setattr(fused, "WITHOUT_TAPE", room)
        out = [torch.empty_like(d) for d in q.d_states]
        found, nothing = e.recur(q.p, wx, q.state0, q.layout, keep=False, out=out)
        assert nothing is None
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(out, tape.states, strict=True))
    assert torch.equal(wx, untouched)


@both_ways
@both_layouts
@some_cells
@every_engine
def test_a_source_is_added_to_every_new_state(engine, cell, ragged, reverse) -> None:
    """u = Phi(u before) + g: so with g = u - Phi(u before), any u is the path of the walk."""
    q, e = problem(engine, cell, "float64", ragged, reverse), engines.get(engine)
    wx = e.project(q.p, q.x)
    path = [torch.randn(s.shape, dtype=s.dtype) for s in q.d_states]
    steps = e.linearise(q.p, wx, path, q.state0, q.layout)
    source = [u - phi for u, phi in zip(path, steps.states, strict=True)]
    out = [torch.empty_like(s) for s in path]
    e.recur(q.p, wx, q.state0, q.layout, source=source, keep=False, out=out)
    assert_close(out, path, "float64")
    with pytest.raises(ValueError, match="linearise"):
        e.recur(q.p, wx, q.state0, q.layout, source=source)


@both_layouts
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
@every_engine
def test_a_layer_in_two_parts(engine, cell, ragged) -> None:
    """`backward` without the weights, which `weight_gradients` adds later, is `backward`."""
    a, b = (problem(engine, cell, "float64", ragged, reverse) for reverse in (False, True))
    e, ps, layout = engines.get(engine), [a.p, b.p], a.layout
    d_rows = torch.cat([a.d_states[0], b.d_states[0]], 1)
    d_last = [torch.stack(some) for some in zip(a.d_last, b.d_last, strict=True)]
    state0 = [torch.stack(some) for some in zip(a.state0, b.state0, strict=True)]
    _, _, kept = e.forward(ps, a.x, state0, layout)
    expected = e.backward(ps, a.x, kept, d_rows, d_last, layout, needs=Needs.all(ps))
    found = e.backward(ps, a.x, kept, d_rows, d_last, layout, needs=Needs.but_weights(ps), spend=True)
    assert_close([found.x, *found.states], [expected.x, *expected.states], "float64")
    for d, p in enumerate(ps):
        tape = p.room(layout, 1).tape(kept[d], layout)
        into = [torch.ones_like(t) for t in p.weights.tensors]
        e.weight_gradients(p, a.x, tape, found.derivatives[d], into=into)
        assert_close([t - 1 for t in into], expected.weights[d], "float64")


@both_layouts
@pytest.mark.parametrize("c", [1, 3, 4, 9])
@every_engine
def test_pieces_of_a_sequence_are_a_batch(engine, c, ragged) -> None:
    """K pieces as K*B sequences, each from the state that the walk has there: the same states."""
    q, e = problem(engine, "lstm", "float64", ragged, False), engines.get(engine)
    wx = e.project(q.p, q.x)
    _, tape = e.recur(q.p, wx, q.state0, q.layout)
    pieces = q.layout.pieces(c)
    starts = []
    for k, path in enumerate(tape.states):
        rows = [
            q.state0[k][b] if p == 0 else path[q.layout.starts[p * c - 1] + b]
            for p, b in zip(pieces.piece.tolist(), pieces.sequence.tolist(), strict=True)
        ]
        starts.append(torch.stack(rows))
    _, found = e.recur(q.p, wx[pieces.rows], starts, pieces.layout)
    for state, expected in zip(found.states, tape.states, strict=True):
        assert_close([state], [expected[pieces.rows]], "float64")


@pytest.mark.parametrize("by_units", [False, True], ids=["by batch", "by units"])
@both_ways
@both_layouts
@pytest.mark.parametrize("cell", ["lstm", "gru", "peephole", "apart", "awkward"])
def test_all_of_it_on_a_team_and_with_torchs_products(
    cell, ragged, reverse, by_units, set_threads, monkeypatch
) -> None:
    """So large that two threads share it, and that torch.mm does the products over all steps."""
    monkeypatch.setattr(choices, "by_units", lambda *_: by_units)
    set_threads(2)
    e, reference = FusedEngine(), engines.get("numpy")
    q = problem("numpy", cell, "float64", ragged, reverse, H=130, times=4)
    expected = whole("numpy", q)
    p = e.prepare(ALL[cell], q.p.weights, reverse)
    mine = replace(q, p=p)
    monkeypatch.setattr(engines, "get", lambda name: e if name == "fused" else reference)
    assert_close(whole("fused", mine), expected, "float64")
    assert_close(in_chunks("fused", mine, random_cuts(q.layout.T, 0)), expected, "float64")
    monkeypatch.setattr(fused, "WITHOUT_TAPE", 1 << 18)
    last, _ = e.recur(p, e.project(p, q.x), q.state0, q.layout, keep=False)
    assert_close(last, expected[: len(last)], "float64")
    state0, d_last = ([s.unsqueeze(0) for s in some] for some in (q.state0, q.d_last))
    theirs = reference.forward([q.p], q.x, state0, q.layout)
    needs = Needs.all([q.p])
    other = reference.backward([q.p], q.x, theirs[2], q.d_states[0], d_last, q.layout, needs=needs)
    for ps in ([p], [e.prepare(ALL[cell], q.p.weights, reverse, lasting=False)]):
        rows, finals, kept = e.forward(ps, q.x, state0, q.layout)
        back = e.backward(ps, q.x, kept, q.d_states[0], d_last, q.layout, needs=Needs.all(ps), spend=True)
        assert_close([rows, *finals], [theirs[0], *theirs[1]], "float64")
        assert_close([back.x, *back.states, *back.weights[0]], [other.x, *other.states, *other.weights[0]], "float64")


def test_prepared_weights_may_be_used_in_any_company() -> None:
    """Alone, then beside others, in either order: what is packed of one says nothing of the other."""
    e = engines.get("fused")
    a, b, o = (problem("fused", "gru", "float64", False, reverse) for reverse in (False, True, True))
    p, q, r = a.p, b.p, e.prepare(o.p.cell, Weights(*[t * 2 for t in o.p.weights[:4]]), True)

    def fresh(*ps: Prepared) -> Tensor:
        return e.forward([e.prepare(x.cell, x.weights, x.reverse, lasting=False) for x in ps], a.x, None, a.layout)[0]

    e.recur(p, e.project(p, a.x), None, a.layout)
    for ps in ([p, q], [p], [p, r], [p, q], [q], [r]):
        for keep in (True, False, False, False):
            assert_close([e.forward(ps, a.x, None, a.layout, keep=keep)[0]], [fresh(*ps)], "float64")


@every_engine
def test_what_is_asked_for_in_other_ways(engine) -> None:
    """States that are views of others, results that go into columns, buffers that are not there."""
    q, e = problem(engine, "lstm", "float64", True, True), engines.get(engine)
    wx = e.project(q.p, q.x)
    _, tape = e.recur(q.p, wx, q.state0, q.layout)
    out = [torch.empty(s.shape[::-1], dtype=s.dtype).t() for s in q.d_states]
    e.recur(q.p, wx, q.state0, q.layout, out=out)
    assert_close(out, list(tape.states), "float64")
    state0 = [s[:1].expand(s.shape) for s in q.state0]
    wide = [torch.cat([s, s], 1)[:, : s.shape[1]] for s in tape.states]
    found = [
        e.recur_vjp(q.p, e.linearise(q.p, wx, *some, q.layout), q.d_states, q.d_last)[0].d_wx
        for some in (
            (wide, state0),
            ([s.contiguous() for s in wide], [s.contiguous() for s in state0]),
        )
    ]
    assert torch.equal(*found)
    steps = e.linearise(q.p, wx, wide, q.state0, q.layout)
    expected = e.recur_vjp(q.p, steps, q.d_states, q.d_last)[0].d_wx
    for s in wide:
        s.zero_()  # a solver goes on with its states: the tape has its own
    assert torch.equal(e.recur_vjp(q.p, steps, q.d_states, q.d_last)[0].d_wx, expected)
    g, _ = e.recur_vjp(q.p, tape, q.d_states, q.d_last)
    every = e.weight_gradients(q.p, q.x, tape, g)
    some = e.weight_gradients(q.p, q.x, tape, g, into=[None] * len(every))
    assert_close(some, every, "float64")


def test_a_call_with_pinned_weights_refuses_too_few_states() -> None:
    q, e = problem("fused", "lstm", "float64", False, False), engines.get("fused")
    state0 = [s[None] for s in q.state0]
    for _ in range(2):  # packs; has them packed
        e.forward([q.p], q.x, state0, q.layout, keep=False)
    with pytest.raises(PlaitError, match=r"^initial states: found 1 tensors, expected 2 \(h, c\)"):
        e.forward([q.p], q.x, state0[:1], q.layout, keep=False)


def test_what_does_not_fit_a_walk_is_refused() -> None:
    q, e = problem("fused", "lstm", "float64", False, False), engines.get("fused")
    wx = e.project(q.p, q.x)
    with pytest.raises(PlaitError, match=r"source of the states: found 1 tensors, expected 2 \(h, c\)"):
        e.recur(q.p, wx, q.state0, q.layout, source=q.d_states[:1], keep=False)
    with pytest.raises(PlaitError, match=r"^initial states: found 1 tensors, expected 2 \(h, c\)"):
        e.recur(q.p, wx, q.state0[:1], q.layout)
    _, tape = e.recur(q.p, wx, q.state0, q.layout)
    with pytest.raises(PlaitError, match="other direction"):
        e.recur_vjp(e.prepare(q.p.cell, q.p.weights, True), tape, None, q.d_last)
    odd = replace(tape, gates=torch.empty(tape.gates.shape[::-1], dtype=torch.float64).t())
    with pytest.raises(PlaitError, match="expected contiguous"):
        e.recur_vjp(q.p, odd, None, q.d_last)


def test_derivatives_come_for_every_direction() -> None:
    a, b = (problem("fused", "gru", "float64", False, reverse) for reverse in (False, True))
    e, ps = engines.get("fused"), [a.p, b.p]
    y, _, kept = e.forward(ps, a.x, None, a.layout)
    needs = Needs(False, [False], [[True] * 4, [False] * 4])  # one is trained, one is frozen
    assert len(e.backward(ps, a.x, kept, y, [None], a.layout, needs=needs).derivatives) == 2
