"""`plait bench ladder`: every rung takes the same steps, and the tables say what was measured, not how fast it was."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from plait import engines
from plait.bench.core import blas
from plait.bench.core.report import Report
from plait.bench.cuda.versions import versions
from plait.bench.ladder import measure as ladder
from plait.bench.ladder import problem as ladder_problem
from plait.bench.ladder.measure import alone, angle, angles, compare, exponent, goals
from plait.bench.ladder.problem import problem
from plait.bench.ladder.rungs import RUNGS, Autograd, QuadraticEngine, Rung
from plait.bench.questions import LadderOptions
from plait.cells import CELLS
from plait.data.series import airline
from plait.engines import Layout, Needs, Weights
from plait.engines.python import BackThroughTime, PythonEngine
from plait.errors import PlaitError
from plait.ladder.rungs import engine_deviation


def test_the_problem_is_a_year_and_the_month_after_it() -> None:
    found = problem(LadderOptions(hidden=4))
    values = np.log(airline().values)
    values = (values - values.mean()) / values.std()
    assert found.windows.shape == (128, 13)  # 4 mini-batches of 32, the latest windows
    np.testing.assert_allclose(found.windows[-1], values[-13:], rtol=1e-6)
    np.testing.assert_allclose(found.windows[:, -1], values[-128:], rtol=1e-6)
    batches = found.batches()
    assert len(batches) == 20
    assert all(x.shape == (12, 32, 1) and y.shape == (32, 1) for x, y in batches)
    for epoch in range(5):  # each sees every sample once, in an order of its own
        seen = np.concatenate([y for _, y in batches[4 * epoch : 4 * epoch + 4]]).flatten()
        np.testing.assert_array_equal(np.sort(seen), np.sort(found.windows[:, -1]))
    assert not np.array_equal(batches[0][1], batches[4][1])
    assert all(np.array_equal(x, again) for (x, _), (again, _) in zip(batches, found.batches(), strict=True))


def test_more_data_is_like_the_first_and_not_the_same() -> None:
    small = problem(LadderOptions(hidden=4), 1)
    large = small.grown(3, 96)
    assert large.windows.shape == (384, 13)
    assert large.windows.dtype == np.float32
    assert len(large.batches()) == 4
    np.testing.assert_array_equal(large.windows[:128], small.windows)
    for copy in (1, 2):
        off = large.windows[128 * copy : 128 * (copy + 1)] - small.windows
        assert 0.01 < off.std() < 0.03
    assert not np.array_equal(large.windows[128:256], large.windows[256:])


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_rung_takes_the_steps_of_torch(rung: Rung) -> None:
    """Two steps, from the same weights, in torch's own layer in float64."""
    asked = replace(problem(LadderOptions(hidden=3), 1), batch=4)
    asked = replace(asked, windows=asked.windows[:8, :6])
    made, reference = rung.make(asked.network()), Autograd(asked.network())
    reference.layer.double()
    reference.head.double()
    for x, y in asked.batches():
        made.step(*made.batch(x, y))
        reference.step(*(t.double() for t in reference.batch(x, y)))
    found, expected = made.weights(), reference.weights()
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
        assert not np.allclose(value, asked.weights[name], atol=1e-5)


# --- the textbook's backpropagation ----------------------------------------------------------------------------------
@pytest.mark.parametrize("cell", CELLS.values(), ids=list(CELLS))
def test_textbook_backpropagation_equals_the_step_iterated(cell, monkeypatch) -> None:
    monkeypatch.setitem(engines.ENGINES, "textbook", ("plait.bench.ladder.rungs", "QuadraticEngine"))
    generator = torch.Generator().manual_seed(3)
    assert max(engine_deviation(cell, "textbook", dt, generator) for dt in (1, 2, 5)) < 1e-12


@pytest.mark.parametrize(
    ("engine", "steps_of"), [(PythonEngine(), lambda T: T), (QuadraticEngine(), lambda T: T * (T + 1) // 2 + T)]
)
def test_backpropagation_is_linear_in_time_and_the_textbooks_quadratic(engine, steps_of, monkeypatch) -> None:
    """Counts the steps walked back: T of them, or T + (T-1) + ... + 1 and T more for the last state's gradient."""
    counts = {}
    for T in (4, 8):
        taken = 0
        back = BackThroughTime.back

        def counted(self, steps, *rest, back=back):
            nonlocal taken
            taken += len(steps)
            back(self, steps, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(BackThroughTime, "back", counted)
            cell = CELLS["gru"]
            w = Weights(torch.randn(6, 1), torch.randn(6, 2), None, None, None)
            x, layout = torch.randn(T, 1), Layout(T, 1)
            ps = [engine.prepare(cell, w)]
            rows, _, kept = engine.forward(ps, x, [torch.zeros(1, 1, 2)], layout)
            engine.backward(ps, x, kept, torch.ones_like(rows), [None], layout, needs=Needs.all(ps))
        counts[T] = taken
    assert counts == {T: steps_of(T) for T in (4, 8)}


def test_another_loss_in_the_end_is_an_error() -> None:
    compare({"python": 0.5, "fused": 0.500049})
    with pytest.raises(PlaitError, match=r"rung 'fused': the loss after training is 0\.50006, .* 0\.5: expected"):
        compare({"python": 0.5, "fused": 0.50006})
    with pytest.raises(PlaitError, match="rung 'torch'"):
        compare({"python": 0.5, "torch": math.nan})


def test_a_rung_that_learns_something_else_stops_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    too_fast = Rung("too fast", lambda net: Autograd(replace(net, rate=0.101)))
    monkeypatch.setattr(ladder, "RUNGS", (*RUNGS[1:], too_fast))
    monkeypatch.setattr(ladder_problem, "WINDOW", 3)
    with pytest.raises(PlaitError, match="rung 'too fast'"):
        ladder.measure(LadderOptions(parts="rungs", hidden=2, quick=True, repeats=5))


def test_goals_are_the_papers() -> None:
    assert goals(0.5) == "-"
    assert goals(1.1) == "faster"
    assert goals(7.6) == "faster, x5"
    assert goals(50.0, slower_growth=True) == "faster, x5, x10, growth"


def test_exponents_and_angles() -> None:
    assert exponent([1, 2, 4, 8], [3.0 * n**0.7 for n in (1, 2, 4, 8)]) == pytest.approx(0.7)
    a, b = torch.tensor([1.0, 0.0]).double(), torch.tensor([1.0, 1.0]).double()
    assert angle(a, 3 * b) == pytest.approx(45)
    assert angle(a, -a) == pytest.approx(180)
    assert angle(a, 7 * a) == pytest.approx(0)
    whole = problem(LadderOptions(hidden=4), 1)
    learner = Autograd(whole.network(), "fused")
    rough, better, good = (angles(learner, replace(whole, batch=batch)) for batch in (1, 32, 128))
    assert (len(rough), len(better), len(good)) == (128, 4, 1)
    assert np.mean(rough) > np.mean(better) > good[0]
    assert good[0] < 1e-2


def test_threads_of_numpys_products() -> None:
    found = blas.openblas()
    with blas.threads(1) as told:
        assert told == (found is not None)
        if found:
            assert found[0]() == 1


@pytest.fixture(scope="module")
def report() -> Report:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder_problem, "WINDOW", 3)
        patch.setattr(ladder, "BLOCK", 0.0)
        patch.setattr(ladder, "REST", 0.0)
        patch.setattr(ladder, "SHORT_BLOCK", 0.0)
        yield ladder.measure(LadderOptions(hidden=2, quick=True, repeats=5))
    torch.set_num_threads(before)


def test_every_rung_has_the_same_loss_and_its_place(report: Report) -> None:
    rows = [row for row in report.rows if "rung" in row]
    assert len(rows) == len(RUNGS)
    assert len({f"{row['loss']:.4g}" for row in rows}) == 1
    python = next(row for row in rows if row["rung"] == "python")
    assert python["vs python"] == 1
    for row in rows:
        assert row["low"] <= row["s"] <= row["high"]
        assert row["vs python"] == pytest.approx(python["s"] / row["s"])
        assert (row["epoch"], row["mini-batch"], row["sample"], row["transfers"]) == ("CPU", "CPU", "CPU", "-")
        assert row["runs"] == (1 if row["rung"].startswith("python") else 5)
    assert {row["rung"] for row in rows if row["threads placed"] == "yes"} == {"fused", "fused, by hand"}


def test_numpy_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "BLOCK", 0.0)
    asked = problem(LadderOptions(hidden=2), 1)
    rows = alone(asked, asked.batches()[:1], 5)
    names = [row["NumPy on one thread"] for row in rows]
    assert names == [
        "NumPy, one sample",
        "NumPy, gates joined",
        "numpy engine",
        "NumPy expert",
        "fused",
        "fused, by hand",
    ]
    assert rows[-2]["fused"] == rows[-1]["by hand"] == 1


def test_growth_and_descent_have_their_rows(report: Report) -> None:
    grown = [row for row in report.rows if "exponent" in row]
    assert {(row["trained by"], row["batch"]) for row in grown} == {
        (name, kind) for name in ("fused", "NumPy expert", "torch") for kind in ("fixed", "growing")
    }
    assert all(row["16x ms"] > 0 for row in grown)
    ways = [row for row in report.rows if "descent" in row]
    assert {row["descent"]: (row["batch"], row["steps"], len(row["by epoch"])) for row in ways} == {
        "stochastic": (1, 1280, 10),
        "mini-batch": (32, 40, 10),
        "full batch": (128, 10, 10),
    }


def test_what_is_missing_is_named(report: Report) -> None:
    able, missing = versions(simulators=False)
    assert {remark.split(" are ")[0].split(" is ")[0] for remark in missing} | {version.name for version in able} in (
        {"cuda v1, v2 and v3", "cuda v4"},
        {"cuda v1", "cuda v2", "cuda v3", "cuda v4"},
    )
    assert set(missing) <= set(report.remarks)


def test_from_the_command_line(plait) -> None:
    code, out, err = plait(
        *("bench", "ladder", "--quick", "--hidden", "2", "--parts", "descent", "--repeats", "5", "--threads", "1"),
        *("--json", "ladder.json", "--picture", "ladder.png"),
    )
    assert code == 0, err
    assert max(map(len, out.partition("descent")[2].split("\n\n")[0].splitlines())) <= 80
    assert len(json.loads(Path("ladder.json").read_text())["rows"]) == 3
    assert Path("ladder.png").read_bytes().startswith(b"\x89PNG")


def test_bad_options(refused) -> None:
    assert "--parts: section 'rung'" in refused("bench", "ladder", "--parts", "rung")
    assert "hidden 0" in refused("bench", "ladder", "--hidden", "0")
