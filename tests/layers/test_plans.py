"""A plan is found by its key: calls that are alike share one, and whatever is not alike gets another."""

import copy
import pickle

import pytest
import torch
from torch import nn

import plait
from plait import engines


@pytest.fixture
def plans() -> dict:
    found = engines.get("fused").plans
    found.clear()
    return found


@pytest.mark.parametrize("batch_first", [False, True])
def test_calls_that_are_alike_share_a_plan(plans, batch_first) -> None:
    layer = plait.LSTM(3, 5, 2, batch_first=batch_first, bidirectional=True)
    theirs = nn.LSTM(3, 5, 2, batch_first=batch_first, bidirectional=True)
    theirs.load_state_dict(layer.state_dict())
    x, found = torch.randn(4, 6, 3, requires_grad=True), []
    for one in (layer, layer, copy.deepcopy(layer)):
        y, (h, c) = one(x)
        found.append([y, h, c, *torch.autograd.grad(y.sum() + c.sum(), [x, *one.parameters()])])
    assert len(plans) == 1
    y, (h, c) = theirs(x)
    expected = [y, h, c, *torch.autograd.grad(y.sum() + c.sum(), [x, *theirs.parameters()])]
    for a, b, d in zip(*found[1:], expected, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, d, rtol=1e-4, atol=1e-6)


def test_what_is_not_alike_gets_another_plan(plans) -> None:
    layer, x = plait.RNN(3, 5, 2, dropout=0.5, engine="fused").eval(), torch.randn(4, 6, 3)

    def is_new(*arguments, **more) -> bool:
        """Whether a call makes a plan. Its numbers are those of engine numpy in any case."""
        before, state = set(plans), torch.random.get_rng_state()
        found = layer(*arguments, **more)[0]
        torch.random.set_rng_state(state)
        engine, layer.engine = layer.engine, "numpy"
        torch.testing.assert_close(found, layer(*arguments, **more)[0])
        layer.engine = engine
        return set(plans) != before

    def twice(*arguments, **more) -> tuple[bool, bool]:
        return is_new(*arguments, **more), is_new(*arguments, **more)

    once = (True, False)
    assert twice(x) == once
    assert twice(x[:3]) == once
    assert twice(x[:, :3]) == once
    assert not is_new(x[:, :3].flip(0))
    assert twice(x, torch.randn(2, 6, 5)) == once
    assert twice(x, lengths=[4, 1, 2, 4, 3, 3]) == once
    assert not is_new(x, lengths=[1, 1, 2, 4, 3, 3])
    assert twice(x.requires_grad_()) == once
    layer.train()
    assert twice(x) == once
    layer.dropout = 0.25
    assert not is_new(x)
    layer.solver = plait.Serial()
    assert not is_new(x)
    layer.double()
    assert twice(x.double()) == once
    with pytest.raises(ValueError, match="dtype"):
        layer(x)
    with plait.packed(layer):
        assert twice(x.double()) == once
    torch.set_num_threads(count := torch.get_num_threads() + 1)
    assert twice(x.double()) == once
    torch.set_num_threads(count - 1)


def test_a_layer_below_the_first_that_learns_needs_no_tape(plans) -> None:
    layer, x = plait.GRU(3, 5, 2, engine="fused"), torch.randn(4, 6, 3)
    expected = torch.autograd.grad(layer(x)[0].sum(), layer.weight_ih_l1)[0]
    for p in layer.parameters():
        p.requires_grad_(False)
    layer.weight_ih_l1.requires_grad_(True)
    plans.clear()
    y = layer(x)[0]
    assert sorted(key.layers for key in plans) == [1, 1]
    torch.testing.assert_close(torch.autograd.grad(y.sum(), layer.weight_ih_l1)[0], expected)


def test_a_plan_prints_itself(plans) -> None:
    layer = plait.LSTM(3, 5, 2, dropout=0.5, engine="fused")
    lines = str(layer.plan(torch.randn(4, 6, 3))).splitlines()
    assert lines[0].startswith("lstm: T 4, B 6, I 3, H 5, 2 layers, 1 direction, ")
    kinds = [line.split()[0] for line in lines[1:]]
    assert kinds == ["forward", "launch", "mask", "launch", "backward,", "launch", "mask", "launch"]
    ragged = str(layer.plan(torch.randn(4, 6, 3), lengths=[4, 1, 2, 4, 3, 3]))
    assert ragged.startswith("lstm: ragged, padded, B 6, I 3, H 5")
    layer.engine = "numpy"
    with pytest.raises(plait.PlaitError, match="not one plan: engine numpy has no plans"):
        layer.plan(torch.randn(4, 6, 3))


@pytest.mark.parametrize("options", [{"proj_size": 2}, {}])
def test_another_order_of_the_axes_is_seen(options) -> None:
    """The shape is the same, and the numbers of steps and sequences are not."""
    layer, x, theirs = plait.LSTM(3, 5, **options), torch.randn(4, 6, 3), nn.LSTM(3, 5, **options)
    theirs.load_state_dict(layer.state_dict())
    layer(x)
    layer.batch_first = theirs.batch_first = True
    (y, (h, _)), (expected, (last, _)) = layer(x), theirs(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(h, last)
    layer.input_size = 4
    with pytest.raises(RuntimeError, match="input_size"):
        layer(x)


def test_a_changed_nonlinearity_is_seen() -> None:
    layer, x = plait.accelerate(nn.RNN(3, 5)), torch.randn(4, 2, 3)
    layer(x)
    layer.mode = "RNN_RELU"
    y = layer(x)[0]
    plain = nn.RNN(3, 5, nonlinearity="relu")
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(y, plain(x)[0])


def test_autocast_and_other_numbers() -> None:
    layer, x = plait.GRU(3, 5), torch.randn(4, 2, 3)
    y = layer(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = layer(x)[0]
        assert not torch.equal(low, y)  # another plan
        assert torch.equal(layer(x.bfloat16())[0], layer(x.bfloat16().float())[0].bfloat16())
    assert torch.equal(layer(x)[0], y)
    layer.bfloat16()
    assert layer(x.bfloat16())[0].dtype == torch.bfloat16


def test_weights_that_change_between_two_calls() -> None:
    layer, x = plait.GRU(3, 5), torch.randn(4, 2, 3)
    layer(x)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(2)
    plain = nn.GRU(3, 5)
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x)[0], plain(x)[0])
    layer.weight_hh_l0.data = layer.weight_hh_l0.data[:-1]
    with pytest.raises(plait.PlaitError, match="weight w_hh"):
        layer(x)


def test_a_copy_gives_the_same() -> None:
    layer, x = plait.LSTM(3, 5), torch.randn(4, 2, 3)
    y = layer(x)[0]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x)[0], y)


def test_a_parametrized_weight_is_evaluated_once_in_a_call() -> None:
    class Counted(nn.Module):
        calls = 0

        def forward(self, w):
            self.calls += 1
            return w * 1

    layer, counted = plait.LSTM(3, 5, 2), Counted()
    nn.utils.parametrize.register_parametrization(layer, "weight_hh_l1", counted, unsafe=True)
    for more in ({}, {}, {"lengths": [4, 2]}, {"lengths": [4, 2]}):
        before = counted.calls
        layer(torch.randn(4, 2, 3), **more)
        assert counted.calls == before + 1
