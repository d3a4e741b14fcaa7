"""`plait bench phases`, also of the fourth paper's network."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from plait.bench.core.steps import Case
from plait.bench.phases import rotate as phases_rotate
from plait.tasks.rotate import Rotator, squared_error
from plait.tasks.settings import RotateSettings


def test_phases(plait) -> None:
    args = ("bench", "phases", "--shapes", "2,3,4,5,1", "--cells", "lstm,gru", "--repeats", "5", "--threads", "1")
    result = json.loads(plait(*args, "--json", "-")[1])
    rows = result["rows"]
    (peak,) = {row["peak GFLOP/s"] for row in rows}
    assert result["remarks"][0].startswith(f"peak: {peak:.1f} GFLOP/s")
    for row in rows:
        assert (
            row["peak %"] is None
            if row["phase"] == "d_b"
            else row["peak %"] * peak / 100 == pytest.approx(row["GFLOP/s"])
        )
    names = ["Wx", "forward", "backward", "d_w", "d_x", "d_b", "sum", "step"]
    assert [(row["cell"], row["phase"]) for row in rows] == [(c, name) for c in ("lstm", "gru") for name in names]
    for group in (rows[:8], rows[8:]):
        by_phase = {row["phase"]: row for row in group}
        assert by_phase["d_b"]["GFLOP/s"] is None
        assert math.isclose(by_phase["sum"]["share %"], 100)
        assert 20 < sum(row["share %"] for row in group[:6]) < 200
        products = sum(row["GFLOP/s"] * row["ms"] * 1e6 for row in group[:5])
        assert math.isclose(products, Case(group[0]["cell"], 2, 3, 4, 5).work(input_gradient=True))


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_phases_of_the_fourth_paper(plait, cell: str) -> None:
    args = ("bench", "phases", "--task", "rotate", "--shapes", "3,4,6,5,1", "--cells", cell, "--repeats", "5")
    code, out, _ = plait(*args, "--threads", "1", "--json", "result.json")
    assert code == 0
    assert max(len(line) for line in out.splitlines()[2:]) <= 100
    rows = json.loads(Path("result.json").read_text())["rows"]
    phases = {row["phase"]: row for row in rows}
    assert [name.split()[0] for name in phases] == [*map(str, range(1, 11)), "sum", "step"]
    assert sum(row["paper %"] for row in rows[:10]) == pytest.approx(100.02)
    assert phases["step"]["paper %"] is None
    assert phases["sum"]["share %"] == 100
    assert phases["sum"]["peak %"] == pytest.approx(phases["sum"]["GFLOP/s"] / phases["sum"]["peak GFLOP/s"] * 100)
    assert phases["4 save"]["share %"] < min(row["share %"] for row in rows[:10] if row is not phases["4 save"])
    G = {"rnn": 1, "lstm": 4, "gru": 3}[cell]
    products = sum(row["GFLOP/s"] * row["ms"] * 1e6 for row in rows[:10] if row["GFLOP/s"] is not None)
    assert products == pytest.approx(2 * 12 * (2 * 6 * 5 * G + 3 * 5 * 5 * G + 3 * 6 * 5))
    assert float(re.search(r"gradients from autograd's: (\S+)", out)[1]) < 1e-5


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_the_work_of_the_fourth_papers_step_is_what_torch_counts(cell: str) -> None:
    model = Rotator(RotateSettings(cell=cell, hidden=5, engine="torch:steps"), 6)
    with FlopCounterMode(display=False) as counter:
        squared_error(model(torch.rand(4, 3, 6)), torch.rand(4, 3, 6)).backward()
    assert counter.get_total_flops() == sum(phases_rotate.work(Case(cell, 3, 4, 6, 5)).values())
