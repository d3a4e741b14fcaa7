"""The end of a language model: its loss and gradients, as a whole and in two parts, chunk by chunk."""

import weakref

import pytest
import torch
from torch import nn

from plait.ladder.compare import TOLERANCE, worst
from plait.tasks import softmax
from plait.tasks.softmax import AdaptiveSoftmax, Softmax, add_weights, by_rows, with_gradients


@pytest.mark.parametrize("held", [1 << 22, 30], ids=["at once", "in blocks"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_softmax_is_cross_entropy_of_the_logits(monkeypatch, held: int, tied: bool) -> None:
    monkeypatch.setattr(softmax, "LOGITS", held)
    V, H, N = 11, 5, 13
    words = nn.Parameter(torch.randn(V, H, dtype=torch.float64))
    layer = Softmax(H, V, words if tied else None).double()
    for p in layer.parameters():
        nn.init.normal_(p)
    h, target = torch.randn(N, H, dtype=torch.float64, requires_grad=True), torch.randint(V, (N,))
    target[2] = target[7] = -1
    weights = [h, layer.matrix, layer.bias]
    assert len(list(layer.parameters())) == (1 if tied else 2)
    expected = 3 * nn.functional.cross_entropy(h @ layer.matrix.t() + layer.bias, target, ignore_index=-1)
    found = 3 * layer(h, target)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    theirs = torch.autograd.grad(expected, weights)
    for _ in range(2):  # a second backward finds what the first one found
        ours = torch.autograd.grad(found, weights, retain_graph=True)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-14)
    assert ours[0][2].eq(0).all()
    with torch.no_grad():
        torch.testing.assert_close(3 * layer(h, target), expected, rtol=1e-12, atol=0)


def test_words_too_unlikely_for_a_number_have_a_loss() -> None:
    layer = Softmax(3, 4)
    nn.init.zeros_(layer.bias)
    layer.weight.data = torch.tensor([[200.0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]])
    h, target = torch.tensor([[1.0, 2, 3], [0.5, 1, 1]], requires_grad=True), torch.tensor([1, 2])
    assert layer.logits(h).softmax(1)[0, 1] == 0
    expected = nn.functional.cross_entropy(layer.logits(h), target)
    found = layer(h, target)
    torch.testing.assert_close(found, expected)
    for a, b in zip(torch.autograd.grad(found, h), torch.autograd.grad(expected, h), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("H", "V"), [(6, 2500), (1, 3), (8, 11_000), (32, 60_000)])
def test_the_adaptive_softmax_is_a_distribution(H: int, V: int) -> None:
    layer = AdaptiveSoftmax(H, V)
    assert all(p.numel() for p in layer.parameters())
    h, target = torch.randn(40, H), torch.randint(V, (40,))
    log_p = layer.logits(h)
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(40), rtol=1e-4, atol=0)
    torch.testing.assert_close(layer(h, target), -log_p.gather(1, target.unsqueeze(1)).mean(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("held", [1 << 22, 30], ids=["at once", "in blocks"])
def test_chunks_add_up_to_the_whole(monkeypatch, held: int, dtype: torch.dtype) -> None:
    """First the rows of every chunk, then the weights of each, in another order, added to what is there already."""
    monkeypatch.setattr(softmax, "LOGITS", held)
    V, H, sizes = 11, 5, [4, 1, 0, 7, 3]
    N = sum(sizes)
    h, weight, bias = (torch.randn(s, dtype=dtype) for s in ((N, H), (V, H), (V,)))
    target = torch.randint(V, (N,))
    target[4] = target[8] = -1  # the second chunk has nothing to predict
    expected = with_gradients(h, weight, bias, target)
    before = [torch.randn(V, H, dtype=dtype), torch.randn(V, dtype=dtype)]
    d_weight, d_bias = (b.clone() for b in before)
    pairs = list(zip(h.split(sizes), target.split(sizes), strict=True))
    chunks = [by_rows(rows, weight, bias, some, N - 2) for rows, some in pairs]
    for k in (3, 0, 4, 1, 2):
        add_weights(chunks[k][2], pairs[k][0], N - 2, d_weight, d_bias)
    loss, d_h = sum(loss for loss, _, _ in chunks), torch.cat([d for _, d, _ in chunks])
    assert worst([loss, d_h, d_weight - before[0], d_bias - before[1]], expected) < TOLERANCE[dtype]


def test_the_whole_holds_few_logits_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr(softmax, "LOGITS", 30)
    make, made, shapes = softmax.pool.empty, [], []

    def watched(like: torch.Tensor, *shape: int) -> torch.Tensor:
        assert all(block() is None for block in made)  # the block before is gone
        shapes.append(shape)
        block = make(like, *shape)
        made.append(weakref.ref(block))
        return block

    monkeypatch.setattr(softmax.pool, "empty", watched)
    with_gradients(torch.randn(9, 3), torch.randn(11, 3), torch.randn(11), torch.arange(9))
    assert shapes == [(2, 11)] * 4 + [(1, 11)]


def test_no_rows_have_no_gradient() -> None:
    _, d_h, d_weight, d_bias = with_gradients(
        torch.empty(0, 3), torch.randn(4, 3), torch.randn(4), torch.empty(0, dtype=torch.int64)
    )
    assert d_h.shape == (0, 3)
    assert not d_weight.any()
    assert not d_bias.any()
