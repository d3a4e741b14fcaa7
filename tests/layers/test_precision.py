"""In which precision a layer multiplies, and in which type its results are."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import plait
from plait.errors import SAID, PlaitError, PlaitWarning
from plait.ladder.compare import outputs_and_gradients, relative, worst
from plait.ladder.rounded import rounded
from plait.training.network import layers_of

LAYERS = [
    (nn.LSTM, {}),
    (nn.LSTM, {"bidirectional": True, "num_layers": 2}),
    (nn.LSTM, {"proj_size": 5}),
    (nn.GRU, {"bias": False}),
    (nn.GRU, {"bidirectional": True, "num_layers": 2}),
    (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
]
CELLS = [nn.LSTMCell, nn.GRUCell, nn.RNNCell]
COARSE = 2.0**-6  # of outputs: what some roundings of 2^-9 add up to in a few steps
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
bfloat = torch.autocast("cpu", dtype=torch.bfloat16)


def leaves(results):
    return [t for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]


def plain_and_plait(theirs, options):
    torch.manual_seed(3)
    plain = theirs(7, 12, **options)
    return plain, plait.accelerate(copy.deepcopy(plain))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("theirs", "options"), LAYERS)
def test_autocast_gives_torchs_types_and_nearly_its_numbers(theirs, options, dtype):
    plain, ours = plain_and_plait(theirs, options)
    x = torch.randn(6, 4, 7, dtype=dtype)
    some = [x, x[:, 0]]
    if dtype is torch.float32:  # torch's own layers fail with packed bfloat16 sequences
        first = options.get("batch_first", False)
        some.append(pack_padded_sequence(x, [4, 3, 3, 2, 1, 1][: x.shape[0 if first else 1]], first))
    for given in some:
        with bfloat:
            expected, found = leaves(plain(given)), leaves(ours(given))
        for a, b in zip(found, expected, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert relative(a.float(), b.float()) < COARSE


@pytest.mark.parametrize("theirs", CELLS)
def test_cells_under_autocast(theirs):
    plain, ours = plain_and_plait(theirs, {})
    for dtype in (torch.float32, torch.bfloat16):
        with bfloat:
            expected, found = leaves(plain(torch.ones(3, 7, dtype=dtype))), leaves(ours(torch.ones(3, 7, dtype=dtype)))
        assert [t.dtype for t in found] == [t.dtype for t in expected]
        assert worst([t.float() for t in found], [t.float() for t in expected]) < COARSE


@pytest.mark.parametrize("theirs", [nn.LSTM, nn.GRU, nn.RNN, *CELLS])
def test_layers_in_bfloat16_run(theirs):
    plain, ours = plain_and_plait(theirs, {})
    x = torch.randn(5, 3, 7) if issubclass(theirs, nn.RNNBase) else torch.randn(3, 7)
    exact = leaves(plain(x))
    ours.bfloat16()
    found = leaves(ours(x.bfloat16()))
    assert {t.dtype for t in found} == {torch.bfloat16}
    assert worst([t.float() for t in found], exact) < COARSE
    found[0].sum().backward()
    assert {p.grad.dtype for p in ours.parameters()} == {torch.bfloat16}


def test_the_rounding_is_that_of_operands_and_of_nothing_else():
    """One step from zeros: W x with both rounded, and all else in float32."""
    layer = plait.RNN(64, 16, precision="bf16")
    x = torch.randn(1, 3, 64)
    y, _ = layer(x)
    sums = rounded(x[0].double()) @ rounded(layer.weight_ih_l0.detach().double()).t()
    exact = torch.tanh(sums + layer.bias_ih_l0.double() + layer.bias_hh_l0.double())
    assert relative(y[0].double(), exact) < 1e-6
    assert relative(y[0], plait.RNN.forward(plait.restore(copy.deepcopy(layer)) and layer.float(), x)[0][0]) == 0
    layer.precision = "float32"
    assert relative(layer(x)[0][0].double(), exact) > 1e-5


def test_float32_stays_as_it_is_under_autocast():
    torch.manual_seed(0)
    layer, x = plait.GRU(7, 12), torch.randn(5, 3, 7)
    expected = outputs_and_gradients(layer, x, None)
    layer.precision = "float32"
    with bfloat:
        found = outputs_and_gradients(layer, x, None)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}])
@pytest.mark.parametrize("kind", [plait.LSTM, plait.GRU])
def test_whatever_runs_it_rounds_the_same(kind, options):
    """Lengths and packed sequences, a packed block, one call without gradients in chunks, compiled code."""
    torch.manual_seed(1)
    layer = kind(9, 10, precision="bf16", **options)
    x, lengths = torch.randn(6, 4, 9), [6, 3, 5, 1]
    first = options.get("batch_first", False)
    padded = x.transpose(0, 1).contiguous() if first else x
    y, state = layer(padded, lengths=lengths)
    packing = pack_padded_sequence(padded, torch.tensor(lengths), first, enforce_sorted=False)
    again, other = layer(packing)
    unpacked = nn.utils.rnn.pad_packed_sequence(again, first)[0]
    assert torch.equal(unpacked, y)
    assert all(torch.equal(a, b) for a, b in zip(leaves(state), leaves(other), strict=True))
    with torch.no_grad(), plait.packed(layer):
        inside = [layer(padded, lengths=lengths)[0] for _ in range(2)]
    assert all(torch.equal(part, y) for part in inside)


def test_a_long_walk_without_a_tape_is_the_same(monkeypatch):
    from plait.engines import fused

    torch.manual_seed(2)
    for options in ({}, {"bidirectional": True}, {"num_layers": 2}):
        layer, x = plait.LSTM(5, 9, precision="bf16", **options), torch.randn(40, 3, 5)
        whole = leaves(layer(x))
        with torch.no_grad(), monkeypatch.context() as m:
            m.setattr(fused, "WITHOUT_TAPE", 3 * 3 * 36 * 4)
            assert all(torch.equal(a, b) for a, b in zip(leaves(layer(x)), whole, strict=True))


def test_compiled_code_rounds_too():
    torch.manual_seed(4)
    layer, x = plait.GRU(5, 8, precision="bf16"), torch.randn(6, 3, 5, requires_grad=True)
    y = layer(x)[0]
    (expected,) = torch.autograd.grad(y.square().sum(), x)
    other = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)[0]
    (found,) = torch.autograd.grad(other.square().sum(), x)
    assert torch.equal(other, y)
    assert torch.equal(found, expected)


def test_one_step_a_call_follows_the_precision():
    cell, x = plait.LSTMCell(6, 8), torch.randn(2, 6)
    with torch.no_grad():
        exact = cell(x)[0]
        assert torch.equal(cell(x)[0], exact)  # bound once
        with bfloat:
            low = cell(x)[0]
        cell.precision = "bf16"
        coarse = [cell(x)[0] for _ in range(2)]
        cell.precision = None
        assert torch.equal(cell(x)[0], exact)
    assert torch.equal(coarse[0], low)
    assert torch.equal(coarse[1], low)
    assert not torch.equal(low, exact)


def test_half_is_kept_for_the_backward_pass():
    def kept(precision):
        total = 0

        def count(t):
            nonlocal total
            total += t.numel() * t.element_size() if t.dim() == 1 and t.numel() > 1000 else 0
            return t

        with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
            plait.LSTM(8, 64, precision=precision)(torch.randn(50, 16, 8))
        return total

    assert 0.5 <= kept("bf16") / kept(None) < 0.51


def test_a_second_pass_and_second_derivatives():
    torch.manual_seed(5)
    layer, x = plait.GRU(4, 6, precision="bf16"), torch.randn(5, 2, 4, requires_grad=True)
    y = layer(x)[0].square().sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x)
    assert torch.equal(first, second)
    (d,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
    assert relative(d, first) < COARSE
    d.sum().backward()
    assert x.grad.isfinite().all()


def test_copies_and_pickles_keep_it_and_restore_drops_it():
    layer = plait.LSTM(3, 4, precision="bf16")
    assert copy.deepcopy(layer).precision == pickle.loads(pickle.dumps(layer)).precision == "bf16"
    assert "precision='bf16'" in repr(layer)
    assert type(plait.restore(layer)) is nn.LSTM
    assert "precision" not in vars(layer)
    model = plait.accelerate(nn.Sequential(layer, nn.GRUCell(3, 4)), precision="bf16")
    assert [m.precision for m in model] == ["bf16", "bf16"]
    stored = io.BytesIO()
    torch.save(model.state_dict(), stored)
    assert {t.dtype for t in model.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dtype": torch.float64}, "precision 'bf16' of a layer in torch.float64: expected float32"),
        ({"engine": "numpy"}, "precision 'bf16' with engine 'numpy': expected engine='fused'"),
        ({"engine": "torch"}, "precision 'bf16' with engine 'torch': expected engine='fused'"),
        ({"solver": "shooting"}, "precision 'bf16' with solver shooting: expected solver=plait.Serial"),
    ],
)
def test_what_cannot_be_is_refused(options, sentence):
    layer = plait.LSTM(3, 4, precision="bf16", **options)
    with pytest.raises(PlaitError, match=sentence):
        layer(torch.randn(5, 2, 3, dtype=options.get("dtype")))


@pytest.mark.parametrize("value", ["fp8", "float16", 16, True, torch.bfloat16])
def test_only_two_precisions_have_names(value):
    for make in (plait.GRU, plait.GRUCell):
        with pytest.raises(PlaitError, match="expected 'bf16', 'float32', or None"):
            make(3, 4, precision=value)
    with pytest.raises(PlaitError, match="expected 'bf16', 'float32', or None"):
        plait.accelerate(nn.GRU(3, 4), precision=value)


def test_autocast_to_float16_computes_in_float32_and_says_so_once():
    SAID.clear()
    layer, x = plait.GRU(3, 4), torch.randn(5, 2, 3)
    expected = layer(x)[0]
    with torch.autocast("cpu", dtype=torch.float16):
        with pytest.warns(PlaitWarning, match="float16"):
            assert torch.equal(layer(x)[0], expected)
        assert torch.equal(layer(x)[0], expected)


@pytest.mark.parametrize("theirs", [nn.LSTM, nn.GRU, nn.RNN])
def test_gradients_are_nearer_to_float64_than_those_of_torchs_autocast(theirs):
    torch.manual_seed(6)
    plain = theirs(16, 48)
    ours = plait.accelerate(copy.deepcopy(plain), precision="bf16")
    x, d = torch.randn(40, 8, 16), torch.randn(40, 8, 48)

    def gradients(layer, x, low=False):
        x = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            y = layer(x)[0]
        return torch.autograd.grad(y, [x, *layer.parameters()], d.to(y.dtype))

    exact = gradients(copy.deepcopy(plain).double(), x.double())
    for mine, torchs, best in zip(gradients(ours, x), gradients(plain, x, low=True), exact, strict=True):
        assert (mine - best).norm() < (torchs - best).norm()
        assert (mine - best).norm() / best.norm() < COARSE


def test_a_packed_block_has_panels_of_both_precisions():
    layer, x = plait.GRU(7, 9), torch.randn(2, 3, 7)
    with torch.no_grad(), plait.packed(layer):
        exact = layer(x)[0]
        with bfloat:
            low = layer(x)[0]
        assert torch.equal(layer(x)[0], exact)
    with torch.no_grad(), bfloat:
        assert torch.equal(layer(x)[0], low)
    assert not torch.equal(low, exact)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}])
@pytest.mark.parametrize(("theirs", "H"), [(plait.LSTM, 9), (plait.GRU, 16)])
def test_stretches_that_are_walked_again_round_the_same(theirs, H, options):
    torch.manual_seed(7)
    layer, x = theirs(6, H, precision="bf16", **options), torch.randn(21, 3, 6)
    for lengths in (None, torch.tensor([21, 8, 13])):
        layer.checkpoint = None
        plain = outputs_and_gradients(layer, x, None, lengths)
        layer.checkpoint = 5
        again = outputs_and_gradients(layer, x, None, lengths)
        for name, expected in plain.items():
            if "weight" in name or "bias" in name:
                assert relative(again[name], expected) < 1e-6
            else:
                assert torch.equal(again[name], expected), name


@pytest.mark.parametrize("engine", ["auto", "torch", "numpy"])
def test_float32_by_name_is_not_rounded_by_any_engine(engine):
    for layer, x in ((plait.GRU(3, 4, engine=engine), torch.randn(5, 2, 3)), (plait.RNNCell(3, 4), torch.randn(2, 3))):
        layer.engine, layer.precision = engine, "float32"
        expected = leaves(layer(x))
        with bfloat:
            found = leaves(layer(x.bfloat16().float()))
        assert {t.dtype for t in found} == {torch.float32}
        again = leaves(layer(x.bfloat16().float()))
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
        assert not torch.equal(found[0], expected[0])


@pytest.mark.parametrize("options", [{"engine": "numpy"}, {"solver": "shooting"}])
def test_what_does_not_round_under_autocast_says_so_once(options):
    SAID.clear()
    layer, x = plait.GRU(3, 4, **options), torch.randn(5, 2, 3)
    expected = layer(x)[0]
    with bfloat:
        with pytest.warns(PlaitWarning, match="bfloat16: .* computes in float32"):
            assert torch.equal(layer(x)[0], expected)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layer(x)


@pytest.mark.parametrize("shape", [(5, 0, 3), (0, 2, 3)])
def test_batches_without_rows(shape):
    for layer in (plait.LSTM(3, 4, 2, bidirectional=True, precision="bf16"), plait.GRU(3, 4)):
        x = torch.zeros(shape, requires_grad=True)
        with bfloat:
            y, _ = layer(x)
        assert y.shape[:2] == shape[:2]
        y.float().sum().backward()
        assert x.grad.shape == x.shape
    with bfloat:
        assert plait.GRUCell(3, 4)(torch.zeros(0, 3)).shape == (0, 4)


@pytest.mark.parametrize("theirs", [nn.GRU, nn.LSTM, nn.RNN, nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_types_where_the_input_and_the_state_differ(theirs):
    plain, ours = plain_and_plait(theirs, {})
    is_cell, S = issubclass(theirs, nn.RNNCellBase), 2 if "LSTM" in theirs.__name__ else 1
    for dtype, other in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)):
        x, h = torch.randn(*(() if is_cell else (5,)), 3, 7), torch.zeros(*(() if is_cell else (1,)), 3, 12)
        hx = (h.to(other),) * S if S > 1 else h.to(other)
        with bfloat:
            expected, found = leaves(plain(x.to(dtype), hx)), leaves(ours(x.to(dtype), hx))
        assert [t.dtype for t in found] == [t.dtype for t in expected]


def test_whole_numbers_as_input_under_autocast_are_numbers():
    layer = plait.GRU(3, 4)
    with bfloat:
        y = layer(torch.ones(5, 2, 3, dtype=torch.int64))[0]
        assert torch.equal(y, layer(torch.ones(5, 2, 3))[0])
    assert y.dtype is torch.float32


def test_compiled_code_under_autocast_to_float16_does_not_warn():
    SAID.clear()
    layer, x = plait.GRU(3, 4), torch.randn(5, 2, 3)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.float16):
        found = compiled(x)[0]
    assert relative(found, layer(x)[0]) < 1e-6


def test_a_precision_that_is_set_later_is_checked_too():
    layer = plait.GRU(3, 4)
    layer.precision = "BF16"
    with pytest.raises(PlaitError, match="expected 'bf16', 'float32', or None"):
        layer(torch.randn(5, 2, 3))


def test_a_pipeline_refuses_it():
    with pytest.raises(PlaitError, match="precision bf16 cannot be in a pipeline: use data ranks"):
        list(layers_of([plait.LSTM(3, 4, precision="bf16")]))
