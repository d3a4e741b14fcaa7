"""A call like the last one skips its checks. Whatever is not alike must take the usual way."""

import copy
import pickle

import pytest
import torch
from torch import nn

import plait
from plait.layers.ready import Ready


def called(monkeypatch) -> list[str]:
    """Notes which calls took the usual way."""
    found, usual = [], plait.LSTM._plait_engine
    monkeypatch.setattr(
        plait.layers.recurrent.Recurrent, "_plait_engine", lambda *a: found.append(a[1]) or usual(*a), raising=True
    )
    return found


@pytest.mark.parametrize("batch_first", [False, True])
def test_the_second_call_is_ready(monkeypatch, batch_first) -> None:
    usual = called(monkeypatch)
    layer = plait.LSTM(3, 5, 2, batch_first=batch_first, bidirectional=True)
    theirs = nn.LSTM(3, 5, 2, batch_first=batch_first, bidirectional=True)
    theirs.load_state_dict(layer.state_dict())
    x, found = torch.randn(4, 6, 3, requires_grad=True), []
    for _ in range(3):
        y, (h, c) = layer(x)
        found.append([y, h, c, *torch.autograd.grad(y.sum() + c.sum(), [x, *layer.parameters()])])
    assert usual == ["fused"]
    y, (h, c) = theirs(x)
    expected = [y, h, c, *torch.autograd.grad(y.sum() + c.sum(), [x, *theirs.parameters()])]
    for a, b, d in zip(*found[1:], expected, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, d, rtol=1e-4, atol=1e-6)


def test_what_is_not_alike_takes_the_usual_way(monkeypatch) -> None:
    layer, x = plait.RNN(3, 5, 2, dropout=0.5, engine="fused").eval(), torch.randn(4, 6, 3)
    usual = called(monkeypatch)

    def is_usual(*arguments, **more) -> bool:
        usual.clear()
        layer(*arguments, **more)
        return bool(usual)

    def twice(*arguments) -> tuple[bool, bool]:
        return is_usual(*arguments), is_usual(*arguments)

    assert twice(x) == (True, False)
    assert twice(x[:3]) == (True, False)
    assert twice(x[:, :3]) == (True, False)
    assert twice(x, torch.zeros(2, 6, 5)) == (True, True)
    assert not is_usual(x[:, :3].flip(0))
    layer.train()
    assert twice(x) == (True, False)
    layer.dropout = 0.25
    assert twice(x) == (True, False)
    layer.solver = plait.Serial()
    assert twice(x) == (True, False)
    layer.engine = "numpy"
    assert twice(x) == (True, True)
    layer.engine = "fused"
    layer.double()
    assert twice(x.double()) == (True, False)
    with pytest.raises(ValueError, match="dtype"):
        layer(x)
    with plait.packed(layer):
        assert twice(x.double()) == (True, True)
    for p in layer.parameters():
        p.requires_grad_(False)
    layer.weight_ih_l1.requires_grad_(True)  # the first layer needs no tape: one function for each
    assert twice(x.double()) == (True, True)


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
        assert torch.equal(layer(x)[0], y)
        assert torch.equal(layer(x.bfloat16())[0], layer(x.bfloat16().float())[0])
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


def test_it_is_not_part_of_a_copy() -> None:
    layer, x = plait.LSTM(3, 5), torch.randn(4, 2, 3)
    y = layer(x)[0]
    assert isinstance(layer._plait_ready, Ready)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other._plait_ready is None
        assert torch.equal(other(x)[0], y)
    assert "_plait_ready" not in plait.restore(layer).__dict__


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
