"""The forecasting task: honest splits, two decoders, and a network that beats the season before."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from plait import PlaitError
from plait.cells import CELLS
from plait.data import series
from plait.tasks.forecast import Forecast, Forecaster, load_data
from plait.tasks.settings import ForecastSettings
from plait.training.loop import train


def trained(**options) -> Forecast:
    settings = ForecastSettings(**options)
    task = Forecast(settings, load_data(settings))
    train(task, settings)
    return task


@pytest.mark.parametrize(("seeds", "least"), [(1, 1), pytest.param(5, 4, marks=pytest.mark.slow)])
def test_airline_beats_the_season_before_for_four_of_five_seeds(seeds: int, least: int) -> None:
    wins = 0
    for seed in range(seeds):
        metrics = trained(seed=seed).evaluate()
        assert metrics["steps"] == 24
        assert metrics["from"] == "1959-01"
        wins += metrics["model"]["rmse"] < metrics["seasonal naive"]["rmse"]
    assert wins >= least


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("decoder", ["recursive", "seq2seq"])
def test_every_cell_with_both_decoders_learns(cell: str, decoder: str) -> None:
    settings = ForecastSettings(cell=cell, decoder=decoder, epochs=15, hidden=8, lr=0.01)
    task = Forecast(settings, load_data(settings))
    progress = train(task, settings).progress
    assert progress.history[-1]["loss"] < progress.history[0]["loss"]
    assert len(task.evaluate()["predicted"]) == 24


def test_nothing_of_the_test_part_reaches_training() -> None:
    """Other numbers in the last 24 months, the same scale and the same weights."""
    settings = ForecastSettings(epochs=3)
    tasks = []
    for factor in (1.0, 3.0):
        data = series.airline()
        values = data.values.copy()
        values[-24:] *= factor
        task = Forecast(settings, dataclasses.replace(data, values=values))
        train(task, settings)
        tasks.append(task)
    assert tasks[0].scale == tasks[1].scale
    for a, b in zip(*(t.model.state_dict().values() for t in tasks), strict=True):
        assert torch.equal(a, b)
    assert tasks[0].evaluate()["predicted"][:12] == tasks[1].evaluate()["predicted"][:12]
    assert tasks[0].evaluate()["predicted"][12:] != tasks[1].evaluate()["predicted"][12:]


def test_the_scale_does_not_see_validation_either() -> None:
    data, settings = series.airline(), ForecastSettings()
    values = data.values.copy()
    values[-36:] *= 3.0
    assert Forecast(settings, data).scale == Forecast(settings, dataclasses.replace(data, values=values)).scale


@pytest.mark.parametrize(("decoder", "span"), [("recursive", 12 + 1), ("seq2seq", 12 + 12)])
def test_windows_reach_the_last_value_before_validation_and_no_further(decoder: str, span: int) -> None:
    task = Forecast(ForecastSettings(decoder=decoder), series.airline())
    logs = np.log(series.airline().values)[: 144 - 24 - 12]
    changes = logs[12:] - logs[:-12]
    known = torch.from_numpy((changes - changes.mean()) / changes.std()).float()
    torch.testing.assert_close(task.windows, torch.stack([known[k : k + span] for k in range(len(known) - span + 1)]))


def test_the_baselines_know_what_comes_before_a_block_and_no_more() -> None:
    """Blocks of 15 and of 5 values, longer than a season and shorter."""
    task = Forecast(ForecastSettings(horizon=15, test=20), series.airline())
    values = series.airline().values
    logs = np.log(values)
    change = (logs[12:109] - logs[:97]).mean()  # of the training part
    naive, drift = [], []
    for start, steps in ((124, 15), (139, 5)):
        last, grown = list(values[:start]), list(logs[:start])
        for _ in range(steps):
            last.append(last[-12])
            grown.append(grown[-12] + change)
        naive += last[start:]
        drift += list(np.exp(grown[start:]))
    found = task.evaluate()
    assert found["naive"] == naive
    assert found["seasonal naive"] == pytest.approx(series.errors(np.array(naive), values[124:]))
    assert found["seasonal naive + drift"] == pytest.approx(series.errors(np.array(drift), values[124:]))


@pytest.mark.parametrize("decoder", ["recursive", "seq2seq"])
def test_recursive_and_seq2seq_forecast_any_number_of_steps(decoder: str) -> None:
    task = trained(decoder=decoder, epochs=2, horizon=5)
    values = task.data.values
    long = task.ahead(values, 13)
    assert long.shape == (13,)
    np.testing.assert_allclose(task.ahead(values, 4), long[:4], rtol=1e-6)


def test_recursive_forecast_is_one_step_fed_back() -> None:
    task = trained(epochs=2)
    with torch.no_grad():
        x = task.validation_inputs[:1]
        ahead = task.model.forecast(x, 4)[0]
        for k in range(4):
            y, _ = task.model.next_of_each(x)
            torch.testing.assert_close(ahead[k], y[0, -1])
            x = torch.cat([x, y[:, -1:]], 1)


@torch.no_grad()
def test_a_decoder_is_given_the_last_value_and_its_second_block_follows_the_first() -> None:
    model = Forecaster(ForecastSettings(decoder="seq2seq", window=6, horizon=4, hidden=5))
    nn.init.normal_(model.head.weight)
    x = torch.randn(3, 6)
    _, state = model.encoder(x.unsqueeze(2))
    steps = []
    for _ in range(4):
        h, state = model.decoder(x[:, 5].view(3, 1, 1), state)
        steps.append(model.head(h).view(3))
    first = model.horizon_after(x)
    torch.testing.assert_close(first, torch.stack(steps, 1))
    second = model.horizon_after(torch.cat([x[:, 4:], first], 1))  # of the last six
    torch.testing.assert_close(model.forecast(x, 7), torch.cat([first, second[:, :3]], 1))


def test_validation_looks_no_further_than_the_validation_part() -> None:
    settings = ForecastSettings()
    task = Forecast(settings, load_data(settings))
    known = ~task.validation_targets.isnan()
    assert known.sum(1).tolist() == [12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert task.test_from - task.validation_from == 12
    changes = torch.from_numpy(task.scale.apply(task.data.values)).float()[: 144 - 24 - 12]  # up to the test
    for k in range(12):
        assert torch.equal(task.validation_inputs[k], changes[84 + k : 96 + k])
        assert torch.equal(task.validation_targets[k][known[k]], changes[96 + k :])


def test_negative_values_are_learned_without_logarithms() -> None:
    settings = ForecastSettings(data="x.csv", epochs=2, horizon=2, window=4)
    values = np.sin(np.arange(40.0))
    task = Forecast(settings, series.Series("x", values, [""] * 40))
    assert not task.scale.log
    train(task, settings)
    assert np.isfinite(task.ahead(values, 3)).all()
    with pytest.raises(PlaitError, match="has values that are not positive: use --scale linear"):
        Forecast(dataclasses.replace(settings, scale="log"), series.Series("x", values, [""] * 40))


def test_logarithms_are_taken_of_positive_values_unless_they_are_not_wanted() -> None:
    for scale, log in (("auto", True), ("log", True), ("linear", False)):
        assert Forecast(ForecastSettings(scale=scale), series.airline()).scale.log is log


def test_the_shortest_series_that_will_do() -> None:
    settings = ForecastSettings(data="x", window=4, horizon=3, season=2, validation=1, test=2, epochs=1)
    values = np.arange(1.0, 13)  # 2 + 4 + 3 to train, 1 to validate, 2 to test
    train(Forecast(settings, series.Series("x", values, [""] * 12)), settings)
    with pytest.raises(PlaitError, match=r"x has 11 values, too few: .* need at least 12; choose smaller"):
        Forecast(settings, series.Series("x", values[1:], [""] * 11))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hidden": 0}, "hidden 0: must be at least 1"),
        ({"layers": -1}, "layers -1: must be at least 1"),
        ({"window": 0}, "window 0: must be at least 1"),
        ({"horizon": -3}, "horizon -3: must be at least 1"),
        ({"season": 0}, "season 0: must be at least 1"),
        ({"epochs": 0}, "epochs 0: must be at least 1"),
        ({"batch": "0"}, "batch '0': must be a whole number of at least 1, or 'full'"),
        ({"batch": "many"}, "batch 'many': must be"),
        ({"lr": 0.0}, "lr 0.0: must be at least 1e-12"),
        ({"momentum": float("inf"), "optimizer": "sgd"}, "momentum inf: must be at most 1"),
        ({"hidden": 32.5}, "hidden 32.5: expected int"),
        ({"batch": 32}, "batch 32: expected str"),
        ({"seed": 2**63}, "seed 9223372036854775808: must be at least 0 and below"),
        ({"lr": float("nan")}, "lr nan: must be from 1e-12 to 1000000.0"),
        ({"clip": -1.0}, "clip -1.0: must be at least 0"),
        ({"seed": -1}, "seed -1: must be at least 0"),
        ({"dropout": 1.0, "layers": 2}, "dropout 1.0: must be at least 0 and below 1"),
        ({"dropout": 0.1}, "dropout 0.1 acts between layers"),
        ({"cell": "lsmt"}, "cell 'lsmt' is not known: did you mean 'lstm'"),
        ({"engine": "trch"}, "engine 'trch' is not known: did you mean 'torch'"),
        ({"decoder": "seq"}, "decoder 'seq' is not known: did you mean 'seq2seq'"),
        ({"optimizer": "adm"}, "optimizer 'adm' is not known: did you mean 'adam'"),
        ({"schedule": "cos"}, "schedule 'cos' is not known: did you mean 'cosine'"),
        ({"scale": "lin"}, "scale 'lin' is not known"),
        ({"momentum": 0.9}, "momentum 0.9 goes with sgd, not with adam"),
    ],
)
def test_settings_that_make_no_sense_get_a_sentence(options: dict, sentence: str) -> None:
    with pytest.raises(PlaitError, match=sentence):
        ForecastSettings(**options)


def test_an_error_in_percent_is_printed_in_few_digits() -> None:
    task = Forecast(settings := ForecastSettings(), load_data(settings))
    metrics = task.evaluate()
    for mape, printed in ((10.518, "10.52 %"), (123456.0, "123456.00 %"), (1.5e100, "1.50e+100 %"), (None, "-")):
        metrics["model"]["mape"] = mape
        assert task.table(metrics).rows[0][-1] == printed
