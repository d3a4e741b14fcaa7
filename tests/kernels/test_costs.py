"""What work costs here: measured once, stored with the compiled code, kept by a run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plait.cells import get
from plait.errors import PlaitError
from plait.kernels.emit.target import Form, Target
from plait.kernels.launch import costs
from plait.kernels.launch.choices import Sized, ours_over_rows
from plait.kernels.launch.costs import BUILT_IN, Costs
from plait.kernels.launch.key import Key
from plait.kernels.launch.schedule import DEFAULT

FORM = Form(get("rnn"), 1, DEFAULT.target(False))


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As in a new process, with an empty cache."""
    costs.compiler.functions(FORM)
    monkeypatch.setattr(costs, "_used", None)
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_they_are_measured_once_and_make_sense(forgotten: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = costs.of_this_process(FORM)
    assert all(value > 0 for value in found)
    assert 1e8 < found.rate < 1e12
    assert found.team <= costs.MOST_OF_A_TEAM
    (file,) = forgotten.glob("*.json")
    assert json.loads(file.read_bytes()[:-32]) == found._asdict()  # then comes the digest
    monkeypatch.setattr(costs, "_used", None)
    monkeypatch.setattr(costs, "measured", lambda form: pytest.fail("measured again"))
    assert costs.of_this_process(FORM) == found


def test_a_damaged_file_is_measured_again(forgotten: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs.of_this_process(FORM)
    (file,) = forgotten.glob("*.json")
    file.write_bytes(b"{}")
    monkeypatch.setattr(costs, "_used", None)
    monkeypatch.setattr(costs, "measured", lambda form: Costs(rate=7e9))
    assert costs.of_this_process(FORM).rate == 7e9


def test_without_a_cache_they_are_built_in(forgotten: Path) -> None:
    forgotten.write_text("a file where the folder should be")
    assert costs.of_this_process(FORM) == BUILT_IN


def test_a_run_says_what_it_was_computed_with(forgotten: Path) -> None:
    mine = BUILT_IN._replace(rate=1.5e9)
    costs.use(json.loads(json.dumps(mine._asdict())))
    assert costs.of_this_process(FORM) == mine
    for wrong in ({}, {"rate": "fast"}, {**mine._asdict(), "rate": -1.0}, {**mine._asdict(), "more": 1}, 7):
        with pytest.raises(PlaitError, match="expected a number above 0 for each of rate, stream"):
            costs.use(wrong)
    assert costs.of_this_process(FORM) == mine


def layer(found: Costs, pinned: bool = False) -> Sized:
    key = Key(FORM.cell, torch.float32, False, 4, 4, 8, 8, 8, 1, (False,), True, False, False, 1, pinned=pinned)
    return Sized(key, 0, FORM, DEFAULT, found)


def test_the_faster_one_computes_a_product() -> None:
    slow, quick = BUILT_IN._replace(mm=1e6), BUILT_IN._replace(mm=1e15, thin=1e15)
    assert layer(slow).ours(1000, 512, 512, 1)
    assert not layer(quick).ours(1000, 512, 512, 1)
    assert layer(quick).ours(4, 8, 8, 1)  # a call would take longer
    assert layer(quick, pinned=True).ours(100, 512, 512, 1)


def test_a_small_tile_is_measured_by_its_work_not_by_its_call() -> None:
    """A tile of 6 x 16 with sums of 256 terms took as long as to call it: it seemed to have half its rate."""
    for lanes, rows in ((4, 6), (8, 6), (16, 14), (4, 12), (1, 1)):
        made = Target(double=False, lanes=lanes, rows=rows)
        work = rows * made.width * costs.terms(made)
        assert work > 0.9 * costs.WORK or costs.terms(made) == costs.LONG
        assert costs.terms(made) <= costs.LONG  # as many as there is memory for


def test_torch_is_slow_if_rows_of_the_result_are_odd() -> None:
    """And then the kernels compute what it would else."""
    even = layer(BUILT_IN._replace(rate=30e9, mm=30e9))
    assert not even.ours(2000, 512, 200, 1)
    assert even.ours(2000, 508, 200, 1)
    assert not even.ours(900, 508, 200, 1)  # few rows


def test_sums_over_rows_that_are_torchs() -> None:
    assert ours_over_rows(DEFAULT, 500, 400, 5000)
    assert not ours_over_rows(DEFAULT, 600, 400, 5000)
    assert ours_over_rows(DEFAULT, 600, 400, 900)
    assert ours_over_rows(DEFAULT, 604, 400, 5000)
    assert ours_over_rows(DEFAULT, 600, 404, 5000)
    assert ours_over_rows(replace(DEFAULT, torch_mm=False), 600, 400, 5000)
