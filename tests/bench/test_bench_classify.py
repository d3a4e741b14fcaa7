"""`plait bench classify`."""

import numpy as np
import pytest
import torch

from plait.bench.classify import measure as classify
from plait.tasks.classify import read_all
from plait.tasks.dataset import Dataset
from plait.tasks.pooled import predict
from plait.tasks.settings import ClassifySettings


@pytest.mark.parametrize("lengths", [[6] * 24, [2, 6, 4] * 8])
def test_bench_classify(rows_of, lengths: list[int]) -> None:
    """The script's network is that of the task: with its weights it gives the same logits, dense and ragged."""
    rng = np.random.default_rng(0)
    np.savez("x.npz", x=rng.normal(size=(24, 6, 3)), y=np.arange(24) % 2, lengths=lengths)
    sizes = ("--hidden", "4", "--layers", "2", "--batch", "8", "--repeats", "5")
    rows, _ = rows_of("classify", "--data", "x.npz", *sizes)
    assert [row["what"] for row in rows] == [
        *("plait, implicit_gru", "plait, gru", "plait, lstm"),
        "a torch script, nn.GRU",
    ]
    assert rows[-1]["faster"] == 1
    assert all(row["low"] <= row["faster"] <= row["high"] for row in rows)

    s = ClassifySettings(data="x.npz", hidden=4, layers=2, dropout=0.0)
    data = Dataset.of(read_all(s), validation=0.2, test=0.2, missing="error", seed=0)
    ours, script = classify.Classify(s, data).model, classify.Script(s, data)
    script.rnn.load_state_dict(ours.rnn.state_dict())
    script.head.load_state_dict(ours.head.state_dict())
    x, found, labels = script.parts["train"]
    expected = predict(ours, data.parts["train"])
    assert len(labels) == len(expected)
    torch.testing.assert_close(script.logits(x, found), expected, rtol=1e-5, atol=1e-6)
    before = [p.clone() for p in script.model.parameters()]
    script()
    assert not any(torch.equal(a, b) for a, b in zip(before, script.model.parameters(), strict=True))
