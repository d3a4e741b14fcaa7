"""Forecasters of 32 series, with the sizes that neuralforecast gives them."""

import numpy as np
import pandas as pd
import torch
from neuralforecast.models import GRU, LSTM, DeepAR
from neuralforecast.tsdataset import TimeSeriesDataset, TimeSeriesLoader
from program import Accelerate, Program
from torch import Tensor

MODELS = {"LSTM": LSTM, "GRU": GRU, "DeepAR": DeepAR}
SMALLER = {"DeepAR": {"windows_batch_size": 128, "trajectory_samples": 20}}
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
SERIES, LENGTH, HORIZON = 32, 240, 12


def series() -> TimeSeriesDataset:
    noise = np.random.default_rng(0).normal(size=(SERIES, LENGTH))
    y = 10 + np.sin(np.arange(LENGTH) * 2 * np.pi / 12) + noise.cumsum(axis=1) / 10
    days = pd.date_range("2020-01-01", periods=LENGTH)
    rows = pd.DataFrame({"unique_id": np.repeat(np.arange(SERIES), LENGTH), "ds": np.tile(days, SERIES)})
    dataset, *_ = TimeSeriesDataset.from_df(rows.assign(y=y.ravel()))
    dataset.temporal = dataset.temporal.to(torch.get_default_dtype())
    return dataset


def build(case: str, accelerate: Accelerate) -> Program:
    model = MODELS[case](h=HORIZON, input_size=4 * HORIZON, scaler_type="standard", **QUIET, **SMALLER.get(case, {}))
    accelerate(model)
    dataset = series()
    (batch,) = TimeSeriesLoader(dataset, batch_size=SERIES)
    model.predict(dataset)  # sets what its steps need
    model.trainer = None
    optimizer = model.configure_optimizers()["optimizer"]

    def train() -> float:
        model.train()
        loss = model.training_step(batch, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    @torch.no_grad()
    def infer() -> Tensor:
        model.eval()
        torch.manual_seed(1)  # DeepAR samples
        return model.predict_step(batch, 0)

    return Program(model, train, infer)
