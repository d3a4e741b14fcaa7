"""Layers that do not exist yet, in frameworks that build, copy and load their networks."""

import copy
import io
import multiprocessing
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import GRU as EARLY_GRU
from torch.nn import LSTM as EARLY_LSTM

import plait
from plait import cells
from plait.errors import PlaitWarning
from plait.layers.swappable import Swappable
from plait.layers.twins import TWINS
from subclasses import Doubled, OwnLoop

CLASSES = (nn.Module, nn.RNNBase, nn.RNN, nn.LSTM, nn.GRU, nn.RNNCellBase, nn.LSTMCell, nn.GRUCell, nn.RNNCell)


class Late(nn.LSTM):
    """Sets an attribute that plait's layers have, after torch's constructor."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.solver = "adam"


class LateState(nn.GRU):
    def __setstate__(self, d) -> None:
        super().__setstate__(d)
        self.solver = "adam"


class Mixin:
    """Not derived from torch's classes, and before them."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.engine = "diesel"


class Mixed(Mixin, nn.GRUCell):
    pass


class Deeper(Late):
    """No constructor of its own."""


class Estimator:
    """As darts and gluonts have it: the network is built inside fit, and copied for predictions."""

    def __init__(self, layer: type) -> None:
        self.layer, self.model = layer, None

    def fit(self, x):
        self.model = nn.ModuleDict({"rnn": self.layer(3, 4), "head": nn.Linear(4, 1)})
        optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            self.model["head"](self.model["rnn"](x)[0]).square().mean().backward()
            optimizer.step()
        self.predictor = copy.deepcopy(self.model)
        return self

    def save(self) -> io.BytesIO:
        file = io.BytesIO()
        torch.save(self.model, file)
        file.seek(0)
        return file


def attributes() -> list[dict[str, Any]]:
    return [dict(vars(cls)) for cls in (*CLASSES, Doubled, Late, LateState, Mixin, Mixed, Deeper)]


@pytest.fixture(autouse=True)
def no_trace():
    before = attributes()
    yield
    assert attributes() == before


@pytest.mark.parametrize(("early", "ours"), [(EARLY_LSTM, plait.LSTM), (EARLY_GRU, plait.GRU), (nn.RNN, plait.RNN)])
def test_a_name_that_was_taken_earlier(early: type, ours: type) -> None:
    with plait.everywhere():
        layer = early(3, 4, num_layers=2, batch_first=True)
    assert type(layer) is ours
    assert type(early(3, 4)) is early
    assert layer.num_layers == 2
    x = torch.randn(5, 2, 3)
    expected = plait.restore(copy.deepcopy(layer))(x)[0]
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-5, atol=1e-6)


def test_subclasses_follow_the_rule_of_accelerate() -> None:
    with plait.everywhere():
        reaching, own = Doubled(3, 4), OwnLoop(3, 4)
    assert isinstance(reaching, plait.LSTM)
    assert isinstance(reaching, Doubled)
    assert reaching.factor == 2
    assert type(own) is OwnLoop
    assert type(plait.restore(reaching)) is Doubled


@pytest.mark.parametrize(("cls", "name"), [(Late, "solver"), (Deeper, "solver"), (Mixed, "engine")])
def test_an_attribute_that_a_constructor_sets_late_is_not_taken(cls: type, name: str) -> None:
    with pytest.warns(PlaitWarning, match=f"an attribute '{name}'"):
        plait.accelerate(cls(3, 4))
    with plait.everywhere():
        layer = cls(3, 4)
        copied = copy.deepcopy(layer)
    assert type(layer) is type(copied) is cls
    assert getattr(layer, name) in ("adam", "diesel")
    layer(torch.randn(5, 3))


def test_an_attribute_that_a_state_sets_late_is_not_taken() -> None:
    with plait.everywhere():
        made = LateState(3, 4)
        copied = copy.deepcopy(plait.restore(copy.deepcopy(made)))
    assert isinstance(made, plait.GRU)
    assert type(copied) is LateState
    copied(torch.randn(5, 3))


def test_classes_that_are_derived_inside() -> None:
    with plait.everywhere():

        class Inside(nn.GRU):
            def __init__(self, late: bool) -> None:
                super().__init__(3, 4)
                if late:
                    self.engine = "diesel"

        found = Inside(False), Inside(True)
    assert isinstance(found[0], plait.GRU)
    assert type(found[1]) is Inside
    assert type(Inside(False)) is Inside
    assert "_plait_own" not in vars(Inside.__init__)


@pytest.mark.parametrize("layer", [nn.LSTM, Doubled])
def test_a_network_that_is_built_inside_fit(layer: type) -> None:
    x, ends = torch.randn(5, 2, 3), []
    for block in (False, True):
        torch.manual_seed(3)
        estimator = Estimator(layer)
        if block:
            with plait.everywhere():
                estimator.fit(x)
        else:
            estimator.fit(x)
        assert isinstance(estimator.model["rnn"], plait.LSTM) == block
        assert isinstance(estimator.predictor["rnn"], plait.LSTM) == block
        ends.append(nn.utils.parameters_to_vector(estimator.model.parameters()))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layer", [nn.LSTM, Doubled])
def test_what_is_loaded_or_copied_inside_is_plaits(layer: type) -> None:
    plain = Estimator(layer).fit(torch.randn(5, 2, 3))
    file = plain.save()
    with plait.everywhere():
        loaded = torch.load(file, weights_only=False)
        copied = copy.deepcopy(plain.model)
    for model in (loaded, copied):
        assert isinstance(model["rnn"], plait.LSTM)
        assert torch.equal(model["rnn"].weight_ih_l0, plain.model["rnn"].weight_ih_l0)
    assert type(plain.model["rnn"]) is layer


@pytest.mark.parametrize("layer", [nn.LSTM, Doubled])
def test_pickles_keep_plaits_classes_inside_and_torchs_outside(layer: type) -> None:
    with plait.everywhere():
        model = nn.Sequential(layer(3, 4))
        inside = pickle.dumps(model)
    outside = pickle.dumps(model)
    assert b"plait" in inside
    assert isinstance(pickle.loads(inside)[0], plait.LSTM)
    assert b"plait" not in outside
    assert type(pickle.loads(outside)[0]) is layer


def test_blocks_nest_and_the_switch_outlives_them() -> None:
    with plait.everywhere():
        with plait.everywhere():
            pass
        assert type(nn.GRU(3, 4)) is plait.GRU
        plait.everywhere(False)  # the block is still open
        assert type(nn.GRU(3, 4)) is plait.GRU
    assert type(nn.GRU(3, 4)) is nn.GRU
    plait.everywhere(True)
    try:
        plait.everywhere(True)
        with plait.everywhere():
            pass
        assert type(nn.GRU(3, 4)) is plait.GRU
    finally:
        plait.everywhere(False)
    assert type(nn.GRU(3, 4)) is nn.GRU


def test_an_error_ends_the_block() -> None:
    with pytest.raises(ValueError, match="hidden_size"), plait.everywhere():
        nn.LSTM(3, 0)
    assert type(nn.LSTM(3, 4)) is nn.LSTM


def test_blocks_of_several_threads_overlap() -> None:
    threads, failures, start = [], [], threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(50):
            with plait.everywhere():
                if type(nn.GRU(1, 1)) is not plait.GRU:
                    failures.append("torch's inside a block")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert type(nn.GRU(1, 1)) is nn.GRU


def test_plaits_own_layers_are_made_as_ever() -> None:
    with plait.everywhere():
        layers = plait.LSTM(3, 4, engine="numpy"), plait.ImplicitGRU(3, 4)
    assert [type(layer) for layer in layers] == [plait.LSTM, plait.ImplicitGRU]
    assert layers[0].engine == "numpy"
    assert type(pickle.loads(pickle.dumps(layers[0]))) is plait.LSTM


def test_the_table_of_classes_is_all_there_is_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell in the table is swapped, restored, reported, made and loaded as the layers are."""

    class Cell(Swappable, nn.GRUCell):
        _plait_cell, _plait_torch = cells.GRU, nn.GRUCell

    plain = nn.Sequential(nn.GRUCell(3, 4))
    stored = pickle.dumps(plain)
    monkeypatch.setitem(TWINS, nn.GRUCell, Cell)
    with plait.everywhere():
        found = nn.GRUCell(3, 4), pickle.loads(stored)[0], copy.deepcopy(plain)[0]
    assert [type(cell) for cell in found] == [Cell] * 3
    model = plait.accelerate(nn.Sequential(nn.GRUCell(3, 4)), engine="torch")
    assert plait.report(model) == [("0", "Cell", "torch", "", "")]
    assert type(pickle.loads(pickle.dumps(model))[0]) is nn.GRUCell
    assert type(plait.restore(model)[0]) is nn.GRUCell


def test_it_is_never_on_by_import_alone() -> None:
    code = "import plait.layers; from torch import nn; assert type(nn.LSTM(3, 4)) is nn.LSTM"
    subprocess.run([sys.executable, "-c", code], check=True)


def kind_of(queue: Any, model: nn.Module) -> None:
    queue.put(f"{type(model[0]).__module__}.{type(model[0]).__name__}")


@pytest.mark.parametrize("inside", [False, True])
def test_a_spawned_worker_is_given_the_model(inside: bool) -> None:
    context, model = multiprocessing.get_context("spawn"), plait.accelerate(nn.Sequential(nn.LSTM(3, 4)))
    queue = context.Queue()
    worker = context.Process(target=kind_of, args=(queue, model))
    if inside:
        with plait.everywhere():
            worker.start()
    else:
        worker.start()
    assert queue.get(timeout=120) == ("plait.layers.drop_in.LSTM" if inside else "torch.nn.modules.rnn.LSTM")
    worker.join()
