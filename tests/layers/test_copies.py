"""Copies of a model keep plait's layers; its pickles load where there is no plait."""

import copy
import gc
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plait
from plait.layers.swappable import Swappable

TORCH_ONLY = """
import sys
sys.modules["plait"] = None  # an import of it fails
import torch
import copy
for file in sys.argv[1:]:
    model = copy.deepcopy(torch.load(file, weights_only=False))
    own = sorted(k for k in vars(model.rnn) if "plait" in k or k in ("engine", "solver"))
    print(type(model.rnn), own, model(torch.ones(1, 3, dtype=torch.long)).sum().item(), sep=";")
"""
MODULE = """
import torch
from torch import nn

class LanguageModel(nn.Module):
    '''As flair's: its state is the numbers, and the layers are built anew from them.'''
    def __init__(self, hidden_size=4):
        super().__init__()
        self.hidden_size = hidden_size
        self.encoder, self.rnn = nn.Embedding(9, 3), nn.LSTM(3, hidden_size)
    def forward(self, x):
        return self.rnn(self.encoder(x))[0]
    def __getstate__(self):
        return {"hidden_size": self.hidden_size, "state_dict": self.state_dict()}
    def __setstate__(self, d):
        self.__init__(d["hidden_size"])
        self.load_state_dict(d["state_dict"])

class Learner(nn.Module):
    '''As Lightning's: a state of its own, but with the layers in it.'''
    def __init__(self):
        super().__init__()
        self.trainer, self.encoder, self.rnn = object(), nn.Embedding(9, 3), Doubled(3, 4)
    def forward(self, x):
        return self.rnn(self.encoder(x))[0]
    def __getstate__(self):
        return {**self.__dict__, "trainer": None}

class Copying(Learner):
    def __deepcopy__(self, memo):
        other = type(self)()
        other.is_by_hand = True
        other.load_state_dict(self.state_dict())
        return other

class Inheriting(Copying):
    pass

class Doubled(nn.LSTM):
    def forward(self, x, hx=None):
        y, state = super().forward(x, hx)
        return 2 * y, state
"""


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of its own, that other processes can import."""
    (tmp_path / "clients_of_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    import clients_of_test

    yield clients_of_test
    del sys.modules["clients_of_test"]


def models(clients: Any) -> list[nn.Module]:
    return [clients.LanguageModel(), clients.Learner(), clients.Copying(), clients.Inheriting()]


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_a_deep_copy_keeps_plaits_layers_where_a_module_has_a_state_of_its_own(clients: Any, which: int) -> None:
    model, x = models(clients)[which], torch.ones(1, 3, dtype=torch.long)
    plait.accelerate(model, engine="numpy")
    for copied in (copy.deepcopy(model), copy.deepcopy(copy.deepcopy(model)), copy.deepcopy([model, model])[1]):
        assert isinstance(copied.rnn, plait.LSTM)
        assert copied.rnn.engine == "numpy"
        assert copied.rnn is not model.rnn
        assert torch.equal(copied(x), model(x))
        assert hasattr(copied, "is_by_hand") == (which > 1)
    first, inside = copy.deepcopy(model), copy.deepcopy(nn.Sequential(model))
    assert isinstance(inside[0].rnn, plait.LSTM)
    kind = type(plait.restore(model).rnn)
    assert not issubclass(kind, Swappable)
    assert type(copy.deepcopy(model).rnn) is kind
    assert isinstance(copy.deepcopy(first).rnn, plait.LSTM)


def test_a_model_that_was_built_inside_everywhere_is_copied_there_or_after_accelerate(clients: Any) -> None:
    with plait.everywhere():
        model = clients.LanguageModel()
        assert isinstance(copy.deepcopy(model).rnn, plait.LSTM)
    assert isinstance(model.rnn, plait.LSTM)
    assert type(copy.deepcopy(model).rnn) is nn.LSTM
    assert isinstance(copy.deepcopy(plait.accelerate(model)).rnn, plait.LSTM)


def test_the_class_of_a_model_is_as_before_when_all_are_restored(clients: Any) -> None:
    for cls in (clients.LanguageModel, clients.Copying, clients.Inheriting):
        before = dict(vars(cls))
        one, other, plain = cls(), cls(), cls()
        plait.accelerate(one)
        plait.accelerate(other)
        assert not isinstance(copy.deepcopy(plain).rnn, Swappable)
        plait.restore(one)
        assert isinstance(copy.deepcopy(other).rnn, Swappable)
        gc.collect()  # that copy
        plait.restore(other)
        assert dict(vars(cls)) == before


def test_pickles_load_where_there_is_no_plait(clients: Any, tmp_path: Path) -> None:
    made = [plait.accelerate(model, engine="numpy") for model in models(clients)]
    saved = [(tmp_path / f"{k}-{protocol}.pt", made[k], protocol) for k in range(3) for protocol in (2, 4, 5)]
    for file, model, protocol in saved:
        torch.save(model, file, pickle_protocol=protocol)
        assert isinstance(model.rnn, plait.LSTM)
    command = [sys.executable, "-c", TORCH_ONLY, *(file for file, *_ in saved)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for line, (_, model, _) in zip(lines, saved, strict=True):
        kind, own, total = line.split(";")
        assert "plait" not in kind
        assert own == "[]"
        assert float(total) == pytest.approx(model(torch.ones(1, 3, dtype=torch.long)).sum().item(), rel=1e-5)


def test_a_pickle_loads_as_torchs_layer_which_can_be_accelerated_again() -> None:
    layer, x = plait.accelerate(nn.LSTM(3, 4, 2, bidirectional=True), solver=plait.Shooting(2)), torch.randn(5, 2, 3)
    layer(x)
    other = pickle.loads(pickle.dumps(layer))
    assert type(other) is nn.LSTM
    assert vars(other).keys() == vars(nn.LSTM(3, 4)).keys()
    torch.testing.assert_close(other(x)[0], layer(x)[0], rtol=1e-4, atol=1e-5)
    assert type(plait.accelerate(other)) is plait.LSTM


def test_layers_made_as_plaits_stay_so_in_a_pickle() -> None:
    model = plait.accelerate(nn.Sequential(plait.GRU(3, 4), nn.GRU(4, 4), plait.ImplicitGRU(4, 4)))
    kinds = [type(layer) for layer in pickle.loads(pickle.dumps(model))]
    assert kinds == [plait.GRU, nn.GRU, plait.ImplicitGRU]
    kinds = [type(layer) for layer in pickle.loads(pickle.dumps(plait.accelerate(model, portable=False)))]
    assert kinds == [plait.GRU, plait.GRU, plait.ImplicitGRU]
