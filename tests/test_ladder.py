"""`plait check` must notice a wrong sign anywhere in the rules that all derivatives come from."""

import dataclasses
import re

import pytest

from plait import engines
from plait.cells import trace as tracing
from plait.cells.base import FUNCTIONS
from plait.cells.graph import RULES, SIGNS
from plait.cli.diagnose import climb
from plait.cli.output import Output
from plait.ladder import rungs

# A rule's results, but for that of the condition of `where`, which has none.
FLIPS = [(op, k) for op in RULES for k in range(op == "where", 2 if op in SIGNS else FUNCTIONS[op])]


@pytest.fixture
def fresh_traces():
    tracing.trace.cache_clear()
    yield
    tracing.trace.cache_clear()


def test_the_ladder_holds(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
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

    def forgetful(self, cell, w):
        p = prepare(self, cell, w)
        return dataclasses.replace(p, weights=w._replace(b_hh=None))

    monkeypatch.setattr(NumpyEngine, "prepare", forgetful)
    assert climb(0, Output(None), None) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    assert failed
    assert all("engine numpy" in line for line in failed)
