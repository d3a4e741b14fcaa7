"""`plait bench memory`: what a layer keeps, with and without checkpoint=."""

from pathlib import Path

import pytest

from plait import PlaitError, bench

SMALL = {"batch": 2, "inputs": 3, "hidden": 8}


def test_both_ways_are_measured_for_each_length(empty_folder: Path) -> None:
    report = bench.measure("memory", steps="16,64", checkpoint="8", picture="memory.png", **SMALL)
    assert [row["T"] for row in report.rows] == [16, 64]
    for row in report.rows:
        boundaries = row["T"] // 8
        assert row["checkpoint MB"] * (1 << 20) == boundaries * 2 * 2 * 8 * 4  # h and c of 2 sequences
        assert row["of plain"] == pytest.approx(row["checkpoint MB"] / row["plain MB"])
        assert row["same outputs"] == "yes"
        assert row["gradients off"] < 1e-6
        assert row["low"] <= row["times as long"] <= row["high"]
        for columns in report.tables:
            assert row.keys() >= set(columns)
    assert Path("memory.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"steps": "16,none"}, "expected whole numbers from 1"),
        ({"steps": "0"}, "expected whole numbers from 1"),
        ({"checkpoint": "0"}, "checkpoint=0: expected None, 'auto'"),
        ({"checkpoint": "some"}, "checkpoint='some': expected None, 'auto'"),
        ({"cell": "gpu"}, "cell"),
        ({"hidden": 0}, "hidden"),
    ],
)
def test_bad_options(options, why) -> None:
    with pytest.raises(PlaitError, match=why):
        bench.measure("memory", **SMALL | options)
