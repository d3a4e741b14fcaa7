"""Slabs of a batch: where their rows are, and that a stack in slabs computes what it computes in one piece."""

import copy
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import plait
from plait import PlaitError, engines
from plait.kernels.launch import threads
from plait.kernels.launch.choices import Sized
from plait.kernels.launch.slabs import Slab

KINDS = ("LSTM", "GRU", "RNN")


def slabs(T: int, bounds: list[int], reverse: bool) -> list[Slab]:
    pairs = enumerate(pairwise(bounds))
    return [Slab(k, 0, reverse, T, T * (hi - lo), lo, hi, bounds[-1]) for k, (lo, hi) in pairs]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_rows_of_slabs_fill_a_tape_once(reverse) -> None:
    """A matrix of rows, and the states: T steps and the initial ones, which come first, or last in reverse."""
    T, bounds, width = 3, [0, 2, 3, 7], 5
    B, N = bounds[-1], T * bounds[-1]
    initial_at, states_at = (N * width, 0) if reverse else (0, B * width)
    rows, states = [], []
    for slab in slabs(T, bounds, reverse):
        size, few = T * slab.B * width, slab.B * width
        rows += range(slab.rows(width), slab.rows(width) + size)
        initial, after = initial_at + slab.initial(width), states_at + slab.states(width)
        assert initial == (after + size if reverse else after - few)  # next to each other
        history_at = states_at + B * width if reverse else initial_at
        assert history_at + slab.history(width) == (after + few if reverse else initial)
        states += [*range(initial, initial + few), *range(after, after + size)]
    assert sorted(rows) == list(range(N * width))
    assert sorted(states) == list(range((N + B) * width))


def test_a_part_finds_its_rows_outside() -> None:
    T, bounds, width = 3, [0, 2, 3, 7], 5
    found = []
    for slab in slabs(T, bounds, reverse=False):
        for t, b in product(range(T), range(slab.B)):
            row = t * slab.B + b + t * slab.skipped(False)
            found.append(slab.outside(width, False) + row * width)
        assert (slab.outside(width, True), slab.skipped(True)) == (slab.rows(width), 0)
    assert sorted(found) == list(range(0, T * bounds[-1] * width, width))


def test_one_part_is_all_of_it() -> None:
    (slab,) = slabs(3, [0, 7], reverse=True)
    assert [slab.rows(5), slab.states(5), slab.initial(5), slab.history(5), slab.outside(5, False)] == [0] * 5
    assert slab.skipped(False) == 0


@pytest.fixture
def set_slabs(set_threads, monkeypatch):
    """As many threads, with or without slabs, for stacks of any size."""

    def set_to(count: int, *, apart: bool) -> None:
        set_threads(count)
        engines.get("fused").plans.clear()
        monkeypatch.setattr(Sized, "separates", lambda self, slabs: apart)

    yield set_to
    engines.get("fused").plans.clear()


def found_slabs() -> set[int]:
    return {plan.slabs for plan in engines.get("fused").plans.values()}


def results(layer: nn.Module, x: Tensor, states: list[Tensor], d_y: Tensor) -> list[Tensor]:
    """The outputs, then the gradients."""
    x, states = x.clone().requires_grad_(), [s.clone().requires_grad_() for s in states]
    torch.manual_seed(3)
    given = tuple(states) if len(states) > 1 else states[0] if states else None
    y, last = layer(x, given)
    last = last if isinstance(last, tuple) else (last,)
    loss = (y * d_y).sum() + sum(s.sin().sum() for s in last)
    return [y, *last, *torch.autograd.grad(loss, [x, *states, *layer.parameters()])]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bidirectional", "layers", "dropout"),
    [(False, 1, 0.0), (False, 3, 0.0), (False, 3, 0.4), (True, 2, 0.0), (True, 2, 0.4)],
)
def test_slabs_compute_what_one_piece_computes(kind, bidirectional, layers, dropout, set_slabs) -> None:
    """Outputs and states to the last bit. Weights' gradients are sums in another order."""
    T, I, H, D = 5, 6, 19, 1 + bidirectional
    for B, count, stateful in ((7, 2, True), (9, 3, False), (8, 5, True)):
        layer = getattr(plait, kind)(
            I, H, layers, bidirectional=bidirectional, dropout=dropout, dtype=torch.float64, engine="fused"
        )
        x, d_y = torch.randn(T, B, I, dtype=torch.float64), torch.randn(T, B, D * H, dtype=torch.float64)
        states = [torch.randn(layers * D, B, H, dtype=torch.float64) for _ in range((1 + (kind == "LSTM")) * stateful)]
        set_slabs(count, apart=False)
        expected = results(layer, x, states, d_y)
        assert found_slabs() == {1}
        set_slabs(count, apart=True)
        found = results(copy.deepcopy(layer), x, states, d_y)  # a layer remembers what ran it
        assert found_slabs() == {-(-count // D)}
        exact = 2 + (kind == "LSTM")
        for k, (a, b) in enumerate(zip(found, expected, strict=True)):
            if k < exact:
                assert torch.equal(a, b), k
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def only(layer: nn.Module, names: tuple[str, ...]) -> None:
    for name, p in layer.named_parameters():
        p.requires_grad_(any(some in name for some in names))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", [*KINDS, "ImplicitGRU"])
@pytest.mark.parametrize("learn", [("bias",), ("weight_ih",), ("weight_hh",), ("l1",), ("weight", "bias")])
def test_any_of_the_weights_may_learn(kind, learn, dtype, set_slabs) -> None:
    """In both directions, with and without biases, also if there are more threads than sequences."""
    for B, count, bias in ((7, 4, True), (5, 16, True), (7, 4, False)):
        layer = getattr(plait, kind)(6, 19, 2, bias=bias, bidirectional=True, dtype=dtype, engine="fused")
        only(layer, learn)
        learning = [p for p in layer.parameters() if p.requires_grad]
        if not learning:
            continue
        x, d_y = torch.randn(5, B, 6, dtype=dtype), torch.randn(5, B, 38, dtype=dtype)
        found = []
        for apart in (False, True):
            set_slabs(count, apart=apart)
            copied = copy.deepcopy(layer)
            own = [p for p in copied.parameters() if p.requires_grad]
            found.append(torch.autograd.grad((copied(x)[0] * d_y).sum(), own))
            assert found_slabs() == {min(B, -(-count // 2)) if apart else 1}
        for a, b in zip(*found, strict=True):
            assert (a - b).abs().max() <= (1e-5 if dtype is torch.float32 else 1e-12) * b.abs().max()


@pytest.mark.parametrize(
    ("B", "T", "H", "count", "expected"),
    [
        (32, 64, 48, 2, 2),
        (32, 64, 48, 4, 4),
        (9, 200, 48, 8, 0),  # one thread would have twice as much to do as the others
        (20, 3, 48, 2, 0),  # the sums of the slabs would be longer than what they are the sums of
        (32, 64, 48, 1, 0),
    ],
)
def test_slabs_pay_or_not(B, T, H, count, expected, set_threads) -> None:
    set_threads(count)
    engines.get("fused").plans.clear()
    plait.LSTM(H, H, engine="fused")(torch.randn(T, B, H))
    assert found_slabs() == {max(1, expected)}


@pytest.mark.parametrize("kind", KINDS)
def test_large_stacks_are_in_slabs_and_are_torchs(kind, set_threads) -> None:
    set_threads(2)
    engines.get("fused").plans.clear()
    theirs = getattr(nn, kind)(9, 48, 2)
    ours = plait.accelerate(copy.deepcopy(theirs))
    x, d_y = torch.randn(60, 33, 9), torch.randn(60, 33, 48)
    found, expected = results(ours, x, [], d_y), results(theirs.double(), x.double(), [], d_y.double())
    assert found_slabs() == {2}
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


def test_who_computes_does_not_change_a_bit(set_slabs) -> None:
    """Two threads; one that does all; and one weight that does not learn."""
    layer = plait.GRU(6, 19, 2, engine="fused")
    x, d_y = torch.randn(5, 7, 6), torch.randn(5, 7, 19)
    set_slabs(2, apart=True)
    expected = results(layer, x, [], d_y)
    assert found_slabs() == {2}
    with threads._team:  # as if another Python thread used the others
        alone = results(layer, x, [], d_y)
    layer.weight_ih_l0.requires_grad_(False)
    layer.bias_hh_l1.requires_grad_(False)
    y, _ = layer(x)
    named = [(n, p) for n, p in layer.named_parameters() if p.requires_grad]
    some = dict(zip([n for n, _ in named], torch.autograd.grad((y * d_y).sum(), [p for _, p in named]), strict=True))
    for a, b in zip(alone, expected, strict=True):
        assert torch.equal(a, b)
    layer.requires_grad_(True)
    y, _ = layer(x)
    grads = torch.autograd.grad((y * d_y).sum(), list(layer.parameters()))
    for (name, _), g in zip(layer.named_parameters(), grads, strict=True):
        assert name not in some or torch.equal(some[name], g), name


def test_a_derivative_that_was_not_expected(set_slabs) -> None:
    """A stack is made for an x that does not learn. torch.func then asks for its gradient all the same."""
    set_slabs(2, apart=True)
    layer = plait.LSTM(1, 20, engine="fused")
    x = torch.randn(8, 6, 1)
    layer(x)[0].sum().backward()
    found = torch.func.grad(lambda x: layer(x)[0].square().sum())(x)
    plait.restore(layer)
    given = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(layer(given)[0].square().sum(), [given])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_second_way_back(set_slabs) -> None:
    """It computes the tape again, or leaves it as it is."""
    set_slabs(2, apart=True)
    layer = plait.LSTM(6, 19, 2, engine="fused")
    y, _ = layer(torch.randn(5, 7, 6))
    assert found_slabs() == {2}
    first = torch.autograd.grad(y.square().sum(), list(layer.parameters()), retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(y.square().sum(), list(layer.parameters())), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("counts", [(2, 1), (1, 2), (2, 3), (3, 2)])
def test_a_tape_of_other_threads(counts, set_slabs) -> None:
    """torch.utils.checkpoint computes the tape anew on the way back. Meanwhile the number of threads has changed."""
    layer = plait.GRU(6, 19, 2, dtype=torch.float64, engine="fused")
    x = torch.randn(5, 7, 6, dtype=torch.float64)
    expected = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    set_slabs(counts[0], apart=True)
    y = checkpoint(lambda x: layer(x)[0], x, use_reentrant=False)
    set_slabs(counts[1], apart=True)
    found = torch.autograd.grad(y.square().sum(), list(layer.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def test_a_tape_that_is_not_ours_is_refused(set_slabs) -> None:
    set_slabs(2, apart=True)
    layer = plait.GRU(6, 19, engine="fused")
    with torch.autograd.graph.saved_tensors_hooks(torch.zeros_like, lambda t: t):
        y, _ = layer(torch.randn(5, 7, 6))
    with pytest.raises(PlaitError, match=r"the saved tapes are in \[0\] slabs: expected 1 to 7"):
        y.sum().backward()


def test_slabs_do_not_change_the_forward_pass(set_slabs) -> None:
    layer, x = plait.LSTM(6, 19, engine="fused"), torch.randn(5, 7, 6)
    set_slabs(2, apart=True)
    expected = layer(x)[0]
    assert found_slabs() == {2}
    with plait.packed(layer):  # a plan whose weights are pinned has no slabs
        assert torch.equal(layer(x)[0], expected)
    assert found_slabs() == {1, 2}
