"""Tensors that a kernel cannot read: fake ones have no memory, mapped ones are several at once."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence

import plait

KINDS = [(nn.LSTM, {}), (nn.GRU, {"num_layers": 2, "dropout": 0.3, "bidirectional": True}), (nn.RNN, {"bias": False})]


def shapes_of(layer: nn.Module, x: Any) -> list[Any]:
    y, state = layer(x)
    y = y if isinstance(y, Tensor) else y.data
    y.sum().backward()
    states = state if isinstance(state, tuple) else (state,)
    found = [y, *states, *[p.grad for p in layer.parameters()]]
    assert all(isinstance(t, FakeTensor) for t in found)
    return [(t.shape, t.dtype) for t in found]


@pytest.mark.parametrize("engine", ["auto", "numpy"])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_fake_tensors_give_fake_results_with_torchs_shapes(kind: Any, options: dict[str, Any], engine: str) -> None:
    with FakeTensorMode():
        theirs = kind(3, 5, **options)
        ours = plait.accelerate(kind(3, 5, **options), engine=engine)
        x = torch.randn(7, 4, 3)
        assert shapes_of(ours, x) == shapes_of(theirs, x)


@pytest.mark.parametrize("fake_x", [True, False])
def test_a_layer_that_has_run_sees_that_tensors_are_fake_now(fake_x: bool) -> None:
    """What it knows of its last call (ready.py) does not hold then."""
    layer, x = plait.LSTM(3, 5), torch.randn(7, 4, 3)
    before = layer(x)[0]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = layer(mode.from_tensor(x) if fake_x else x)[0]
    assert isinstance(found, FakeTensor)
    assert found.shape == before.shape
    weights = {name: mode.from_tensor(p) for name, p in layer.named_parameters()}
    with mode:
        found = functional_call(layer, weights, (x,))[0]
    assert isinstance(found, FakeTensor)
    assert torch.equal(layer(x)[0], before)


def test_fake_tensors_and_a_solver_that_sweeps() -> None:
    with FakeTensorMode(), pytest.raises(plait.PlaitError, match="needs numbers, and fake tensors have none: use"):
        plait.LSTM(3, 5, solver=plait.Shooting(2))(torch.randn(40, 4, 3))


# --- several gradients at once
def of_padded(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)[0]


def of_lengths(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, lengths=[5, 2, 4])[0]


def of_packed(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(PackedSequence(x.flatten(0, 1)[:11], torch.tensor([3, 3, 2, 2, 1])))[0].data


@pytest.mark.parametrize("call", [of_padded, of_lengths, of_packed])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_gradients_in_a_batch_are_those_one_by_one(kind: Any, options: dict[str, Any], call: Any) -> None:
    layer = plait.accelerate(kind(3, 5, **options)).double()
    x = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True)
    inputs = [x, *layer.parameters()]
    y = call(layer, x)
    d = torch.randn(4, *y.shape, dtype=torch.float64)
    together = torch.autograd.grad(y, inputs, d, is_grads_batched=True, retain_graph=True)
    mapped = torch.func.vmap(lambda one: torch.autograd.grad(y, inputs, one, retain_graph=True))(d)
    single = zip(*[torch.autograd.grad(y, inputs, one, retain_graph=True) for one in d], strict=True)
    for a, b, each in zip(together, mapped, single, strict=True):
        torch.testing.assert_close(a, torch.stack(each))
        torch.testing.assert_close(b, torch.stack(each))


def test_a_jacobian_in_one_go() -> None:
    layer, x = plait.GRU(2, 3).double(), torch.randn(4, 1, 2, dtype=torch.float64)
    one_by_one, at_once = (
        torch.autograd.functional.jacobian(lambda x: layer(x)[0], x, vectorize=vectorize) for vectorize in (False, True)
    )
    torch.testing.assert_close(at_once, one_by_one)


def test_only_a_last_state_is_differentiated() -> None:
    layer, x = plait.LSTM(2, 3).double(), torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    c = layer(x)[1][1]
    d = torch.randn(3, *c.shape, dtype=torch.float64)
    found = torch.autograd.grad(c, x, d, is_grads_batched=True, retain_graph=True)[0]
    torch.testing.assert_close(found, torch.stack([torch.autograd.grad(c, x, e, retain_graph=True)[0] for e in d]))
