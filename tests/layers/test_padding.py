"""A padded batch whose rows the launch copies: the same bits as for a PackedSequence."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import plait
from plait import engines, layers
from plait.engines import fused
from plait.engines import lengths as lengths_module
from plait.engines.fused import FusedEngine
from plait.engines.lengths import padded_layout
from plait.engines.segments import Product
from plait.kernels.launch import choices
from plait.layout import Layout
from plait.solvers import Solver
from some_cells import MGU, PeepholeLSTM

LENGTHS = ([5, 1, 3, 7, 3], [7] * 5, [1] * 5, [1, 2, 3, 4, 5], [6])


def test_the_layout_is_that_of_the_lengths() -> None:
    torch.manual_seed(0)
    drawn = [torch.randint(1, 12, (B,)).tolist() for B in (1, 2, 9, 40)]
    for lengths, batch_first, more in product([*LENGTHS, *drawn], (False, True), (0, 3)):
        T, B = max(lengths) + more, len(lengths)
        layout = padded_layout(torch.tensor(lengths), T, B, batch_first)
        expected, found = Layout.of_lengths(lengths, T, B), layout.padding
        assert (layout.T, layout.B, layout.N, layout.is_dense) == (expected.T, B, expected.N, expected.is_dense)
        assert layout.sizes == expected.sizes
        assert layout.bounds.tolist() == expected.bounds.tolist()
        assert layout.lengths.tolist() == expected.lengths.tolist()
        for reverse in (False, True):
            assert layout.rows_before(reverse).tolist() == expected.rows_before(reverse).tolist()
        x = torch.randn(*found.shape, 2)
        places = expected.places(T, batch_first)
        assert torch.equal(found.gathered(x), x.flatten(0, 1)[places])
        assert torch.equal(found.scattered(found.gathered(x)).flatten(0, 1)[places], x.flatten(0, 1)[places])
        states = torch.randn(2, B, 3)
        assert torch.equal(found.sorted([states])[0], states[:, expected.permutation])
        assert torch.equal(found.unsorted(found.sorted([states]))[0], states)


def results(layer: Any, x: Tensor, lengths: list[int], state: Any, *, pack: bool, of: str) -> list[Tensor | None]:
    """Outputs, last states and gradients: for a padded batch, or as the user packs it."""
    states = [] if state is None else [*state] if isinstance(state, tuple) else [state]
    if pack:
        y, h = layer(pack_padded_sequence(x, lengths, layer.batch_first, enforce_sorted=False), state)
        y = pad_packed_sequence(y, layer.batch_first, total_length=x.shape[1 if layer.batch_first else 0])[0]
    else:
        y, h = layer(x, state, lengths=lengths)
    last = [*h] if isinstance(h, tuple) else [h]
    loss = {"rows": [y], "states": last, "all": [y, *last]}[of]
    wanted = [t for t in (x, *states, *layer.parameters()) if t.requires_grad]
    factors = [torch.arange(t.numel(), dtype=t.dtype).view_as(t).sin() for t in loss]
    d = torch.autograd.grad(loss, wanted, factors, allow_unused=True)
    return [y.detach(), *[t.detach() for t in last], *d]


@pytest.mark.parametrize(
    ("batch_first", "count"),  # the order of the axes is in the indices, which all threads read
    [(False, 1), (False, 2), (True, 2)],
    ids=["time first, one thread", "time first", "batch first"],
)
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn", "implicit_gru"])
def test_the_same_bits_as_packed(cell, batch_first, count, set_threads) -> None:
    set_threads(count)
    torch.manual_seed(1)
    for lengths, bidirectional, num_layers in product(LENGTHS, (False, True), (1, 3)):
        B, T = len(lengths), max(lengths) + 2
        options: dict[str, Any] = {"bidirectional": bidirectional, "num_layers": num_layers, "batch_first": batch_first}
        without_bias = [{"bias": False}] if lengths is LENGTHS[0] else []  # the rows are the same ones
        for more in ({}, *without_bias, *([{"proj_size": 3}] if cell == "lstm" else [])):
            layer = layers.layer(cell, 4, 19, engine="fused", **options, **more)
            x = torch.randn(*((B, T) if batch_first else (T, B)), 4, requires_grad=True)
            state = layer(x[:, :1] if batch_first else x[:1])[1]
            state = tuple(
                s.detach().normal_().requires_grad_() for s in (state if isinstance(state, tuple) else [state])
            )
            given = state if len(state) > 1 else state[0]
            for of, hx in (("rows", None), ("states", given), ("all", given)):
                ours, theirs = (results(layer, x, lengths, hx, pack=pack, of=of) for pack in (False, True))
                for a, b in zip(ours, theirs, strict=True):
                    assert (a is None) == (b is None)
                    assert a is None or torch.equal(a, b)  # type: ignore[arg-type]


def test_what_is_not_wanted_is_not_computed() -> None:
    lengths, x = [2, 4, 1], torch.randn(5, 3, 6)
    for frozen in (0, 1, 2, 3, 4):
        layer = plait.LSTM(6, 8, 2, engine="fused")
        for p in list(layer.parameters())[: 2 * frozen]:
            p.requires_grad_(False)
        for is_wanted in (False, True):
            x.requires_grad_(is_wanted)
            if frozen == 4 and not is_wanted:
                continue
            ours, theirs = (results(layer, x, lengths, None, pack=pack, of="rows") for pack in (False, True))
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None)


def test_rows_that_are_no_tensor_of_their_own() -> None:
    """Parts of other tensors, gradients that are one number, a second backward pass, and none at all."""
    layer, lengths = plait.GRU(3, 9, engine="fused"), [2, 4, 1, 4]
    x = torch.randn(4, 4, 8, dtype=torch.float32)[..., 2:5].transpose(0, 1).requires_grad_()
    assert not x.is_contiguous()
    y = layer(x, lengths=lengths)[0]
    first = torch.autograd.grad(y.sum(), [x, *layer.parameters()], retain_graph=True)
    second = torch.autograd.grad(y.sum(), [x, *layer.parameters()])
    packed = layer(pack_padded_sequence(x, lengths, enforce_sorted=False))[0].data
    expected = torch.autograd.grad(packed.sum(), [x, *layer.parameters()])
    for some in (first, second):
        assert all(torch.equal(a, b) for a, b in zip(some, expected, strict=True))
    alive = torch.arange(4).unsqueeze(1) < torch.tensor(lengths)
    assert not y[~alive].any()
    assert not first[0][~alive].any()
    with torch.no_grad():
        assert torch.equal(layer(x, lengths=lengths)[0], y)


@pytest.mark.parametrize("lengths", [None, [40, 7, 22]], ids=["dense", "ragged"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
def test_sequences_that_are_too_long_for_one_launch_without_a_tape(bidirectional, lengths, monkeypatch) -> None:
    layer, x = plait.LSTM(3, 5, bidirectional=bidirectional, engine="fused"), torch.randn(40, 3, 3)
    whole = layer(x, lengths=lengths)
    monkeypatch.setattr(fused, "WITHOUT_TAPE", 1)
    with torch.no_grad():
        cut = layer(x, lengths=lengths)
    for a, b in zip([whole[0], *whole[1]], [cut[0], *cut[1]], strict=True):
        assert torch.equal(a, b)


def test_products_that_torch_computes(monkeypatch) -> None:
    engine = FusedEngine()
    monkeypatch.setattr(engines, "get", lambda _: engine)
    monkeypatch.setattr(choices.Sized, "ours", lambda *_: False)
    monkeypatch.setattr(choices, "ours_over_rows", lambda *_: False)
    monkeypatch.setattr(choices.Sized, "folded", False)
    for bidirectional, lengths in product((False, True), ([5, 1, 2, 2], [5] * 4)):
        torch.manual_seed(2)
        layer = plait.LSTM(6, 8, 2, bidirectional=bidirectional, dtype=torch.float64, engine="fused")
        x = torch.randn(5, 4, 6, dtype=torch.float64, requires_grad=True)
        ours, theirs = (results(layer, x, lengths, None, pack=pack, of="all") for pack in (False, True))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None)
        torch.testing.assert_close(ours, results(plait.restore(layer), x, lengths, None, pack=True, of="all"))
    segments = [s for plan in engine.plans.values() for variant in plan.variants.values() for s in variant.segments]
    names = {segment.what.name for segment in segments if isinstance(segment, Product)}
    assert names == {"wx", "d_x", "w_ih", "w_hh", "b_ih", "b_hh"}


class Plain(Solver):
    """As the documentation says that a solver's methods are."""

    name = text = "plain"

    def forward(self, problem, x, state0, *, keep):
        engine, ps, layout, _ = problem
        assert x.dim() == (3 if layout.batch_sizes is None else 2)
        return engine.forward(ps, x, state0, layout, keep=keep)

    def backward(self, problem, x, saved, d_rows, d_finals, *, needs, spend):
        engine, ps, layout, _ = problem
        return engine.backward(ps, x, saved, d_rows, d_finals, layout, needs=needs, spend=spend)


def test_a_solver_of_ones_own_is_given_rows() -> None:
    layer, x, lengths = plait.GRU(3, 5, engine="fused"), torch.randn(6, 3, 3, requires_grad=True), [6, 2, 3]
    expected = results(layer, x, lengths, None, pack=False, of="all")
    layer.solver = Plain()
    found = results(layer, x, lengths, None, pack=False, of="all")
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("cell", [PeepholeLSTM, MGU])
def test_cells_of_ones_own(cell) -> None:
    for dtype, bidirectional in product((torch.float32, torch.float64), (False, True)):
        layer = layers.layer(cell, 3, 9, 2, bidirectional=bidirectional, dtype=dtype, engine="fused")
        x, lengths = torch.randn(6, 4, 3, dtype=dtype, requires_grad=True), [6, 2, 3, 3]
        ours, theirs = (results(layer, x, lengths, None, pack=pack, of="all") for pack in (False, True))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_second_derivatives_with_dropout() -> None:
    layer = plait.LSTM(2, 2, 2, dropout=0.5, bidirectional=True, dtype=torch.float64, engine="fused")
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def run(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(5)
        y, last = layer(x, (h, c), lengths=[1, 3])
        return y, *last

    assert torch.autograd.gradcheck(run, (x, *state))
    assert torch.autograd.gradgradcheck(run, (x, *state))


def test_packed_weights_and_saved_tensors_that_are_elsewhere() -> None:
    layer, x, lengths = plait.LSTM(3, 5, 2, engine="fused"), torch.randn(6, 3, 3, requires_grad=True), [6, 2, 3]
    expected = results(layer, x, lengths, None, pack=False, of="all")
    with plait.packed(layer), torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        for _ in range(2):
            found = results(layer, x, lengths, None, pack=False, of="all")
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_is_in_the_padding_is_not_read() -> None:
    layer, lengths = plait.GRU(3, 5, engine="fused"), torch.tensor([6, 2, 3])
    x, d = torch.randn(6, 3, 3), torch.randn(6, 3, 5)
    beyond = torch.arange(6).unsqueeze(1) >= lengths
    found = []
    for value in (0.0, float("nan")):
        x[beyond], d[beyond] = value, value
        leaf = x.clone().requires_grad_()
        found.append(torch.autograd.grad(layer(leaf, lengths=lengths)[0], [leaf, *layer.parameters()], d))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_an_input_that_changes_before_the_way_back_is_refused() -> None:
    """As for a dense batch: the function has kept it."""
    layer, x = plait.GRU(3, 5, engine="fused"), torch.randn(6, 3, 3)
    y = layer(x, lengths=[6, 2, 3])[0]
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_lengths_without_memory_of_their_own() -> None:
    layer, x = plait.GRU(3, 5, engine="fused"), torch.randn(6, 3, 3)
    with FakeTensorMode() as mode:
        lengths = mode.from_tensor(torch.tensor([6, 2, 3]))
    with pytest.raises(DataDependentOutputException):  # not a crash
        layer(x, lengths=lengths)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(DataDependentOutputException):
        layer(x, lengths=torch.tensor([6, 2, 3]))


def test_lengths_that_change_or_are_negated_lazily(monkeypatch) -> None:
    """What is checked is what is used."""
    layer, x, lengths = plait.GRU(3, 5, engine="fused"), torch.randn(6, 3, 3), torch.tensor([6, 2, 3])
    expected = layer(x, lengths=lengths)[0]
    assert torch.equal(layer(x, lengths=torch._neg_view(-lengths))[0], expected)
    wrong, check = torch.tensor([6, 9, 3]), lengths_module.check_lengths

    def corrected(given: Any, T: int, B: int) -> Any:
        wrong[1] = 2
        return check(given, T, B)

    monkeypatch.setattr(lengths_module, "check_lengths", corrected)
    with pytest.raises(plait.PlaitError, match="length 9 of sequence 1"):
        layer(x, lengths=wrong)


@pytest.mark.parametrize("wrong", [[3, 0, 1], [3, 9, 1], [3, 1], [3.0, 1.0, 2.0], [[3, 1, 2]], "abc"])
def test_lengths_that_are_wrong(wrong) -> None:
    layer, x = plait.GRU(3, 5, engine="fused"), torch.randn(5, 3, 3)
    with pytest.raises(plait.PlaitError, match="length"):
        layer(x, lengths=wrong)
    if isinstance(wrong[0], int) and len(wrong) == 3:
        with pytest.raises(plait.PlaitError, match=r"sequence 1: expected 1 to 5"):
            layer(x, lengths=torch.tensor(wrong))


def test_an_input_of_another_size_is_refused() -> None:
    layer = plait.GRU(3, 5, engine="fused")
    with pytest.raises(RuntimeError, match=r"input\.size"):
        layer(torch.randn(5, 2, 4), lengths=[1, 2])
    with pytest.raises(ValueError, match="dtype"):
        layer(torch.randn(5, 2, 3, dtype=torch.float64), lengths=[1, 2])
    with pytest.raises(RuntimeError, match="hidden size"):
        layer(torch.randn(5, 2, 3), torch.randn(1, 3, 5), lengths=[1, 2])
