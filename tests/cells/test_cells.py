"""A cell's step is one text that runs on anything; what is derived from it is checked against autograd."""

import numpy as np
import pytest
import torch
from torch import nn

from plait import PlaitError, cells
from plait.cells import CELLS, Cell
from plait.cells.base import geometric
from plait.cells.graph import RULES, SIGNS, Graph, adjoints, write
from plait.cells.ops import arrays, floats, tensors
from plait.cells.trace import compiled, trace
from plait.ladder.rungs import derivative_deviation, rule_deviation
from some_cells import SOME

STEPS = (1, 2, 3, 4, 8)
EVERY = (*CELLS.values(), *SOME)
every_cell = pytest.mark.parametrize("cell", EVERY, ids=[cell.name for cell in EVERY])


def draw(cell: type[Cell], seed: int = 0) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    counts = len(cell.gates), len(cell.gates), len(cell.states), len(cell.params)
    return [[rng.standard_normal(16) for _ in range(count)] for count in counts]


@every_cell
@pytest.mark.parametrize("dt", STEPS)
def test_step_is_the_same_on_floats_arrays_and_tensors(cell: type[Cell], dt: int) -> None:
    drawn = draw(cell)
    new = cell.advance(*drawn, dt, arrays)
    on_tensors = cell.advance(*([torch.from_numpy(v) for v in group] for group in drawn), dt, tensors)
    on_floats = [cell.advance(*([float(v[j]) for v in group] for group in drawn), dt, floats) for j in range(16)]
    for k, expected in enumerate(new):
        np.testing.assert_allclose(on_tensors[k].numpy(), expected, rtol=1e-13)
        np.testing.assert_allclose([n[k] for n in on_floats], expected, rtol=1e-13)


@pytest.mark.parametrize(("name", "kind"), [("rnn", nn.RNNCell), ("lstm", nn.LSTMCell), ("gru", nn.GRUCell)])
def test_a_step_of_one_is_torchs_cell(name: str, kind: type[nn.Module]) -> None:
    cell, theirs = CELLS[name], kind(3, 4, dtype=torch.float64)
    x, state = (
        torch.randn(2, 3, dtype=torch.float64),
        [torch.randn(2, 4, dtype=torch.float64) for _ in CELLS[name].states],
    )
    wx = nn.functional.linear(x, theirs.weight_ih, theirs.bias_ih).chunk(len(cell.gates), 1)
    rh = nn.functional.linear(state[0], theirs.weight_hh, theirs.bias_hh).chunk(len(cell.gates), 1)
    new = cell.advance(wx, rh, state, (), 1, tensors)
    expected = theirs(x, tuple(state) if len(state) > 1 else state[0])
    for a, b in zip(new, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-15)


def saved_of(cell: type[Cell], dt: float, drawn: list[list[np.ndarray]]) -> tuple[tuple[np.ndarray, ...], dict]:
    """-> new states, and what is kept by name"""
    result = compiled(trace(cell, dt).step, arrays)(*(v for group in drawn for v in group))
    S = len(cell.states)
    return result[:S], dict(zip(trace(cell, dt).saved, result[S:], strict=True))


def test_the_implicit_gru_solves_its_implicit_equation() -> None:
    """h' = h + dt (1 - z)(n - h'): the new state stands on both sides."""
    drawn = draw(CELLS["implicit_gru"])
    (h,) = drawn[2]
    for dt in (0.5, 1, 7):
        (new,), kept = saved_of(CELLS["implicit_gru"], dt, drawn)
        np.testing.assert_allclose(new, h + dt * (1 - kept["z"]) * (kept["n"] - new), rtol=1e-13)


@pytest.mark.parametrize("name", ["gru", "lstm"])
@pytest.mark.parametrize("dt", STEPS)
def test_a_long_step_is_short_steps_with_gates_held_still(name: str, dt: int) -> None:
    drawn = draw(CELLS[name])
    new, kept = saved_of(CELLS[name], dt, drawn)
    state = drawn[2][-1]
    for _ in range(dt):
        if name == "gru":
            state = kept["z"] * state + (1 - kept["z"]) * kept["n"]
        else:
            state = kept["f"] * state + kept["i"] * kept["g"]
    np.testing.assert_allclose(new[-1], state, rtol=1e-12)


def test_geometric_needs_whole_steps() -> None:
    assert geometric(0.5, 5) == (0.5**5, 1 + 0.5 + 0.25 + 0.125 + 0.0625)
    for dt in (0, 0.5, 2.5, -1):
        with pytest.raises(ValueError, match=f"dt {dt}: .* whole numbers"):
            geometric(0.5, dt)


def test_functions_survive_extreme_arguments() -> None:
    for ops in (floats, arrays):
        with np.errstate(all="raise", under="ignore"):
            assert [float(ops.sigmoid(v)) for v in (-1e4, 0.0, 1e4)] == [0.0, 0.5, 1.0]
    assert np.isnan(floats.relu(float("nan")))


@every_cell
@pytest.mark.parametrize("dt", STEPS)
def test_traced_derivative_is_autograds(cell: type[Cell], dt: int) -> None:
    assert derivative_deviation(cell, dt, torch.Generator().manual_seed(1)) < 1e-13


@every_cell
def test_traced_step_is_the_step(cell: type[Cell]) -> None:
    drawn = draw(cell)
    for a, b in zip(saved_of(cell, 3, drawn)[0], cell.advance(*drawn, 3, arrays), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("op", RULES)
def test_every_rule_alone(op: str) -> None:
    assert rule_deviation(op, torch.Generator().manual_seed(2)) < 1e-14


def test_a_value_used_twice_gets_both_adjoints() -> None:
    graph = Graph()
    x, d = graph.node("input", "x"), graph.node("input", "d")
    y = x * x + x  # dy/dx = 2 x + 1
    (found,) = [adjoints([y], [d])[x]]
    text = write("f", [("x", x), ("d", d)], [("d_x", found)])
    assert compiled(text, floats)(3.0, 2.0) == (2.0 * 7.0,)


def test_a_value_returned_twice_gets_both_adjoints() -> None:
    class Twins(Cell):
        """Both states are the same number."""

        gates, states = ("a",), ("h", "m")

        def step(wx, rh, state, ops):
            h = ops.tanh(wx[0] + rh[0])
            return h, h

    assert compiled(trace(Twins).vjp, floats)(0.3, 0.4, 0.5, 0.5, 2.0, 5.0) == (5.25, 5.25, 0.0, 0.0)
    assert derivative_deviation(Twins, 1, torch.Generator().manual_seed(1)) < 1e-14


def test_equal_expressions_are_one_node_and_identities_vanish() -> None:
    graph = Graph()
    x, y = graph.node("input", "x"), graph.node("input", "y")
    assert x * y is x * y
    assert x + 0 is x
    assert 1 * x is x
    assert x - 0 is x
    assert (x + (0 - y)).op == "sub"
    assert set(SIGNS) <= set(RULES)


def test_a_step_that_saves_too_little_is_told_what_to_save() -> None:
    class Forgetful(Cell):
        gates, states, saved = ("a",), ("h",), ()

        def step(wx, rh, state, ops):
            return wx[0] * rh[0], ()

    with pytest.raises(PlaitError, match=r"forgetful_vjp needs (rh_a|wx_a): let step save it"):
        trace(Forgetful)


def test_unknown_cell_names_the_nearest() -> None:
    with pytest.raises(PlaitError, match="cell 'gur' is not known: did you mean 'gru'"):
        cells.get("gur")
