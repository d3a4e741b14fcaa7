"""`plait bench bucketing`."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from plait import layers as plait_layers
from plait.bench.bucketing import measure as bucketing
from plait.bench.core.turns import Seconds
from plait.data import buckets
from plait.data.text import sentences


def test_schemes_take_turns_batch_by_batch(monkeypatch) -> None:
    """There and back, after a step each that does not count."""
    taken: list[str] = []
    common = {"model": None, "settings": SimpleNamespace(make_optimizer=lambda model: None)}
    every = {"a": SimpleNamespace(chosen=["a0", "a1"], **common), "b": SimpleNamespace(chosen=["b0"], **common)}
    monkeypatch.setattr(bucketing, "step", lambda scheme, optimizer, batch: taken.append(batch))
    found = bucketing.by_turns(every, 3)
    assert taken == ["a0", "b0", *("a0", "b0", "a1"), *("a1", "b0", "a0"), *("a0", "b0", "a1")]
    assert {name: len(seconds) for name, seconds in found.items()} == {"a": 3, "b": 3}


def test_bucketing_runs_on_the_engine_asked_for(rows_of, book: str, monkeypatch) -> None:
    made = []

    class Spied(bucketing.Text):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            made.append(self.model.rnn)

    monkeypatch.setattr(bucketing, "Text", Spied)
    monkeypatch.setattr(bucketing, "by_turns", lambda every, repeats: Seconds(dict.fromkeys(every, [1.0] * repeats)))
    sizes = ("--hidden", "3", "--embedding", "2", "--batch", "4", "--sentences", "4", "--repeats", "5")
    rows, _ = rows_of("bucketing", "--data", book, "--layers", "1,2", *sizes, "--engine", "numpy")
    took = {row["batches"]: row["s/epoch"] for row in rows}
    assert took["none"] == pytest.approx(134 / 4)  # a second for four sentences of 134
    assert [(type(rnn), rnn.num_layers, rnn.engine) for rnn in made] == [
        (plait_layers.LSTM, layers, "numpy") for layers in (1, 2)
    ]


def test_bench_bucketing(rows_of, book: str) -> None:
    sizes = ("--hidden", "6", "--embedding", "5", "--batch", "4", "--sentences", "12", "--repeats", "5")
    rows, out = rows_of("bucketing", "--data", book, "--layers", "2,1", *sizes, "--picture", "b.png")
    assert Path("b.png").read_bytes().startswith(b"\x89PNG")
    assert {row["layers"] for row in rows} == {1, 2}
    found = {row["batches"]: row for row in rows if row["layers"] == 2}
    assert next(iter(found)) == "none"
    assert found["none"]["faster"] == 1
    lengths = [len(words) for words in sentences(Path(book).read_text())][:134]  # without validation and test
    assert found["none"]["padding %"] == pytest.approx(100 * buckets.padding(lengths, buckets.none(lengths)))
    order = ["none", "optimal 5", "optimal 10", "ragged"]
    padding = [found[name]["padding %"] for name in order]
    assert padding == sorted(padding, reverse=True)
    assert padding[-1] == found["ragged, pool:50"]["padding %"] == 0
    ideal = 1 / (1 - padding[0] / 100)
    for row in found.values():
        assert row["ideal %"] == pytest.approx(100 * row["faster"] / ideal)
    deviation = re.search(r"differ by at most (\S+) \(relative\)", out)
    assert float(deviation[1]) < 1e-5
