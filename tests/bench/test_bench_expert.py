"""The NumPy expert's training steps, against torch's autograd and its SGD."""

import numpy as np
import pytest
import torch
from torch import nn

from plait.bench.peers.contenders.network import WEIGHTS, Network
from plait.bench.peers.contenders.with_numpy import CELLS, NumPy
from plait.bench.peers.contenders.with_torch import modules


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (5, 7, 3, 4, 2), (32, 12, 1, 16, 1)])
@pytest.mark.parametrize("cell", CELLS)
def test_steps_are_autograds(cell, shape):
    """Three steps: the second has to forget what the first left in the buffers."""
    B, T, I, _, O = shape
    torch.manual_seed(0)
    net = Network.drawn(cell, *shape, rate=0.3, seed=0)
    start = {name: value.copy() for name, value in net.weights.items()}
    layer, head = modules(cell, net.weights)
    parameters = [*layer.parameters(), *head.parameters()]
    sgd, expert = torch.optim.SGD(parameters, lr=0.3), NumPy(net)
    for _ in range(3):
        x, y = torch.randn(T, B, I), torch.randn(B, O)
        loss = nn.functional.mse_loss(head(layer(x)[0][-1]), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        assert expert.step(x.numpy(), y.numpy()) == pytest.approx(loss.item(), rel=1e-5)
    found = expert.weights()
    for name, parameter in zip(WEIGHTS, parameters, strict=True):
        expected = parameter.detach().numpy()
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], expected, atol=2e-6)
        assert T == 1 or not np.array_equal(expected, start[name])  # it moved
        np.testing.assert_array_equal(net.weights[name], start[name])


def test_weights_are_copies():
    expert = NumPy(Network.drawn("lstm", 2, 3, 1, 1, 1, rate=0.1, seed=0))
    for name in WEIGHTS:
        expert.weights()[name][:] = 7
        assert not (expert.weights()[name] == 7).any()
