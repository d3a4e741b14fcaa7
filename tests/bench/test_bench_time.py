"""`plait bench time`: its networks, its predictions, and a small run. Its figures are looked at elsewhere."""

from pathlib import Path

import pytest
import torch

from plait.bench.core.pictures import drawn
from plait.bench.time import nets as time_nets
from plait.bench.time import ranks
from plait.bench.time.measure import TABLES
from plait.bench.time.pictures import PANELS
from plait.bench.time.ranks import TimeCosts, of_a_step

COSTS = TimeCosts(*[1e-6] * 3, 1e-5, 4e-6, 1e-6, 1e-6, 1e-9, 0.0, 4e-6, 4e-6)


def test_what_the_networks_learn() -> None:
    x, y = time_nets.recall(100, 2, 7, torch.Generator().manual_seed(0))
    assert torch.equal(y[7:], x[:-7, :, 0])
    assert not y[:7].any()
    x, y = time_nets.latch(400, 2, 20, torch.Generator().manual_seed(0))
    assert 10 < x[:, :, 1].sum() < 90
    for b in range(2):
        held = 0.0
        for t in range(400):
            held = float(x[t, b, 0]) if x[t, b, 1] else held
            assert float(y[t, b]) == held
    assert 0.5 < float(time_nets.inputs(4000, 4, torch.Generator().manual_seed(0))[:, :, 0].var()) < 1.5


def test_predictions() -> None:
    """More ranks take less time until messages outweigh it."""
    free = COSTS._replace(message=0.0, meet=0.0, call=0.0)
    alone = free.shooting(1, 8000, 0)
    assert alone == pytest.approx(8000 * (2e-6 + 1e-9))
    for count in (2, 4, 8):
        assert free.shooting(count, 8000, 0) == pytest.approx(8000 * (2e-6 / count + 1e-9))
    assert COSTS._replace(meet=1.0).shooting(8, 8000, 192) > 8 * alone
    assert COSTS.multigrid(4, 4096) < COSTS.multigrid(4, 4096, forward=4)


def test_predictions_wait_for_messages() -> None:
    """Of the states of the rank before it, of gaps, of gradients of the rank behind it, and of those of the weights."""
    late = COSTS._replace(message=1.0)
    for count, messages in ((1, 0), (2, 3), (3, 4), (64, 4)):
        assert round(late.shooting(count, 8000)) == messages
    for count, messages in ((1, 0), (2, 4), (64, 4)):  # after each iteration, and of those of the weights
        assert round(late.multigrid(count, 8000)) == messages


def test_what_a_step_takes_is_never_negative() -> None:
    """On a busy machine a walk there and back may be measured as shorter than the walk there."""
    seconds = {"forward 128": 1.0, "forward 640": 9.0, "both 128": 2.0, "both 640": 8.0, "sweep 128": 3.0}
    found = of_a_step({**seconds, "sweep 640": 3.0})
    assert found["forward"] == 8 / 512
    assert found["call"] == pytest.approx(3)
    assert all(value >= 0 for value in found.values())
    assert of_a_step({**seconds, "sweep 640": 3.0, "both 640": 15.0})["backward"] == pytest.approx(5 / 512)


def test_a_small_run(rows_of, monkeypatch) -> None:
    monkeypatch.setattr(ranks, "QUICK", (2048, 8))
    rows, out = rows_of("time", "--quick", "--parts", "where,ranks", "--repeats", "5", "--picture", "time.png")
    assert "predicted" in out
    meshes = {(row["series"], row["ranks"]): row for row in rows if "series" in row and row["how"] == "measured"}
    assert {("shooting", 2), ("multigrid", 2), ("one walk", 1), ("data=2, two sequences", 2)} <= meshes.keys()
    assert all(row["ms"] > 0 for row in meshes.values())
    assert Path("time.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_all_sections(rows_of) -> None:
    rows, _ = rows_of("time", "--quick", "--repeats", "5", "--picture", "time.png")
    for keys in TABLES:
        assert any(row.keys() >= set(keys) for row in rows), keys
    for row in rows:
        if "off" in row:
            assert row["off"] < 0.01


def test_pictures_have_a_panel_for_what_is_there() -> None:
    rows = [{"series": "shooting", "ranks": n, "speed-up": n / 2, "how": "predicted"} for n in (2, 4)]
    assert drawn(rows, PANELS).startswith(b"\x89PNG")
    assert len(PANELS) == 6


def test_a_section_that_is_not_there(refused) -> None:
    said = refused("bench", "time", "--parts", "lenght")
    assert "--parts: section 'lenght' is not known: did you mean 'length'?" in said
