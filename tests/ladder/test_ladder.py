"""`plait check` must notice a wrong sign anywhere in the rules that all derivatives come from."""

import re

import pytest
import torch

from plait import engines
from plait.cells import CELLS, Cell
from plait.cells import trace as tracing
from plait.cells.base import FUNCTIONS
from plait.cells.graph import RULES, SIGNS
from plait.cli.diagnose import climb
from plait.cli.output import Output
from plait.ladder import rungs
from plait.ladder.rungs import check_cell
from some_cells import MGU, SOME, BackwardsMGU, Decay, PeepholeLSTM

# A rule's results, but for that of the condition of `where`, which has none.
FLIPS = [(op, k) for op in RULES for k in range(op == "where", 2 if op in SIGNS else FUNCTIONS[op])]


@pytest.fixture
def fresh_traces():
    tracing.trace.cache_clear()
    yield
    tracing.trace.cache_clear()


def test_the_ladder_holds(capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rungs, "LENGTHS_OF_STEP", (1, 3))  # other tests compile kernels for these, too
    assert climb(0, Output(None), None) == 0
    printed = capsys.readouterr().out
    assert "FAILED" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert re.fullmatch(r"(\d+) of \1 hold", printed.splitlines()[-1])


@pytest.mark.usefixtures("fresh_traces")
@pytest.mark.parametrize(("op", "argument"), FLIPS, ids=[f"{op}-{k}" for op, k in FLIPS])
def test_a_flipped_sign_breaks_it(op: str, argument: int, monkeypatch, capsys) -> None:
    rule = RULES[op]

    def flipped(node, d):
        return tuple(-v if k == argument else v for k, v in enumerate(rule(node, d)))

    monkeypatch.setitem(RULES, op, flipped)
    monkeypatch.setattr(engines, "names", lambda: ["python"])  # the rules come before all engines, and all cells
    monkeypatch.setattr(rungs, "CELLS", {})
    assert climb(0, Output(None), None) == 1
    printed = capsys.readouterr().out
    assert any(f"rule '{op}'" in line and "FAILED" in line for line in printed.splitlines())


@pytest.mark.usefixtures("fresh_traces")
def test_a_wrong_recurrence_breaks_it(monkeypatch, capsys) -> None:
    """Not only derivatives: an engine that forgets its recurrent bias is found, and named."""
    from plait.engines.numpy import NumpyEngine

    prepare = NumpyEngine.prepare

    def forgetful(self, cell, w, reverse=False, **options):
        return prepare(self, cell, w._replace(b_hh=w.b_hh if w.b_hh is None else 0 * w.b_hh), reverse, **options)

    monkeypatch.setattr(NumpyEngine, "prepare", forgetful)
    monkeypatch.setattr(engines, "names", lambda: ["python", "torch:steps", "numpy"])
    assert climb(0, Output(None), None) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    assert failed
    assert all("engine numpy" in line for line in failed)


# --- one cell --------------------------------------------------------------------------------------------------------
@pytest.fixture
def few_engines(monkeypatch) -> None:
    """Those that need not be compiled."""
    monkeypatch.setattr(engines, "names", lambda: ["torch:steps", "numpy"])


@pytest.mark.usefixtures("few_engines")
@pytest.mark.parametrize("cell", [MGU, BackwardsMGU, Decay], ids=lambda cell: cell.name)
def test_a_cell_of_a_user_is_checked(cell) -> None:
    state = torch.get_rng_state()
    found = check_cell(cell)
    assert torch.equal(torch.get_rng_state(), state)  # the user's random numbers go on as they would
    assert [rung.holds for rung in found] == [True] * 7
    lines = repr(found).splitlines()
    assert [line.split("  ")[1] for line in lines] == [
        f"derivative of {cell.name} = autograd",
        f"engine torch:steps, {cell.name} = step iterated",
        f"engine numpy, {cell.name} = step iterated",
        f"layer of {cell.name}, torch:steps, float64 = python",
        f"layer of {cell.name}, torch:steps, float32 = python",
        f"layer of {cell.name}, numpy, float64 = python",
        f"layer of {cell.name}, numpy, float32 = python",
    ]
    assert all(line.endswith("ok") for line in lines)


@pytest.mark.usefixtures("few_engines")
def test_a_layer_of_a_users_cell_that_is_wrong_is_found(monkeypatch) -> None:
    """An engine whose gradient of the vectors is only that of the last direction's."""
    from plait.engines.numpy import NumpyEngine

    gradients = NumpyEngine.weight_gradients

    def forgetful(self, p, *rest):
        found = gradients(self, p, *rest)
        return found if p.reverse else [*found[:-1], 0 * found[-1]]

    monkeypatch.setattr(NumpyEngine, "weight_gradients", forgetful)
    failed = [rung.what for rung in check_cell(PeepholeLSTM) if not rung.holds]
    assert failed == [
        "engine numpy, peephole_lstm = step iterated",
        "layer of peephole_lstm, numpy, float64 = python",
        "layer of peephole_lstm, numpy, float32 = python",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("cell", SOME, ids=lambda cell: cell.name)
def test_every_engine_runs_a_cell_of_a_user(cell) -> None:
    found = check_cell(cell)
    assert len(found) == 1 + len(engines.of_the_host()) + 2 * (len(engines.of_the_host()) - 1) + 1  # in bfloat16
    assert all(rung.holds for rung in found)


@pytest.mark.usefixtures("few_engines", "fresh_traces")
def test_a_cell_whose_derivative_is_wrong_fails(monkeypatch) -> None:
    rule = RULES["softplus"]
    monkeypatch.setitem(RULES, "softplus", lambda n, d: tuple(0.5 * v for v in rule(n, d)))
    found = check_cell(Decay)
    assert [rung.holds for rung in found] == [False] * 3 + [True] * 4  # all engines have the same derivative
    assert "FAILED" in repr(found)
    assert all(rung.holds for rung in check_cell(MGU))


@pytest.mark.usefixtures("few_engines")
def test_a_cell_that_is_broken_says_so_and_one_that_cannot_be_traced_says_where() -> None:
    class Broken(Cell):
        gates, states = ("a",), ("h", "c")

        def step(wx, rh, state, ops):
            return ops.tanh(wx[0] + rh[0])

    class Mean(Cell):
        gates, states = ("a",), ("h",)

        def step(wx, rh, state, ops):
            a = wx[0] + rh[0]
            return a - a.mean()

    (first,) = check_cell(Broken)
    assert first.holds is False
    assert "FAILED, cell Broken: step returns 1 new states, expected 2 (h, c)" in str(first)
    (first,) = check_cell(Mean)
    assert first.holds is None
    assert re.search(
        r"skipped, cell mean cannot be traced: test_ladder\.py, line \d+, `return a - a\.mean\(\)`", str(first)
    )
    for other in (MGU.step, "mgu", CELLS, Cell):
        (only,) = check_cell(other)
        assert not only.holds
        assert "is not a cell: expected a class" in str(only)
