"""Inside programs that others wrote, where they are installed. test_everywhere.py and test_copies.py have stand-ins."""

import copy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import plait
from plait.layers.swappable import Swappable

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def layers_of(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.RNNBase)]


def assert_all_plaits(model: nn.Module, expected: bool = True) -> None:
    assert layers_of(model)
    assert {isinstance(layer, Swappable) for layer in layers_of(model)} == {expected}


@pytest.fixture(autouse=True)
def quiet(empty_folder: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def darts_model(kind: str) -> Any:
    from darts.models import BlockRNNModel, RNNModel

    quiet = {**QUIET, "accelerator": "cpu", "enable_checkpointing": False}
    options = {"hidden_dim": 8, "n_epochs": 2, "random_state": 1, "pl_trainer_kwargs": quiet, "model": kind}
    if kind == "GRU":
        return BlockRNNModel(input_chunk_length=8, output_chunk_length=4, **options)
    return RNNModel(input_chunk_length=8, training_length=12, **options)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_darts_builds_its_network_inside_fit(kind: str) -> None:
    pytest.importorskip("darts")
    from darts.utils.timeseries_generation import sine_timeseries

    series, forecasts = sine_timeseries(length=80, value_frequency=0.1).astype(np.float32), []
    with pytest.raises(TypeError, match=r"plait.accelerate was given a .*RNNModel.* its .model is still None"):
        plait.accelerate(darts_model(kind))
    for block in (False, True):
        model = darts_model(kind)
        if block:
            with plait.everywhere():
                model.fit(series)
        else:
            model.fit(series)
        assert_all_plaits(model.model, block)
        forecasts.append(model.predict(4).values())
    np.testing.assert_allclose(*forecasts, rtol=1e-3, atol=1e-4)
    model.save("model.pt")
    assert_all_plaits(type(model).load("model.pt").model, False)
    with plait.everywhere():
        assert_all_plaits(type(model).load("model.pt").model)


def test_gluonts_builds_its_network_inside_train() -> None:
    pytest.importorskip("gluonts")
    from gluonts.dataset.common import ListDataset
    from gluonts.torch import DeepAREstimator
    from gluonts.torch.model.predictor import PyTorchPredictor

    rows = [{"start": "2024-01-01", "target": np.sin(np.arange(60.0) + k)} for k in range(3)]
    data, ends = ListDataset(rows, freq="D"), []
    options = {"freq": "D", "prediction_length": 4, "context_length": 8, "hidden_size": 8, "batch_size": 4}
    for block in (False, True):
        torch.manual_seed(1)
        np.random.seed(1)
        estimator = DeepAREstimator(
            num_batches_per_epoch=3, trainer_kwargs={**QUIET, "max_epochs": 1, "accelerator": "cpu"}, **options
        )
        if block:
            with plait.everywhere():
                predictor = estimator.train(data)
        else:
            predictor = estimator.train(data)
        assert_all_plaits(predictor.prediction_net, block)
        assert len(list(predictor.predict(data))) == 3
        ends.append(nn.utils.parameters_to_vector(predictor.prediction_net.parameters()))
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)
    Path("saved").mkdir()
    predictor.serialize(Path("saved"))
    assert_all_plaits(PyTorchPredictor.deserialize(Path("saved"), device="cpu").prediction_net, False)
    with plait.everywhere():
        assert_all_plaits(PyTorchPredictor.deserialize(Path("saved"), device="cpu").prediction_net)


def test_flair_copies_its_language_model_through_its_state() -> None:
    pytest.importorskip("flair")
    from flair.data import Dictionary
    from flair.models import LanguageModel

    dictionary = Dictionary()
    for letter in "abc":
        dictionary.add_item(letter)
    model = plait.accelerate(LanguageModel(dictionary, True, 16, 1))
    assert_all_plaits(copy.deepcopy(model))
    model.save("model.pt")
    assert_all_plaits(LanguageModel.load_language_model("model.pt"), False)


LOAD = """
import sys
sys.modules["plait"] = None
from fastai.learner import load_learner
learner = load_learner(sys.argv[1])
print(type(learner.model[0]))
"""


def test_fastai_exports_what_loads_without_plait() -> None:
    pytest.importorskip("fastai")
    from fastai.data.core import Datasets
    from fastai.imports import noop
    from fastai.learner import Learner

    data = Datasets([*torch.randn(8, 5, 3)], [[noop], [noop]]).dataloaders(bs=4)
    model = plait.accelerate(nn.Sequential(nn.LSTM(3, 4)))
    Learner(data, model, loss_func=nn.MSELoss(), path=".").export("model.pkl")
    assert_all_plaits(model)
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", LOAD, "model.pkl"], capture_output=True, text=True)
    assert "torch.nn.modules.rnn.LSTM" in run.stdout, run.stderr
