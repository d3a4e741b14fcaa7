"""`plait bench ragged`."""

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence

from plait import layers as plait_layers
from plait.bench.core import steps
from plait.bench.core.turns import Seconds
from plait.bench.ragged import measure as ragged


def test_bench_ragged(rows_of, book: str) -> None:
    rows, out = rows_of("ragged", "--data", book, "--hidden", "8", "--batch", "6", "--draws", "2", "--repeats", "5")
    assert [(row["draw"], row["cell"]) for row in rows] == [(k, cell) for k in (0, 1) for cell in ("lstm", "gru")]
    for row in rows:
        assert 0 < row["real %"] < 100
        assert row["low"] <= row["faster"] <= row["high"]
        assert row["deviation"] < 1e-5
        assert row["of dense"] > 0 < row["rows, of dense"]
    assert "Outputs and gradients differ from torch's by at most" in out


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_ways_to_run_a_draw_are_whose_they_say(cell: str) -> None:
    draw = ragged.Draw(cell, torch.tensor([2, 5, 1]), 4)
    theirs, ours = (draw.steps[name].layer for name in ("packed", "plait"))
    assert type(theirs) is steps.TORCH[cell]
    assert isinstance(ours, plait_layers.Recurrent)
    assert ours.engine == "fused"
    called = []
    for name, layer in (("torch", theirs), ("plait", ours)):
        layer.register_forward_hook(
            lambda _, args, out, name=name: called.append((name, type(args[0]), out[0].data.shape))
        )
    for run in draw.steps.values():
        run()
    padded, rows, dense = (5, 3, 4), (8, 4), (3, 3, 4)  # 8 steps of 3 sentences: about 3 each
    assert called == [
        ("torch", torch.Tensor, padded),
        ("torch", PackedSequence, rows),
        ("plait", torch.Tensor, padded),
        ("plait", PackedSequence, rows),
        ("plait", torch.Tensor, dense),
    ]


@pytest.mark.parametrize(("padded", "packed"), [(4.0, 2.0), (2.0, 3.0)])
def test_a_draw_is_compared_with_the_better_of_torchs_two(monkeypatch, padded: float, packed: float) -> None:
    seconds = {"padded": padded, "packed": packed, "plait": 1.0, "rows": 0.5, "dense": 0.25}
    monkeypatch.setattr(
        ragged, "take_turns", lambda _, n: Seconds({name: [took] * n for name, took in seconds.items()})
    )
    row = ragged.compare(ragged.Draw("gru", torch.tensor([2, 5, 1]), 4), 5)
    assert (row["low"], row["faster"], row["high"]) == (2.0, 2.0, 2.0)
    assert row["real %"] == pytest.approx(100 * 8 / 15)
    assert row["of dense"] == pytest.approx(4 * 9 / 8)  # four times as long for 8 steps as for 9
    assert row["rows, of dense"] == pytest.approx(2 * 9 / 8)
