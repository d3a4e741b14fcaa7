"""What work costs here: measured once, stored with the compiled code, kept by a run."""

import json
from pathlib import Path

import pytest

from plait.cells import get
from plait.errors import PlaitError
from plait.kernels import costs
from plait.kernels.choices import Packs
from plait.kernels.costs import BUILT_IN, Costs
from plait.kernels.layer import Layer
from plait.kernels.schedule import DEFAULT
from plait.kernels.target import Form
from plait.layout import Layout

FORM = Form(get("rnn"), 1, DEFAULT.target(False))


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As in a new process, with an empty cache."""
    costs.compiler.leaves(FORM)
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


def layer(found: Costs, lasting: bool = False) -> Layer:
    return Layer(DEFAULT, found, Layout(4, 4), None, FORM, 1, 8, 8, 8, True, [False], Packs(lasting))  # type: ignore[arg-type]


def test_the_faster_one_computes_a_product() -> None:
    slow, quick = BUILT_IN._replace(mm=1e6), BUILT_IN._replace(mm=1e15, thin=1e15)
    assert layer(slow).ours(1000, 512, 512, 1)
    assert not layer(quick).ours(1000, 512, 512, 1)
    assert layer(quick).ours(4, 8, 8, 1)  # a call would take longer
    assert layer(quick, lasting=True).ours(100, 512, 512, 1)
