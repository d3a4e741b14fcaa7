"""`plait bench batch`."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from plait import layers as plait_layers
from plait.bench.batch import measure as batch
from plait.bench.core import steps
from plait.bench.core.turns import Seconds
from plait.bench.layers import measure as layers


@pytest.mark.parametrize(
    ("module", "args"),
    [
        (layers, ("layers", "--shapes", "2,3,4,5,1", "--cells", "gru")),
        (batch, ("batch", "--size", "4", "--cell", "gru")),
    ],
    ids=["layers", "batch"],
)
@pytest.mark.usefixtures("small")
def test_what_is_raced_runs_on_the_engine_asked_for(plait, monkeypatch, module, args: tuple[str, ...]) -> None:
    raced = []

    def race(pair: dict[str, steps.Step], repeats: int) -> Seconds:
        raced.append((type(pair["torch"].layer), type(pair["plait"].layer), pair["plait"].layer.engine))
        return Seconds({name: [1.0] * repeats for name in pair})

    monkeypatch.setattr(module, "take_turns", race)
    assert plait("bench", *args, "--engine", "torch:steps", "--repeats", "5", "--threads", "1")[0] == 0
    assert set(raced) == {(torch.nn.GRU, plait_layers.GRU, "torch:steps")}


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(batch, "BATCHES", (2, 5))
    monkeypatch.setattr(batch, "SIZES", {8: 3, 10: 2, 12: 2})


@pytest.mark.usefixtures("small")
def test_batch(plait) -> None:
    args = ("bench", "batch", "--size", "4", "--cell", "gru", "--repeats", "5", "--threads", "1")
    code, out, _ = plait(*args, "--json", "result.json")
    assert code == 0
    rows = json.loads(Path("result.json").read_text())["rows"]
    assert [row["batch"] for row in rows if "batch" in row] == [2, 5]
    sizes = {row["size"]: row for row in rows if "size" in row}
    assert [(n, row["T"]) for n, row in sizes.items()] == [(8, 3), (10, 2), (12, 2)]
    for row in rows:
        N = row["batch"] * batch.STEPS if "batch" in row else batch.BATCH * row["T"]
        n = row.get("size", 4)
        for name in ("torch", "plait"):
            assert math.isclose(row[f"{name} ms/1000"], row[f"{name} ms"] * 1000 / N)
            assert math.isclose(row[f"{name} GFLOP/s"] * row[f"{name} ms"] * 1e6, 2 * N * 3 * n * 5 * n)
        assert row["low"] <= row["faster"] <= row["high"]
    printed = [line for line in out.splitlines() if re.match(r"\d|batch|size", line)]
    assert len(printed) == 2 + 2 + 3  # two headers
    assert max(map(len, printed)) <= 80
