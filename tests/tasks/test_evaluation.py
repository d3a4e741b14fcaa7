"""Many windows, sequences and images are evaluated together, in pieces that fit: the same as one after the other."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch

from plait.data import series
from plait.layers import pinned
from plait.tasks import memory
from plait.tasks.classify import Classify
from plait.tasks.forecast import Forecast, load_data
from plait.tasks.language import Language
from plait.tasks.pooled import predict
from plait.tasks.rotate import Rotate, squared_error
from plait.tasks.settings import ClassifySettings, ForecastSettings, LanguageSettings, RotateSettings
from plait.training.loop import train
from reference import data_file

MB = 2**20


@pytest.fixture(params=[memory.EVALUATED, 4000], ids=["at once", "in pieces"])
def bytes_at_once(request, monkeypatch) -> int:
    monkeypatch.setattr(memory, "EVALUATED", request.param)
    return request.param


def watched(monkeypatch, model: torch.nn.Module, name: str) -> list[int]:
    """The sizes of the batches that it is called with."""
    sizes, call = [], getattr(model, name)

    def watch(x: torch.Tensor, *args):
        sizes.append(x.shape[0])
        assert not torch.is_grad_enabled()
        return call(x, *args)

    monkeypatch.setattr(model, name, watch)
    return sizes


# --- forecasts -------------------------------------------------------------------------------------------------------
def airline(decoder: str, cell: str = "lstm", **options) -> Forecast:
    settings = ForecastSettings(decoder=decoder, cell=cell, hidden=8, horizon=5, epochs=3, lr=0.01, **options)
    task = Forecast(settings, load_data(settings))
    train(task, settings)
    return task


def one_window(task: Forecast, window: torch.Tensor, steps: int) -> torch.Tensor:
    """With a tape, and a recursive forecast reads all from the beginning again for every step."""
    model, w, x = task.model, task.settings.window, window.unsqueeze(0)
    while x.shape[1] < w + steps:
        if model.decoder is None:
            x = torch.cat([x, model.next_of_each(x)[0][:, -1:]], 1)
        else:
            x = torch.cat([x, model.horizon_after(x[:, -w:])], 1)
    return x[0, w : w + steps].detach()


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn", "implicit_gru"])
@pytest.mark.parametrize("decoder", ["recursive", "seq2seq"])
def test_forecasts_are_those_of_each_window_alone(monkeypatch, bytes_at_once: int, decoder: str, cell: str) -> None:
    task = airline(decoder, cell, layers=2, validation=15, test=24)
    sizes = watched(monkeypatch, task.model, "forecast")
    found = task.validate()
    alone = [
        one_window(task, w, t.shape[0]) for w, t in zip(task.validation_inputs, task.validation_targets, strict=True)
    ]
    errors = torch.stack(alone) - task.validation_targets
    assert found == pytest.approx(errors[~errors.isnan()].square().mean().item(), rel=1e-5)
    in_pieces = bytes_at_once < MB
    assert sizes == ([4, 4, 4, 3] if in_pieces else [15])  # 4000 bytes: 58 rows of 1 + 2 x 8 numbers, 12 a window
    sizes.clear()
    predicted = task.evaluate()["predicted"]  # blocks of 5, the last of 4
    assert sizes == ([4, 1] if in_pieces else [5])
    values, expected = task.data.values, []
    for start in range(120, 144, 5):
        steps = min(5, 144 - start)
        changes = torch.from_numpy(task.scale.apply(values[start - 24 : start])).float()
        expected += list(task.scale.extend(values[:start], one_window(task, changes, steps).double().numpy()))
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)


def test_forecasts_need_no_more_memory_for_more_windows(monkeypatch) -> None:
    """100,000 windows of 100 steps, 64 units: in one go, their outputs would be 5 GB."""
    values = np.exp(np.sin(np.arange(120_000) / 7))
    settings = ForecastSettings(data="x", window=100, hidden=64, horizon=2, season=1, validation=100_000, test=9)
    task = Forecast(settings, dataclasses.replace(series.airline(), values=values, labels=[""] * len(values)))
    assert task.validation_inputs.shape == (100_000, 100)
    assert task.validation_inputs.untyped_storage().nbytes() < MB
    sizes = []
    monkeypatch.setattr(task.model, "forecast", lambda x, steps: (sizes.append(len(x)), torch.zeros(len(x), steps))[1])
    task.validate()
    assert sum(sizes) == 100_000
    assert max(sizes) * 100 * (1 + 2 * 64) * 4 <= memory.EVALUATED
    assert max(sizes) > 100


@pytest.mark.parametrize("decoder", ["recursive", "seq2seq"])
def test_weights_are_packed_once_for_all_steps_and_pieces(monkeypatch, decoder: str) -> None:
    monkeypatch.setattr(memory, "EVALUATED", 4000)
    task, made, prepared = airline(decoder), [], pinned.Block.prepared

    def count(self, name, tensors, make):
        return prepared(self, name, tensors, lambda: (made.append(name), make())[1])

    monkeypatch.setattr(pinned.Block, "prepared", count)
    task.evaluate()
    assert len(made) == (1 if decoder == "recursive" else 2)  # layers


# --- sequences, sentences, images ------------------------------------------------------------------------------------
@pytest.mark.parametrize("pool", ["last", "mean"])
def test_sequences_are_judged_as_each_alone(monkeypatch, bytes_at_once: int, pool: str) -> None:
    """Spoken vowels, 7 to 29 steps of 12 numbers."""
    data = f"{data_file('uea-ts.zip')}/JapaneseVowels"
    task = Classify.read(ClassifySettings(data=data, hidden=8, layers=2, bidirectional=True, pool=pool, dropout=0.2))
    test = task.data.parts["test"]
    if bytes_at_once < MB:
        monkeypatch.setattr(memory, "EVALUATED", 100_000)
    sizes = watched(monkeypatch, task.model, "forward")
    found = predict(task.model, test)
    assert not found.requires_grad
    if bytes_at_once < MB:
        assert len(sizes) > 5
        assert all(n * (12 + 2 * 16) * 4 < 100_000 + 29 * (12 + 2 * 16) * 4 for n in sizes)  # one sequence more
    else:
        assert sizes == [len(test.rows)]
    monkeypatch.undo()
    alone = torch.cat([task.model(*test.batch(torch.tensor([k]))) for k in range(0, len(test), 10)])
    torch.testing.assert_close(found[::10], alone.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("by", ["streams", "sentences"])
def test_the_entropy_of_real_text_is_that_of_torch(by: str) -> None:
    """A small network on the validation part of Penn Treebank, with torch's own layers and cross_entropy."""
    s = LanguageSettings(data=str(data_file("ptb.zip")), hidden=8, layers=1, by=by, init=0.5)
    task = Language.read(s)
    part = task.corpus.parts["valid"]
    encoded = dataclasses.replace(part, ids=part.ids[: int(part.starts[201])], starts=part.starts[:202])
    task.corpus = dataclasses.replace(task.corpus, parts={**task.corpus.parts, "valid": encoded})
    model, rnn = task.model.eval(), torch.nn.LSTM(s.width, 8)
    rnn.load_state_dict(model.rnn.state_dict())
    tokens, targets = task.before["valid"][: len(encoded.ids)], encoded.ids.long()
    ends = [0, len(targets)] if by == "streams" else encoded.starts.tolist()
    total = 0.0
    with torch.no_grad():
        for start, end in pairwise(ends):
            y, _ = rnn(model.embedding(tokens[start:end]))
            logits = model.softmax.logits(y).double()
            total += torch.nn.functional.cross_entropy(logits, targets[start:end], reduction="sum").item()
    assert task.entropy("valid") == pytest.approx(total / len(targets), rel=1e-6)


def test_images_are_evaluated_in_pieces_that_fit(monkeypatch, bytes_at_once: int) -> None:
    task = Rotate.read(RotateSettings(hidden=8, steps=3))
    images = task.data.parts["test"]
    if bytes_at_once < MB:
        rows = 2 * task.data.pixels + 3 * task.features + 2 * 8
        monkeypatch.setattr(memory, "EVALUATED", 4 * rows * 3 * 5)  # five images of three steps
    sizes = [some.inputs.shape[1] for some in task.pieces("test")]
    assert sum(sizes) == len(images)
    assert max(sizes) == (5 if bytes_at_once < MB else min(len(images), 2**12 // 3))
    whole = task.some("test", slice(None))
    expected = squared_error(task.model(whole.inputs), whole.targets).item() / task.numbers
    assert task.error("test") == pytest.approx(expected, rel=1e-5)


def test_how_many_rows_fit(monkeypatch) -> None:
    monkeypatch.setattr(memory, "EVALUATED", 4000)
    assert memory.at_once(10) == 100
    assert memory.at_once(10, 7) == 7
    assert memory.at_once(10**9) == 1
    monkeypatch.undo()
    assert memory.at_once(1) == memory.TOGETHER
    assert memory.at_once(2 * 20_000) * 2 * 20_000 * 4 <= memory.EVALUATED
