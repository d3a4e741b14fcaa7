"""`plait bench language`."""

import pytest
import torch

from plait import layers as plait_layers
from plait.bench.core.turns import take_turns
from plait.bench.language import measure as language


def test_the_language_models_are_whose_they_say(rows_of, book: str, monkeypatch) -> None:
    raced = {}

    def spied(trainers, *args, **options):
        raced.update(trainers)
        return take_turns(trainers, *args, **options)

    monkeypatch.setattr(language, "take_turns", spied)
    sizes = ("--hidden", "3", "--batch", "2", "--steps", "3", "--count", "1", "--repeats", "5")
    rows_of("language", "--data", book, "--cell", "gru", *sizes)
    ours, swapped, script = raced.values()
    assert list(raced) == ["plait", "plait, but nn.GRU", "a torch script"]
    assert [type(trainer) for trainer in raced.values()] == [language.Trainer, language.Trainer, language.Script]
    assert [type(t.model.rnn) for t in raced.values()] == [plait_layers.GRU, torch.nn.GRU, torch.nn.GRU]
    assert ours.model.rnn.engine == "auto"
    assert ours.task.model is ours.model
    assert swapped.task.model is swapped.model
    assert len({id(t.model.rnn.weight_hh_l0) for t in (ours, swapped, script)}) == 3


def test_bench_language(rows_of, book: str) -> None:
    sizes = ("--hidden", "6", "--batch", "4", "--steps", "5", "--count", "2", "--repeats", "5")
    rows, _ = rows_of("language", "--data", book, "--cell", "gru", *sizes)
    assert [row["what"] for row in rows] == ["plait", "plait, but nn.GRU", "a torch script"]
    for row in rows:
        assert row["tokens/s"] == pytest.approx(4 * 5 / row["ms/step"] * 1e3)
        assert sum(value for key, value in row.items() if key.endswith(" %")) == pytest.approx(100)
