"""The report on clients, with one that is made here: what is right passes, what is not is named."""

import json
import os
import sys
from pathlib import Path

import pytest
import race
import run

CLIENT = """
import torch
from program import Program
from torch import nn


def build(case, accelerate):
    model = nn.Sequential(nn.LSTM(3, 5))
    if case != "plain":
        accelerate(model)
    if case == "wrong":
        with torch.no_grad():
            model[0].weight_hh_l0 += 0.01 * ("plait" in type(model[0]).__module__)
    x = torch.randn(4, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        loss = model(x)[0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(model, train, torch.no_grad()(lambda: model(x)[0]))
"""


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Measures these cases -> what is found, and what is printed."""
    (tmp_path / "with_plait.py").write_text(CLIENT)
    environment = tmp_path / "plait"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (environment / "bin" / "python").chmod(0o755)
    (environment / "installed").touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(race, "STEPS", 3)
    options = ["--environments", tmp_path, "--threads", "1", "--repeats", "5", "--seconds", "0"]
    monkeypatch.setattr(sys, "argv", ["run.py", *map(str, options), "--json", str(tmp_path / "found.json")])

    def measure(*cases: str) -> tuple[dict, str]:
        monkeypatch.setattr(run, "CLIENTS", {"plait": cases, "absent": ("LSTM",)})
        assert run.main() == 1
        return json.loads((tmp_path / "found.json").read_text()), capsys.readouterr().out

    return measure


def test_a_program_that_is_wrong(report) -> None:
    """Its processes are started a second time, for float64."""
    found, out = report("wrong")
    (row,) = found["rows"]
    assert (row["swapped"], row["layers"]) == (1, 1)
    assert all(1e-3 < row[dtype] < 0.1 for dtype in ("float32", "float64"))  # as wrong as it was made
    assert 0 < row["training"]["share"] <= 1
    assert len(row["training"]["seconds"]["plain"]) == 5
    (sentence,) = found["wrong"]
    assert sentence == f"plait, wrong: off by {row['float64']:.1e} in float64"
    assert "absent: not measured, for it could not be installed" in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_program_without_a_swapped_layer() -> None:
    case, row = race.Case("plait", "plain", Path("python")), {"swapped": 0, "layers": 2, "float32": 1e-7}
    assert run.problems(case, row) == ["plait, plain: none of 2 layers is swapped"]
    assert run.problems(case, row | {"swapped": 1}) == []
    assert run.problems(case, row | {"swapped": 1, "float32": 1e-3, "float64": 1e-12}) == []


@pytest.mark.slow
def test_a_report(report) -> None:
    found, out = report("right", "plain", "wrong")
    right, plain, _ = found["rows"]
    assert (right["swapped"], right["layers"], plain["swapped"]) == (1, 1, 0)
    assert right["float32"] < 1e-6
    assert 0 < right["training"]["share"] <= 1
    assert len(right["training"]["seconds"]["plain"]) == 5
    assert [sentence.split(": ")[0] for sentence in found["wrong"]] == ["plait, plain", "plait, wrong"]
    assert found["wrong"][0] == "plait, plain: none of 1 layers is swapped"
    assert "in float64" in found["wrong"][1]
    assert "absent: not measured, for it could not be installed" in out
    assert max(map(len, out.splitlines())) <= 100


def test_what_a_share_allows() -> None:
    assert race.expected(0.0, 1.5) == 1
    assert race.expected(1.0, 2.5) == pytest.approx(2.5)
    assert race.expected(0.5, 1.5) == pytest.approx(1.2)
