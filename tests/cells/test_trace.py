"""What a cell may look like, what is kept of its step, and what its author is told if it cannot be traced."""

import inspect
import itertools
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait import PlaitError
from plait.cells import CELLS, Cell
from plait.cells.graph import Graph, Node, Refused, TracedOps, adjoints, in_order
from plait.cells.ops import floats, tensors
from plait.cells.saved import choose, reached_from, smallest_cut
from plait.cells.trace import CannotTrace, compiled, trace, why_untraceable
from plait.ladder.rungs import derivative_deviation
from some_cells import MGU, SOME, BackwardsMGU, Choosy, Decay, PeepholeLSTM


# --- what a cell is --------------------------------------------------------------------------------------------------
def make(**body) -> type[Cell]:
    def step(wx, rh, state, ops):
        return ops.tanh(wx[0] + rh[0])

    return type("Some", (Cell,), {"gates": ("a",), "states": ("h",), "step": step} | body)


def test_a_cell_needs_gates_states_and_step_alone() -> None:
    cell = make()
    assert (cell.name, cell.params, cell.saved, cell.mode, cell.optional) == ("some", (), None, None, ())
    assert make(step=staticmethod(cell.step)).advance([1.0], [2.0], [0.5], (), 1, floats) == (math.tanh(3.0),)
    assert [c.name for c in (PeepholeLSTM, MGU, *CELLS.values())] == ["peephole_lstm", "mgu", *CELLS]
    assert {c.mode for c in CELLS.values()} == {"RNN_TANH", "RNN_RELU", "LSTM", "GRU", None}
    assert type("Other", (CELLS["lstm"],), {}).mode is None  # torch would run its own step


@pytest.mark.parametrize("order", [(), ("params",), ("dt",), ("params", "dt")])
def test_a_step_is_given_what_it_asks_for(order: tuple[str, ...]) -> None:
    text = f"def step(wx, rh, state, {''.join(f'{name}, ' for name in order)}ops):\n    return state[0] * "
    text += " * ".join({"params": "params[0]", "dt": "dt"}[name] for name in order) or "1.0"
    scope: dict = {}
    exec(text, scope)
    cell = make(step=scope["step"], params=("p",) if "params" in order else ())
    expected = 5.0 * (3.0 if "params" in order else 1.0) * (2.0 if "dt" in order else 1.0)
    assert cell.advance([0.0], [0.0], [5.0], [3.0], 2, floats) == (expected,)
    given = [0.0, 0.0, 5.0, *([3.0] if "params" in order else [])]
    assert compiled(trace(cell, 2).step, floats)(*given)[0] == expected


def test_a_cell_without_dt_takes_the_same_step_at_any_length() -> None:
    assert trace(MGU, 4) is trace(MGU, 0.5)
    assert trace(Decay, 4).step != trace(Decay, 0.5).step


def lost(*_):
    return None


BAD = [
    ({"gates": ()}, "cell Some has no gates: name them, as in gates = ('f', 'n')."),
    ({"states": ()}, "cell Some has no states: name them, as in states = ('h',)."),
    ({"step": None}, "cell Some has no step: write one as step(wx, rh, state, [params,] [dt,] ops)."),
    ({"gates": "fn"}, "cell Some: gates is 'fn', expected a tuple of names such as ('fn',)."),
    ({"states": ["h"]}, "cell Some: states is ['h'], expected a tuple of names such as ('a',)."),
    ({"gates": ("a", "a")}, "cell Some: gates has 'a' twice: each needs a name of its own."),
    ({"gates": ("a b",)}, "cell Some: gates has 'a b', which is not a name: letters, digits and _ only."),
    ({"gates": (1,)}, "cell Some: gates has 1, which is not a name: letters, digits and _ only."),
    ({"states": ("if",)}, "cell Some: states has 'if', which is not a name: letters, digits and _ only."),
    ({"name": "my cell"}, "cell Some: name 'my cell' is not a name such as 'mgu': letters, digits and _ only."),
    (
        {"states": ("h", "tanh")},
        "cell Some: 'tanh' clashes with a function or number of the texts: choose another name.",
    ),
    ({"params": ("h",)}, "cell Some: 'h' clashes with 'h', which stands for one of its states: choose another name."),
    ({"states": ("h", "h_new")}, "clashes with 'h_new', which stands for one of its states"),
    ({"states": ("wx_a",)}, "cell Some: 'wx_a' clashes with 'wx_a', which stands for one of its W x + b"),
    ({"params": ("bias_ih",)}, "cell Some: 'bias_ih' clashes with a weight of every layer: choose another name."),
    ({"saved": ("h",)}, "cell Some: saved 'h' clashes with 'h', which stands for one of its states"),
    ({"params": ("p",)}, "cell Some has params p, but its step does not take them"),
    ({"step": lambda wx, rh, state, params, ops: 0}, "step takes params, but the cell has none"),
    (
        {"step": lambda self, wx, rh, state, ops: 0},
        "found step(self, wx, rh, state, ops), expected step(wx, rh, ",
    ),
    (
        {"step": lambda wx, rh, state, dt, params, ops: 0, "params": ("p",)},
        "found step(wx, rh, state, dt, params",
    ),
    ({"step": lambda wx, rh, state, *, ops: 0}, "the arguments in [] may be left out, the names stay."),
    ({"step": lost}, "found step(*_), expected step("),
]


@pytest.mark.parametrize(("body", "sentence"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_with_a_cell_is_said_when_it_is_made(body: dict, sentence: str) -> None:
    with pytest.raises(PlaitError, match=re.escape(sentence)) as e:
        make(**body)
    assert str(e.value).endswith(".")
    assert "\n" not in str(e.value)


def test_a_cell_is_not_instantiated() -> None:
    with pytest.raises(PlaitError, match=r"MGU\(\) makes an object of a cell: a cell is a class, leave out the \(\)\."):
        MGU()


RETURNS = [
    ({}, lambda h: (h, h), "step returns 2 new states, expected 1 (h): return one for each."),
    ({}, lambda h: (), "step returns 0 new states, expected 1 (h)"),
    ({}, lambda h: ((h,), (h,)), "step returns tuples within a tuple: return the new states alone, or declare"),
    ({"states": ("h", "c")}, lambda h: h, "step returns 1 new states, expected 2 (h, c)"),
    ({"saved": ("a",)}, lambda h: h, "step must return two tuples, the new states and what is saved"),
    ({"saved": ("a",)}, lambda h: (h, h), "step must return two tuples"),
    ({"saved": ("a",)}, lambda h: (h, (h, h)), "step saves 2 values, expected 1 (a): saved must name each."),
]


@pytest.mark.parametrize(("body", "result", "sentence"), RETURNS, ids=range(len(RETURNS)))
def test_a_step_that_returns_something_else_is_told(body: dict, result, sentence: str) -> None:
    def step(wx, rh, state, ops):
        return result(wx[0])

    cell = make(step=step, **body)
    for run in (lambda: trace(cell), lambda: cell.advance([0.5], [0.5], [0.5] * 2, (), 1, floats)):
        with pytest.raises(PlaitError, match=re.escape(sentence)) as e:
            run()
        assert not isinstance(e.value, CannotTrace)  # no engine could run it


@pytest.mark.parametrize("kind", [tuple, list])
def test_one_new_state_comes_alone_or_in_a_tuple(kind: type) -> None:
    cell = make(step=lambda wx, rh, state, ops: kind([wx[0] * 2.0]))
    assert cell.advance([0.5], [0.5], [0.5], (), 1, floats) == (1.0,)
    assert compiled(trace(cell).step, floats)(0.5, 0.5, 0.5)[0] == 1.0


def test_names_that_temporaries_have_do_no_harm() -> None:
    def step(wx, rh, state, params, ops):
        (h, m), (t2,) = state, params
        m = ops.tanh(wx[0] * rh[0] + t2 * m)
        return ops.sigmoid(m * h - wx[1]) * t2, m

    cell = make(gates=("t3", "a"), states=("t1", "m"), params=("t2",), step=step)
    assert derivative_deviation(cell, 1, torch.Generator().manual_seed(1)) < 1e-14


# --- what is kept ----------------------------------------------------------------------------------------------------
KEPT = {
    **{"rnn": (), "rnn_relu": (), "lstm": ("i", "f", "g", "o")},
    **{"gru": ("r", "z", "n", "rh_n"), "implicit_gru": ("r", "z", "n", "rh_n")},
    **{"mgu": ("f", "n", "rh_n"), "backwards_mgu": ("n", "f", "rh_n"), "peephole_lstm": ("i", "f", "g", "o")},
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("dt", [1, 2, 3, 8])
def test_what_is_kept(name: str, dt: int) -> None:
    cell = {cell.name: cell for cell in (*CELLS.values(), *SOME)}[name]
    assert trace(cell, dt).saved == KEPT[name]


def test_wx_and_rh_that_meet_in_their_sum_alone_are_shared() -> None:
    expected = {"lstm": (True,) * 4, "gru": (True, True, False), "mgu": (True, False), "backwards_mgu": (False, True)}
    for cell in (CELLS["lstm"], CELLS["gru"], MGU, BackwardsMGU):
        assert trace(cell).shared == expected[cell.name]


def test_who_reads_h() -> None:
    found = {cell.name: trace(cell).reads_h for cell in (*CELLS.values(), *SOME)}
    assert {name for name, reads in found.items() if not reads} == {"rnn", "rnn_relu", "lstm", "peephole_lstm"}


def test_a_choice_of_the_author_is_taken() -> None:
    def step(wx, rh, state, ops):
        h = ops.tanh(wx[0] + rh[0])
        return (h,), (1 - h * h, wx[0])

    cell = make(step=step, saved=("slope", "rest"))
    assert trace(cell).saved == ("slope", "rest")
    assert trace(cell).vjp.startswith("def some_vjp(slope, rest, h, h_new, d_h_new):")
    assert derivative_deviation(cell, 1, torch.Generator().manual_seed(1)) < 1e-14


def test_a_comparison_is_not_kept() -> None:
    """It would be enough for the derivative of relu, but it is not a number."""
    cell = make(step=lambda wx, rh, state, ops: state[0] + 2.0 * ops.relu(wx[0] + rh[0]))
    assert trace(cell).saved == ("a",)
    assert "<=" not in trace(cell).step


def test_what_is_saved_may_have_the_name_of_an_input_that_it_is_not() -> None:
    def step(wx, rh, state, ops):
        twice = 2.0 * wx[0]
        return (twice + rh[0],), (twice,)

    assert compiled(trace(make(step=step, saved=("rh_a",))).step, floats)(1.0, 5.0, 0.0) == (7.0, 2.0)


def test_a_function_is_kept_where_there_is_room() -> None:
    """One number would do, the sum; but there are two columns, and a tanh costs more than a column."""

    def step(wx, rh, state, ops):
        s = sum(wx) + sum(rh)
        return state[0] + ops.tanh(s) * ops.sigmoid(s)

    for gates, kept, again in ((("a",), 1, 2), (("a", "b"), 2, 0)):
        cell = make(gates=gates, step=step)
        assert len(trace(cell).saved) == kept
        assert len(re.findall(r"tanh\(|sigmoid\(", trace(cell).vjp)) == again
        assert derivative_deviation(cell, 1, torch.Generator().manual_seed(1)) < 1e-14


def test_the_function_that_saves_most_is_kept_first() -> None:
    """Two columns for three functions: softplus costs more than tanh, and exp is the new state, which is there."""

    def step(wx, rh, state, ops):
        s = sum(wx) + sum(rh)
        return ops.exp(ops.tanh(s) * ops.softplus(s)) * state[0]

    cell = make(gates=("a", "b"), step=step)
    assert "softplus(" not in trace(cell).vjp
    assert derivative_deviation(cell, 1, torch.Generator().manual_seed(1)) < 1e-14


def build(graph: Graph, recipe: list[tuple[str, int, int]]) -> tuple[list[Node], list[Node], list[Node]]:
    """A random step -> its inputs wx, rh; old states; new states"""
    given = [graph.input(f"{kind}_{g}") for kind in ("wx", "rh") for g in "ab"]
    old = [graph.input("h"), graph.input("m")]
    values, ops = [*given, *old], TracedOps(graph)
    for op, j, k in recipe:
        x, y = values[j % len(values)], values[k % len(values)]
        made = {"add": lambda x=x, y=y: x + y, "mul": lambda x=x, y=y: x * y, "sub": lambda x=x, y=y: x - 2.0 * y}
        values.append(made[op]() if op in made else getattr(ops, op)(*((x, y) if op == "maximum" else (x,))))
    return given, old, values[-2:]


RECIPES = st.lists(
    st.tuples(
        st.sampled_from(["add", "mul", "sub", "tanh", "exp", "maximum", "abs"]), st.integers(0, 30), st.integers(0, 30)
    ),
    min_size=2,
    max_size=6,
)


def least(results: list[Node], given: list[Node], at_hand: set[Node], later: set[Node]) -> int:
    """The size of the smallest set that does, found by trying all of them."""
    candidates = [n for n in in_order(results, lambda n: n in at_hand) if n not in later and not n.is_condition]
    wanted = set(map(id, given))
    for count in range(len(given) + 1):
        for some in itertools.combinations(candidates, count):
            kept = set(some) | at_hand
            if not any(id(n) in wanted for n in in_order(results, lambda n, kept=kept: n in kept)):
                return count
    raise AssertionError("the inputs themselves would do")


@settings(max_examples=150)
@given(RECIPES)
def test_no_smaller_set_would_do(recipe: list[tuple[str, int, int]]) -> None:
    graph = Graph()
    given, old, new = build(graph, recipe)
    d_new = [graph.input("d_h_new"), graph.input("d_m_new")]
    adjoint, zero = adjoints(new, d_new), graph.node("const", 0.0)
    results, at_hand = [adjoint.get(n, zero) for n in (*given, *old)], {*old, *new, *d_new}
    later = reached_from(set(d_new), results)
    expected = least(results, given, at_hand, later)
    nodes = in_order(results, lambda n: n in at_hand)
    cut = smallest_cut(nodes, results, lambda n: n not in later and not n.is_condition)
    assert len(cut) == expected
    for columns in (0, 2, 9):
        kept = choose(results, at_hand, set(d_new), columns)
        assert len(kept) <= max(expected, columns)
        assert not later.intersection(kept)
        left = in_order(results, lambda n, kept=kept: n in at_hand or n in set(kept))
        assert not set(given).intersection(left), "something is computed again from what is gone"


# --- what cannot be traced -------------------------------------------------------------------------------------------
def untraceable(line: str, *, before: str = "a = wx[0] + rh[0]") -> type[Cell]:
    """A cell whose step has this line, at line 4 of its file."""
    text = f"import math\ndef step(wx, rh, state, ops):\n    {before}\n    {line}\n    return a\n"
    scope = {"np": np, "torch": torch}
    exec(compile(text, "/somewhere/mine.py", "exec"), scope)
    return make(step=scope["step"])


WHY = [
    ("a = a - a.mean()", "a value has no .mean: it is one number of one unit, so there are no sums over units."),
    ("a = a.clamp(0, 1)", "a value has no .clamp"),
    ("a = torch.tanh(a)", "torch's tanh does not know these values: use the functions of ops"),
    ("a = torch.ones(3) * a", "does not know these values"),
    ("a = np.tanh(a)", "numpy.tanh does not know these values: use the functions of ops"),
    ("a = a - np.mean(a)", "numpy.mean does not know these values"),
    ("a = np.asarray(a)", "NumPy wants an array where there is a value of one unit"),
    ("a = math.tanh(a)", "float() and the functions of math want a number that is not there yet"),
    ("a = float(a)", "float() and the functions of math want a number"),
    ("a = a if a > 0 else -a", "if, while, and, or, not ask for a value that is not there yet: use ops.where"),
    ("while a > 1: a = a / 2", "if, while, and, or, not ask for a value"),
    ("a = bool(a)", "if, while, and, or, not"),
    ("a = max(a, 0)", "if, while, and, or, not"),
    ("a = 0 < a < 1", "if, while, and, or, not"),
    ("a = ops.where(a == 0, a, 1)", "== and != compare values that are not there yet: use < <= > >="),
    ("a = a ** 0.5", "** 0.5: powers are whole numbers from 1; ops.sqrt, ops.exp and ops.log do the others"),
    ("a = 2 ** a", "a value cannot be an exponent: use ops.exp"),
    ("a = a % 2", "only + - * / and ** are known"),
    ("a = a @ a", "a step has no matrix products"),
    ("a = sum(a)", "a value is one number of one unit: it has no parts"),
    ("a = ops.mean(a)", "ops has no mean: it has sigmoid, tanh"),
    ("a = ops.maximum(a)", "ops.maximum has 1 arguments, expected 2"),
    ("a = (a > 0) * a", "a comparison is not a number: give it to ops.where"),
    ("a = ops.where(a, a, a)", "ops.where needs a comparison of values as its first argument, such as x > 0"),
    ("a = ops.where(True, a, a)", "ops.where needs a comparison of values"),
    ("a = a + '1'", "str is neither a number nor a value of the step"),
    ("a = wx[7]", "IndexError: tuple index out of range"),
]


@pytest.mark.parametrize(("line", "why"), WHY, ids=[line for line, _ in WHY])
def test_what_cannot_be_traced_names_the_line_and_the_reason(line: str, why: str, monkeypatch) -> None:
    monkeypatch.setattr("linecache.getline", lambda file, number: {4: f"    {line}\n"}.get(number, "another line"))
    cell = untraceable(line)
    with pytest.raises(CannotTrace) as e:
        trace(cell)
    assert str(e.value).startswith(f"cell some cannot be traced: mine.py, line 4, `{line}`: ")
    assert why in str(e.value)
    assert str(e.value).endswith(".")
    assert why_untraceable(cell) == str(e.value)


def helper(x):
    return x.mean()  # this line


def test_the_line_is_the_innermost_one_of_the_cells_own_file() -> None:
    cell = make(step=lambda wx, rh, state, ops: helper(wx[0]))
    number = inspect.getsourcelines(helper)[1] + 1
    with pytest.raises(CannotTrace, match=rf"test_trace\.py, line {number}, `return x\.mean\(\)  # this line`: "):
        trace(cell)


@pytest.mark.parametrize("result", [None, "h", 0.5, np.ones(3)])
def test_a_result_that_is_no_value_is_refused(result) -> None:
    with pytest.raises(CannotTrace, match=r"cannot be traced: test_trace\.py, line \d+, .*, which is not a value"):
        trace(make(step=lambda wx, rh, state, ops: result))
    with pytest.raises(CannotTrace, match="it returns a comparison, which is not a value"):
        trace(make(step=lambda wx, rh, state, ops: wx[0] < rh[0]))


def test_what_can_be_traced_has_no_reason() -> None:
    assert [why_untraceable(cell, 2) for cell in (*CELLS.values(), *SOME)] == [None] * (len(CELLS) + len(SOME))
    with pytest.raises(PlaitError, match=r"dt 0\.5: .* whole numbers"):
        why_untraceable(CELLS["lstm"], 0.5)


def test_numbers_of_numpy_are_numbers() -> None:
    half = np.float32(0.5)
    cell = make(step=lambda wx, rh, state, ops: half * wx[0] + rh[0] / np.float64(2) - np.int64(1))
    assert compiled(trace(cell).step, floats)(1.0, 3.0, 0.0)[0] == 1.0
    with pytest.raises(Refused, match="ndarray is neither a number"):
        np.ones(2) * Graph().input("x")


def test_numbers_that_meet_no_tensor_have_the_precision_of_the_layer() -> None:
    """torch.where(condition, 0.1, 0.7) is float32, whatever was compared."""

    def step(wx, rh, state, ops):
        return ops.where(wx[0] > ops.maximum(0.0, -1.0), 0.1, 0.7)

    cell, x = make(step=step), torch.tensor([-1.0, 1.0], dtype=torch.float64)
    for new in (cell.advance([x], [x], [x], (), 1, tensors)[0], compiled(trace(cell).step, tensors)(x, x, x)[0]):
        assert new.tolist() == [0.7, 0.1]
    assert cell.advance([x.bfloat16()], [x], [x], (), 1, tensors)[0].dtype == torch.bfloat16


def test_a_choice_between_numbers_has_no_derivative() -> None:
    cell = make(step=lambda wx, rh, state, ops: ops.where(wx[0] > 0.0, 0.1, 0.7) * (wx[0] + rh[0]))
    assert trace(cell).shared == (True,)


def test_infinity_and_nan_are_numbers_of_a_text() -> None:
    cell = make(step=lambda wx, rh, state, ops: ops.where(wx[0] < math.inf, wx[0] * -math.inf, math.nan))
    assert compiled(trace(cell).step, floats)(2.0, 0.0, 0.0)[0] == -math.inf


def test_choosy_uses_every_rule_that_the_others_do_not() -> None:
    text = trace(Choosy).step + trace(Decay).step
    assert all(f"{op}(" in text for op in ("exp", "log", "sqrt", "abs", "softplus", "maximum", "minimum", "where"))


class FixedPoint(Cell):
    """A loop that is written out: thousands of nodes, one behind another."""

    gates, states = ("a",), ("h",)

    def step(wx, rh, state, ops):
        v, a = state[0], wx[0] + rh[0]
        for _ in range(1000):
            v = 0.5 * v + 0.25 * (a - v)
        return v


def test_a_long_step_can_be_traced() -> None:
    step = compiled(trace(FixedPoint).step, floats)
    h, a = 2.0, 0.5
    for _ in range(1000):
        h = 0.5 * h + 0.25 * (a - h)
    assert step(0.25, 0.25, 2.0)[0] == h


@pytest.mark.parametrize(("limit", "expected"), [(1.0, 3.0), (2.0, 2.0)])
def test_a_choice_between_numbers_is_made_before_there_are_values(limit: float, expected: float) -> None:
    def step(wx, rh, state, ops):
        return ops.where(ops.sqrt(2.0) > limit, wx[0] + rh[0], rh[0])

    found = trace(make(step=step))
    assert "where" not in found.step
    assert compiled(found.step, floats)(1.0, 2.0, 7.0)[0] == expected
