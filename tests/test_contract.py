"""The contract that chunks of a pipeline and sweeps of a solver stand on: any engine, in pieces, is the whole."""

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from plait import engines
from plait.cells import CELLS, Cell
from plait.engines import Layout, Needs, Prepared, Weights
from plait.ladder.compare import TOLERANCE, relative

ENGINES = ("python", "numpy", "torch:steps", "fused")
DTYPES = {"float64": torch.float64, "float32": torch.float32}


class Peephole(Cell):
    """An LSTM whose gates see the cell's state, each by a vector of its own."""

    gates, states, params = ("i", "f", "g", "o"), ("h", "c"), ("p_i", "p_f", "p_o")

    def step(wx, rh, state, params, ops):
        _, c = state
        i, f = (ops.sigmoid(wx[k] + rh[k] + params[k] * c) for k in range(2))
        new = f * c + i * ops.tanh(wx[2] + rh[2])
        return ops.sigmoid(wx[3] + rh[3] + params[2] * new) * ops.tanh(new), new


class Awkward(Cell):
    """The gates whose W x and R h stay apart come first and third."""

    gates, states = ("n", "r", "m", "z"), ("h",)

    def step(wx, rh, state, ops):
        (h,) = state
        r, z = ops.sigmoid(wx[1] + rh[1]), ops.sigmoid(wx[3] + rh[3])
        return z * h + (1 - z) * ops.tanh(wx[0] + r * rh[0]) * ops.sigmoid(wx[2] * rh[2])


ALL = {**CELLS, "peephole": Peephole, "awkward": Awkward}
every_engine = pytest.mark.parametrize("engine", ENGINES)
every_cell = pytest.mark.parametrize("cell", ALL)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
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


def problem(engine: str, cell: str, dtype: str, ragged: bool, reverse: bool, P: int = 0, T: int = 9) -> Problem:
    c, g, kind = ALL[cell], torch.Generator().manual_seed(0), DTYPES[dtype]
    G, I, H, lengths = len(c.gates), 5, 7, [T, T, T - 2, 4, 4, 1] if ragged else [T] * 4
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
@every_dtype
@every_cell
@every_engine
def test_chunks_are_the_whole(engine, cell, dtype, ragged, reverse) -> None:
    q = problem(engine, cell, dtype, ragged, reverse)
    expected = whole(engine, q)
    assert_close(expected, whole("python", problem("python", cell, dtype, ragged, reverse)), dtype)
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
    """The way back through views of the whole's tape, twice: the same bits, and those of the whole to rounding."""
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
@every_dtype
@every_cell
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
@every_dtype
@every_cell
@every_engine
def test_without_a_tape_the_bits_are_the_same(engine, cell, dtype, ragged, reverse, monkeypatch) -> None:
    from plait.engines import fused_walk

    q, e = problem(engine, cell, dtype, ragged, reverse), engines.get(engine)
    wx = e.project(q.p, q.x)
    untouched = wx.clone()
    expected, tape = e.recur(q.p, wx, q.state0, q.layout)
    for room in (1, 1 << 12, 1 << 20):  # in how much memory `fused` walks on, if nothing is kept
        monkeypatch.setattr(fused_walk, "WITHOUT_TAPE", room)
        out = [torch.empty_like(d) for d in q.d_states]
        found, nothing = e.recur(q.p, wx, q.state0, q.layout, keep=False, out=out)
        assert nothing is None
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(out, tape.states, strict=True))
    assert torch.equal(wx, untouched)


@both_ways
@both_layouts
@every_cell
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
