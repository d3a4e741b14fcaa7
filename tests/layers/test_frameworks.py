"""Inside the tools that PyTorch users train with."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import plait


class Net(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.rnn, self.head = layer, nn.Linear(6, 1)

    def forward(self, x):
        y, _ = self.rnn(x)
        return self.head(y[:, -1])


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(24, 5, 2, generator=torch.Generator().manual_seed(1))
    return x, x.sum((1, 2)).unsqueeze(1)


def fit_with_lightning(net: nn.Module, folder: Path) -> nn.Module:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch, _):
            return nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.01)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=8)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_epochs=3, gradient_clip_val=1.0, default_root_dir=folder, **quiet)
    trainer.fit(Module(), loader)
    return net


def fit_with_skorch(net: nn.Module, folder: Path) -> nn.Module:
    from skorch import NeuralNetRegressor

    options = {"max_epochs": 3, "lr": 0.01, "optimizer": torch.optim.Adam, "train_split": None, "verbose": 0}
    model = NeuralNetRegressor(net, batch_size=8, **options)
    model.fit(*(t.numpy() for t in data()))
    model.save_params(f_params=folder / "net.pt")
    model.load_params(f_params=folder / "net.pt")
    assert np.isfinite(model.predict(data()[0].numpy())).all()
    return model.module_


@pytest.mark.parametrize("fit", [fit_with_lightning, fit_with_skorch])
@pytest.mark.parametrize("engine", ["auto", "numpy"])
def test_training_ends_where_it_ends_with_torchs_layer(fit, engine: str, tmp_path: Path) -> None:
    ends = []
    for swap in (False, True):
        torch.manual_seed(3)
        net = Net(nn.GRU(2, 6, batch_first=True))
        if swap:
            plait.accelerate(net, engine=engine)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = fit(net, tmp_path)
        assert isinstance(fitted.rnn, plait.GRU) == swap
        ends.append(nn.utils.parameters_to_vector(fitted.parameters()).detach())
    start = torch.manual_seed(3) and nn.utils.parameters_to_vector(Net(nn.GRU(2, 6, batch_first=True)).parameters())
    assert (ends[0] - start).abs().max() > 1e-2  # it did learn
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-5)
