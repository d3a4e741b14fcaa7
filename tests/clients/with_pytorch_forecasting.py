"""The Temporal Fusion Transformer and DeepAR, with the sizes of pytorch-forecasting's tutorials."""

import numpy as np
import pandas as pd
import torch
from program import Accelerate, Program, mapped
from pytorch_forecasting import DeepAR, TemporalFusionTransformer, TimeSeriesDataSet
from torch import Tensor, nn

B, LENGTH = 64, 120
TFT = {"hidden_size": 16, "attention_head_size": 2, "hidden_continuous_size": 8}
KNOWN = {  # steps before and after, and the model
    "TFT": (24, 6, TemporalFusionTransformer, TFT),
    "DeepAR": (60, 20, DeepAR, {"hidden_size": 30, "rnn_layers": 2}),
}


def sales(before: int, after: int) -> TimeSeriesDataSet:
    rng = np.random.default_rng(0)
    shops, days = (axis.ravel() for axis in np.meshgrid(range(20), range(LENGTH), indexing="ij"))
    price = rng.uniform(1, 2, shops.size)
    y = 10 + np.sin(days * 2 * np.pi / 7) - price + rng.normal(size=shops.size) / 5
    rows = {"shop": shops.astype(str), "day": days, "weekday": (days % 7).astype(str), "price": price, "sold": y}
    return TimeSeriesDataSet(
        pd.DataFrame(rows).astype({"price": np.float32, "sold": np.float32}),
        time_idx="day",
        target="sold",
        group_ids=["shop"],
        static_categoricals=["shop"],
        min_encoder_length=before // 2,
        max_encoder_length=before,
        max_prediction_length=after,
        time_varying_known_categoricals=["weekday"],
        time_varying_known_reals=["day", "price"],
        time_varying_unknown_reals=["sold"],
    )


def build(case: str, accelerate: Accelerate) -> Program:
    before, after, network, options = KNOWN[case]
    dataset = sales(before, after)
    model = network.from_dataset(dataset, dropout=0.1, **options)
    accelerate(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = next(iter(dataset.to_dataloader(train=True, batch_size=B)))
    x, y = mapped([x, y], lambda tensor: tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor)

    def train() -> float:
        model.train()
        loss = model.loss(model(x).prediction, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.item()

    @torch.no_grad()
    def infer() -> Tensor:
        model.eval()
        return model(x).prediction

    return Program(model, train, infer)
