"""The NumPy expert's training steps, against torch's autograd and its SGD."""

import numpy as np
import pytest
import torch
from torch import nn

from plait.bench.expert import CELLS, Expert
from plait.bench.steps import TORCH
from plait.errors import PlaitError

NAMES = {"w_ih": "weight_ih_l0", "w_hh": "weight_hh_l0", "b_ih": "bias_ih_l0", "b_hh": "bias_hh_l0"}


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (5, 7, 3, 4, 2), (32, 12, 1, 16, 1)])
@pytest.mark.parametrize("cell", CELLS)
def test_steps_are_autograds(cell, shape):
    """Three steps: the second has to forget what the first left in the buffers."""
    B, T, I, H, O = shape
    torch.manual_seed(0)
    layer, head = TORCH[cell](I, H), nn.Linear(H, O)
    sgd = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.3)
    given = {short: getattr(layer, name).detach() for short, name in NAMES.items()}
    expert = Expert(cell, given, (head.weight.detach(), head.bias.detach()), B, T)
    start = {name: tensor.clone() for name, tensor in given.items()}
    for _ in range(3):
        x, y = torch.randn(T, B, I), torch.randn(B, O)
        loss = nn.functional.mse_loss(head(layer(x)[0][-1]), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        assert expert.step(x.numpy(), y.numpy(), 0.3) == pytest.approx(loss.item(), rel=1e-5)
    for short, name in NAMES.items():
        expected = getattr(layer, name).detach()
        assert expert.weights[short].dtype == np.float32
        np.testing.assert_allclose(expert.weights[short], expected, atol=2e-6)
        assert T == 1 or not torch.equal(expected, start[short])  # it moved
    np.testing.assert_allclose(expert.head[0], head.weight.detach(), atol=2e-6)
    np.testing.assert_allclose(expert.head[1], head.bias.detach(), atol=2e-6)


def test_weights_are_copies():
    weights = {name: np.ones((4, 1) if name[0] == "w" else 4, np.float32) for name in NAMES}
    expert = Expert("lstm", weights, (np.ones((1, 1)), np.ones(1)), 2, 3)
    expert.step(np.ones((3, 2, 1), np.float32), np.zeros((2, 1), np.float32), 0.1)
    assert all((value == 1).all() for value in weights.values())
    expert.weights["w_ih"][:] = 7
    assert not (expert.weights["w_ih"] == 7).any()


def test_unknown_cell():
    with pytest.raises(PlaitError, match="cell 'lstn'"):
        Expert("lstn", {}, ((), ()), 1, 1)
