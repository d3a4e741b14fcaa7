"""Subclasses of torch's layers become plait's and back; nothing is swapped in silence."""

import abc
import copy
import functools
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import plait
from plait.errors import PlaitWarning
from plait.layers.swappable import Swappable
from plait.layers.twins import TWINS

X = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(1))


class Bare(nn.LSTM):
    """No forward of its own."""

    def zeros(self, x: Tensor) -> Tensor:
        return x.new_zeros(1, x.shape[1], self.hidden_size)


class Doubled(nn.LSTM):
    def forward(self, x, hx=None):
        y, state = super().forward(x, hx)
        return 2 * y, state


class Handler(abc.ABC, nn.RNNBase):
    """As pytorch-forecasting has it: a mixin between torch's base class and its layers."""

    @abc.abstractmethod
    def handle_no_encoding(self) -> None: ...

    def forward(self, x, hx=None, enforce_sorted=True):
        return super().forward(x, hx)


class Forecaster(Handler, nn.LSTM):
    def handle_no_encoding(self) -> None: ...


class Older(nn.GRU):
    def forward(self, x, hx=None):
        return super(Older, self).forward(x, hx)  # noqa: UP008  # as older code has it


class ByName(Doubled):
    def forward(self, x, hx=None):
        return Doubled.forward(self, x, hx)


def logged(function):
    @functools.wraps(function)
    def run(*args, **options):
        return function(*args, **options)

    return run


class Decorated(nn.RNN):
    @logged
    def forward(self, x, hx=None):
        above = super()
        return above.forward(x, hx)


REACHING = [Bare, Doubled, Forecaster, Older, ByName, Decorated]


class OwnLoop(nn.LSTM):
    def forward(self, x, hx=None):
        return torch.tanh(x @ self.weight_ih_l0.T), None


class TorchByName(nn.LSTM):
    def forward(self, x, hx=None):
        return nn.LSTM.forward(self, x, hx)


class Beyond(nn.LSTM):
    def forward(self, x, hx=None):
        try:
            return super(nn.LSTM, self).forward(x)
        except NotImplementedError:
            return x, None


class Plain(nn.GRU):
    pass


class Through(Plain):
    def forward(self, x, hx=None):
        return Plain.forward(self, x, hx)  # nn.GRU's, whatever the class of self


class Inner(nn.LSTM):
    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.inner = nn.Linear(3, 4)

    def forward(self, x, hx=None):
        return self.inner.forward(x), None


class Half(Doubled):
    """super().forward is that of Doubled, but this one never calls it."""

    def forward(self, x, hx=None):
        super().flatten_parameters()
        return x, None


class Checking(nn.LSTM):
    def check_forward_args(self, *args) -> None:
        """torch's forward calls it."""


class Engine(nn.LSTM):
    engine = "diesel"


class Registered(nn.GRU):
    """As plugins have it: each class derived from it needs a name."""

    def __init_subclass__(cls, name: str = "", **options) -> None:
        super().__init_subclass__(**options)
        if not name:
            raise ValueError("no name was given")


SKIPPING = [OwnLoop, TorchByName, Beyond, Through, Inner, Half]
OTHERS = [(Checking, "a check_forward_args of its own"), (Engine, "an attribute 'engine'")]
OTHERS += [(Registered, r"refuses to be derived from \(ValueError: no name was given\): let its __init_subclass__")]


def torch_base(cls: type) -> type:
    return next(base for base in cls.__mro__ if base in TWINS)


@pytest.mark.parametrize("cls", REACHING)
def test_a_subclass_whose_forward_reaches_torchs_is_swapped(cls: type) -> None:
    layer = cls(3, 4)
    expected, text, weights = layer(X)[0], repr(layer), [id(p) for p in layer.parameters()]
    assert plait.accelerate(layer, engine="numpy") is layer
    assert isinstance(layer, cls)
    assert isinstance(layer, TWINS[torch_base(cls)])
    assert [id(p) for p in layer.parameters()] == weights
    found = layer(X)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert "Recurrence" in str(graph_of(found))
    assert repr(layer) == text.replace(")", ", engine='numpy')")
    assert plait.accelerate(cls(3, 4)).__class__ is layer.__class__  # one class for all
    plait.restore(layer)
    assert type(layer) is cls
    assert not [name for name in vars(layer) if name.startswith("_plait") or name == "engine"]
    assert torch.equal(layer(X)[0], expected)


def graph_of(y: Tensor) -> list[str]:
    found, todo = [], [y.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None:
            found.append(node.name())
            todo += [parent for parent, _ in node.next_functions]
    return found


@pytest.mark.parametrize("cls", SKIPPING)
def test_a_subclass_that_never_reaches_torchs_forward_is_left_alone_and_named(cls: type) -> None:
    layer = cls(3, 4)
    with pytest.warns(PlaitWarning, match=f"{cls.__name__}.*a forward of its own: call super"):
        plait.accelerate(layer)
    assert type(layer) is cls


@pytest.mark.parametrize(("cls", "why"), OTHERS)
def test_a_subclass_that_plait_would_change_is_left_alone(cls: type, why: str) -> None:
    layer = cls(3, 4)
    with pytest.warns(PlaitWarning, match=why):
        plait.accelerate(layer)
    assert type(layer) is cls


def test_an_attribute_of_an_instance_is_not_overwritten() -> None:
    layer = nn.LSTM(3, 4)
    layer.solver = "mine"
    with pytest.warns(PlaitWarning, match="an attribute 'solver'"):
        plait.accelerate(layer)
    assert layer.solver == "mine"


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy])
@pytest.mark.parametrize("cls", [Doubled, Forecaster])
def test_a_copy_of_a_swapped_subclass(copied: Any, cls: type) -> None:
    layer = plait.accelerate(cls(3, 4), engine="numpy")
    other = copied(layer)
    assert type(other) is type(layer)
    assert other.engine == "numpy"
    assert torch.equal(other(X)[0], layer(X)[0])
    assert type(plait.restore(other)) is cls
    assert isinstance(layer, plait.LSTM)


def test_a_pickle_of_a_swapped_subclass_is_theirs_or_is_made_again() -> None:
    layer = plait.accelerate(Doubled(3, 4))
    assert type(pickle.loads(pickle.dumps(layer))) is Doubled
    plait.accelerate(layer, engine="numpy", portable=False)
    other = pickle.loads(pickle.dumps(layer))
    assert type(other) is type(layer)
    assert other.engine == "numpy"
    assert torch.equal(other(X)[0], layer(X)[0])


@pytest.mark.parametrize("first", ["parametrize", "accelerate"])
@pytest.mark.parametrize("cls", [nn.LSTM, Doubled])
def test_parametrized_subclasses_swap_copy_and_come_back(cls: type, first: str) -> None:
    layer = cls(3, 4)
    if first == "accelerate":
        plait.accelerate(layer, engine="numpy")
    parametrizations.weight_norm(layer, "weight_hh_l0")
    plait.accelerate(layer, engine="numpy")
    assert isinstance(layer, plait.LSTM)
    expected = layer(X)[0]
    other = copy.deepcopy(layer)
    assert isinstance(other, plait.LSTM)
    assert torch.equal(other(X)[0], expected)
    for one in (layer, other):
        plait.restore(one)
        assert not isinstance(one, Swappable)
        another = copy.deepcopy(one)  # not after a call of torch's own layer: torch refuses that
        torch.testing.assert_close(one(X)[0], expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(another(X)[0], expected, rtol=1e-5, atol=1e-6)
    parametrize.remove_parametrizations(layer, "weight_hh_l0")
    assert type(layer) is cls


def test_classes_that_were_made_go_when_nobody_uses_them() -> None:
    def made() -> Any:
        class Local(nn.GRU):
            pass

        return weakref.ref(type(plait.accelerate(Local(3, 4))))

    found = made()
    gc.collect()
    assert found() is None


def test_subclasses_of_plaits_own_layers_stay() -> None:
    class Mine(plait.LSTM):
        pass

    layer = plait.accelerate(Mine(3, 4), engine="numpy")
    assert layer.engine == "numpy"
    assert type(plait.restore(layer)) is Mine


class Taken(nn.GRU):
    """A submodule and a buffer have names that plait's layers need."""

    def __init__(self) -> None:
        super().__init__(3, 4)
        self.engine, self.last_solve = nn.Linear(4, 4), 3
        self.register_buffer("solver", torch.ones(1))

    def forward(self, x):
        return self.engine(super().forward(x)[0]) * self.solver + self.last_solve


def test_submodules_and_buffers_with_names_that_plait_needs_are_left_alone() -> None:
    layer, x = Taken(), torch.randn(2, 5, 3)
    expected = layer(x)
    with pytest.warns(PlaitWarning, match="with an attribute"):
        plait.accelerate(layer)
    assert type(layer) is Taken
    assert torch.equal(layer(x), expected)
    with plait.everywhere():
        made = Taken()
    assert type(made) is Taken
