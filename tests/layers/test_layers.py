"""A PyTorch user swaps torch.nn.LSTM for plait.LSTM and notices nothing: one test for each thing they might do."""

import copy
import gc
import io
import pickle
import weakref
import zipfile

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import plait
from plait import PlaitError, engines
from plait.engines.packed import Packed
from plait.ladder.compare import deviation, outputs_and_gradients, relative
from plait.layers import states_of
from reference import data_file

ENGINES = ("torch", "fused", "torch:steps", "numpy", "python")
PAIRS = [(nn.RNN, plait.RNN), (nn.LSTM, plait.LSTM), (nn.GRU, plait.GRU)]
every_engine = pytest.mark.parametrize("engine", ENGINES)
own_engine = pytest.mark.parametrize("engine", ENGINES[1:])  # those that do not hand the layer to torch
pairs = pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=["rnn", "lstm", "gru"])


def twin(theirs: nn.Module, ours: type[nn.Module], engine: str = "numpy", **options) -> nn.Module:
    made = ours(theirs.input_size, theirs.hidden_size, theirs.num_layers, engine=engine, **options)
    made.load_state_dict(theirs.state_dict())
    return made


def gradients(model: nn.Module, loss: torch.Tensor, **options) -> list[torch.Tensor]:
    return [g.detach() for g in torch.autograd.grad(loss, list(model.parameters()), **options)]


def assert_close(found, expected, tolerance: float = 1e-5) -> None:
    assert len(found) == len(expected)
    assert max(relative(a, b) for a, b in zip(found, expected, strict=True)) <= tolerance


@pairs
def test_constructor_state_dict_and_kind_are_torchs(theirs, ours) -> None:
    options = {"num_layers": 2, "bias": True, "batch_first": True, "dropout": 0.1, "bidirectional": True}
    a, b = theirs(3, 4, **options), ours(3, 4, **options)
    assert isinstance(b, theirs)
    assert list(a.state_dict()) == list(b.state_dict())
    assert [v.shape for v in a.state_dict().values()] == [v.shape for v in b.state_dict().values()]
    a.load_state_dict(b.state_dict())
    b.load_state_dict(a.state_dict())
    torch.manual_seed(5)
    a = theirs(3, 4)
    torch.manual_seed(5)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), ours(3, 4).parameters(), strict=True))


def test_positional_arguments_are_in_torchs_order() -> None:
    assert repr(plait.RNN(3, 4, 2, "relu", False, True)) == repr(nn.RNN(3, 4, 2, "relu", False, True))
    assert repr(plait.LSTM(3, 4, 2, False, True, 0.0, True, 2)) == repr(nn.LSTM(3, 4, 2, False, True, 0.0, True, 2))
    assert repr(plait.GRU(3, 4, engine="numpy")) == "GRU(3, 4, engine='numpy')"
    assert list(plait.ImplicitGRU(3, 4, 2).state_dict()) == list(nn.GRU(3, 4, 2).state_dict())


@pytest.mark.parametrize("make", [plait.RNN, plait.GRU, plait.ImplicitGRU])
def test_projection_is_for_the_lstm(make) -> None:
    with pytest.raises(ValueError, match="only supported for LSTM"):
        make(3, 4, proj_size=2)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_is_still_run_by_torchs_own_layer(copied) -> None:
    layer = copied(plait.LSTM(3, 4, engine="torch"))
    y, _ = layer(torch.randn(5, 2, 3))
    assert "Recurrence" not in y.grad_fn.name()
    assert layer.solver == plait.Serial()


@every_engine
@pytest.mark.parametrize("make", [plait.GRU, plait.ImplicitGRU])
def test_no_steps_and_no_sequences(engine: str, make) -> None:
    layer, h = make(3, 4, engine=engine), torch.randn(1, 2, 4, requires_grad=True)
    y, state = layer(torch.empty(0, 2, 3), h)
    assert y.shape == (0, 2, 4)
    assert torch.equal(state, h)
    (y.sum() + state.sum()).backward()
    assert h.grad.eq(1).all()
    y, state = layer(torch.empty(5, 0, 3))
    assert y.shape == (5, 0, 4)
    assert state.shape == (1, 0, 4)
    y.sum().backward()
    assert not layer.weight_ih_l0.grad.any()


@every_engine
def test_packed_stays_packed_and_keeps_its_order(engine: str) -> None:
    layer = plait.LSTM(3, 4, engine=engine)
    packed = pack_sequence([torch.randn(n, 3) for n in (2, 5, 1)], enforce_sorted=False)
    y, (h, c) = layer(packed)
    assert isinstance(y, PackedSequence)
    assert torch.equal(y.sorted_indices, packed.sorted_indices)
    assert h.shape == c.shape == (1, 3, 4)


@every_engine
def test_lengths_are_each_sequence_alone(engine: str) -> None:
    layer, x, lengths = plait.LSTM(3, 4, 2, bidirectional=True, engine=engine), torch.randn(6, 4, 3), [3, 6, 1, 4]
    y, (h, c) = layer(x, lengths=lengths)
    for b, n in enumerate(lengths):
        alone, (h1, c1) = layer(x[:n, b : b + 1])
        torch.testing.assert_close(y[:n, b], alone[:, 0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close((h[:, b], c[:, b]), (h1[:, 0], c1[:, 0]), rtol=1e-5, atol=1e-6)
        assert not y[n:, b].any()


@pytest.mark.parametrize(
    ("cell", "tolerance"), [(plait.LSTM, 1e-6), (plait.GRU, 1e-6), (plait.ImplicitGRU, 1e-6), (plait.RNN, 2e-6)]
)
def test_sentences_of_penn_treebank_are_each_alone(cell, tolerance: float) -> None:
    """As they come, in a layer of 200, both directions: outputs, last states, and the gradients' sums.

    (The plain RNN forgets nothing of a rounding: in float32 either way is 1.1e-6 from float64.)
    """
    with zipfile.ZipFile(data_file("ptb.zip")) as file:
        lines = file.read("ptb.test.txt").decode().splitlines()[:32]
    lengths = [len(line.split()) + 1 for line in lines]
    layer, x = cell(200, 200, bidirectional=True), torch.randn(max(lengths), len(lengths), 200, requires_grad=True)
    d_y = torch.randn(max(lengths), len(lengths), 400)
    y, h = layer(x, lengths=lengths)
    together = torch.autograd.grad(y, [x, *layer.parameters()], d_y)
    sums = [torch.zeros_like(g) for g in together]
    for b, n in enumerate(lengths):
        one = x[:n, b : b + 1].detach().requires_grad_()
        y1, h1 = layer(one)
        pairs = [(y[:n, b], y1[:, 0])]
        pairs += [(f[:, b], e[:, 0]) for f, e in zip(states_of(h), states_of(h1), strict=True)]
        for found, expected in pairs:
            assert (found - expected).abs().max() <= tolerance * expected.abs().max()
        d_one, *d_weights = torch.autograd.grad(y1, [one, *layer.parameters()], d_y[:n, b : b + 1])
        sums[0][:n, b] = d_one[:, 0]
        for total, d in zip(sums[1:], d_weights, strict=True):
            total += d
    for found, expected in zip(together, sums, strict=True):
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_lengths_within_torch_func_and_twice_differentiated() -> None:
    layer = plait.LSTM(2, 5, dtype=torch.float64)
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)

    def loss(x: Tensor) -> Tensor:
        return layer(x, lengths=torch.tensor([3, 4, 1]))[0].square().sum()

    torch.testing.assert_close(torch.func.grad(loss)(x), torch.autograd.grad(loss(x), x)[0])
    assert torch.autograd.gradgradcheck(loss, (x,))


def test_no_sequences_have_no_lengths() -> None:
    for lengths in ([], torch.zeros(0, dtype=torch.int64)):
        y, h = plait.GRU(3, 5)(torch.randn(6, 0, 3), lengths=lengths)
        assert y.shape == (6, 0, 5)
        assert h.shape == (1, 0, 5)
    with pytest.raises(PlaitError, match="lengths of an input that has no steps"):
        plait.GRU(3, 5)(torch.randn(0, 2, 3), lengths=[1, 1])


def test_a_ragged_batch_of_other_lengths_takes_the_same_plan() -> None:
    """Its numbers of steps and rows are bound at each call."""
    plans = engines.get("fused").plans
    plans.clear()
    layer, x = plait.LSTM(3, 5, 6, engine="fused"), torch.randn(4, 3, 3, requires_grad=True)
    for lengths in ([4, 1, 2], [1, 1, 3], [2, 4, 4]):
        layer(x, lengths=lengths)[0].sum().backward()
    (plan,) = plans.values()
    assert len(plan.variants) == 2  # forward and backward


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        ([3, 0], "length 0 of sequence 1: expected 1 to 5"),
        ([3, -2], "length -2 of sequence 1"),
        ([6, 1], "length 6 of sequence 0: expected 1 to 5"),
        ([3], r"lengths of shape \(1,\): expected \(2,\)"),
        (torch.tensor([[3, 3]]), r"lengths of shape \(1, 2\)"),
        ([3.0, 2.0], "lengths of type torch.float32: expected whole numbers"),
        (torch.tensor([True, True]), "lengths of type torch.bool"),
        (["a", "b"], r"lengths \['a', 'b'\]: expected whole numbers"),
        ([1, None], r"lengths \[1, None\]: expected whole numbers"),
        ([2**70, 1], r"lengths \[\d+, 1\]: expected whole numbers"),
        ([], r"lengths of shape \(0,\): expected \(2,\)"),
    ],
)
def test_wrong_lengths_get_a_sentence(lengths, sentence: str) -> None:
    with pytest.raises(PlaitError, match=sentence):
        plait.GRU(3, 4)(torch.randn(5, 2, 3), lengths=lengths)


PACKINGS = [
    ([2, 3, 1], 6, "step 1 has 3 sequences after 2 at the step before, expected at least 1 and never more than before"),
    ([2, 20000, 3], 20005, "step 1 has 20000 sequences after 2"),
    ([3, 0, 0], 3, "step 1 has 0 sequences after 3"),
    ([0, 0], 0, "step 0 has 0 sequences, expected at least 1"),
    ([3, -1], 2, "step 1 has -1 sequences"),
    ([], 0, r"batch_sizes have shape \(0,\)"),
    ([3, 2], 4, r"input of shape \(4, 3\): expected 5 rows of 3"),
    ([3, 2], 7, r"input of shape \(7, 3\): expected 5 rows of 3"),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("sizes", "rows", "sentence"), PACKINGS)
def test_sizes_of_a_packing_that_cannot_be(engine: str, sizes: list[int], rows: int, sentence: str) -> None:
    packed = PackedSequence(torch.randn(rows, 3), torch.tensor(sizes, dtype=torch.int64))
    with pytest.raises(PlaitError, match=sentence):
        plait.GRU(3, 4, engine=engine)(packed)


@pytest.mark.parametrize(("sizes", "rows", "sentence"), [PACKINGS[0], PACKINGS[2], PACKINGS[-1]])
def test_sizes_of_a_packing_are_looked_at_in_compiled_code_too(sizes, rows: int, sentence: str, dynamo) -> None:
    compiled = torch.compile(plait.ImplicitGRU(3, 4), backend="aot_eager")
    with dynamo.config.patch(allow_rnn=True), pytest.raises(PlaitError, match=sentence):
        compiled(PackedSequence(torch.randn(rows, 3), torch.tensor(sizes)))
    tensors = list(plait.GRU(3, 4).parameters())
    with pytest.raises(PlaitError, match=sentence):
        torch.ops.plait.layer(
            torch.randn(rows, 3), tensors, torch.tensor(sizes), sizes[0], "fused 1 1 0 0 serial 0 gru", True
        )


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda n: np.array(n, np.int32)])
def test_lengths_of_any_kind(kind) -> None:
    layer, x = plait.GRU(3, 4), torch.randn(5, 2, 3)
    assert torch.equal(layer(x, lengths=kind([2, 5]))[0], layer(x, lengths=[2, 5])[0])


def test_lengths_want_a_batch_and_no_packing() -> None:
    layer = plait.GRU(3, 4)
    with pytest.raises(PlaitError, match="lengths need a batch: expected a 3-D input, found 2-D"):
        layer(torch.randn(5, 3), lengths=[5])
    with pytest.raises(PlaitError, match="PackedSequence, which has its own"):
        layer(pack_sequence([torch.randn(2, 3)]), lengths=[2])


@own_engine
@pytest.mark.parametrize(
    ("x", "hx"),
    [
        (torch.randn(5, 2, 7), None),
        (torch.randn(5, 2, 3, 1), None),
        (torch.randn(5, 2, 3, dtype=torch.float64), None),
        (torch.randn(5, 2, 3), torch.randn(1, 3, 4)),
        (torch.randn(5, 2, 3), torch.randn(2, 2, 4)),
        (torch.randn(5, 2, 3), torch.randn(2, 4)),
        (torch.randn(5, 3), torch.randn(1, 1, 4)),
        (torch.randn(5, 2, 3), torch.randn(1, 2, 4, dtype=torch.float64)),
        (torch.randn(5, 2, 3), torch.zeros(1, 2, 4, dtype=torch.int64)),
    ],
)
def test_wrong_shapes_raise_what_torch_raises(engine: str, x, hx) -> None:
    with pytest.raises((RuntimeError, ValueError)) as expected:
        nn.GRU(3, 4)(x, hx)
    with pytest.raises(expected.type):
        plait.GRU(3, 4, engine=engine)(x, hx)


# --- swapping in place -----------------------------------------------------------------------------------------------
class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 4, batch_first=True)
        self.more = nn.ModuleList([nn.GRU(4, 4), nn.Sequential(nn.RNN(4, 4))])
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        y, _ = self.rnn(x)
        y, _ = self.more[0](y)
        y, _ = self.more[1][0](y)
        return self.head(y)


def test_accelerate_and_restore_a_tree() -> None:
    net, x = Net().eval(), torch.randn(2, 5, 3)
    expected, parameters = net(x), [id(p) for p in net.parameters()]
    kinds = [type(m) for m in net.modules()]
    net.rnn.register_forward_hook(lambda *_: seen.append("hook"))
    seen: list[str] = []
    assert plait.accelerate(net, engine="numpy") is net
    assert [type(m) for m in (net.rnn, net.more[0], net.more[1][0])] == [plait.LSTM, plait.GRU, plait.RNN]
    assert_close([net(x)], [expected])
    assert seen == ["hook"]
    assert not net.rnn.training
    assert [id(p) for p in net.parameters()] == parameters
    assert plait.restore(net) is net
    assert [type(m) for m in net.modules()] == kinds
    assert "engine" not in net.rnn.__dict__
    assert torch.equal(net(x), expected)
    assert seen == ["hook"] * 2


@own_engine
def test_odd_tensors(engine: str) -> None:
    """Negative-bit views, expanded states, strided input: as torch takes them."""
    theirs = nn.GRU(3, 4)
    layer = twin(theirs, plait.GRU, engine)
    x, h = torch.randn(5, 2, 3, dtype=torch.complex64).conj().imag, torch.randn(1, 1, 4).expand(1, 2, 4)
    assert x.is_neg()
    assert_close(layer(x, h)[:1], theirs(x, h)[:1])
    x = torch.randn(3, 2, 10).permute(2, 1, 0)[::2]
    assert_close(layer(x)[:1], theirs(x)[:1])
    d = torch.randn(5, 2, 4, dtype=torch.complex64).conj().imag
    grads = [torch.autograd.grad(m(x)[0], list(m.parameters()), d) for m in (layer, theirs)]
    assert_close(*grads)


@own_engine
def test_relu_lets_nan_through_as_torch_does(engine: str) -> None:
    theirs = nn.RNN(3, 4, nonlinearity="relu")
    layer, x = twin(theirs, plait.RNN, engine, nonlinearity="relu"), torch.randn(5, 2, 3)
    x[2, 0, 0] = float("nan")
    for found, expected in zip(*(gradients(m, m(x)[0].sum()) for m in (layer, theirs)), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


@own_engine
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_activations(engine: str, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    layer, x = plait.GRU(3, 4, engine=engine), torch.randn(5, 2, 3, requires_grad=True)
    expected = torch.autograd.grad(layer(x)[0].square().sum(), x)
    y, _ = checkpoint(layer, x, use_reentrant=reentrant)
    y.square().sum().backward()
    assert_close([x.grad], expected)


def test_meta_device() -> None:
    for make in (plait.LSTM, plait.ImplicitGRU):
        y, _ = make(3, 4, device="meta")(torch.empty(5, 2, 3, device="meta"))
        assert y.shape == (5, 2, 4)
        y.sum().backward()


@pairs
def test_accelerate_the_root(theirs, ours) -> None:
    layer = theirs(3, 4)
    assert type(plait.accelerate(layer)) is ours
    assert layer.engine == "auto"
    assert type(plait.restore(layer)) is theirs


def test_restore_undoes_layers_that_were_plaits_from_the_start() -> None:
    model = nn.Sequential(plait.GRU(3, 4, engine="numpy"), plait.ImplicitGRU(4, 4))
    plait.restore(model)
    assert [type(m) for m in model] == [nn.GRU, plait.ImplicitGRU]


@pytest.mark.parametrize("first", ["parametrize", "accelerate"])
def test_parametrizations_survive_both_ways(first: str) -> None:
    layer, x = nn.GRU(3, 4), torch.randn(5, 2, 3)
    if first == "accelerate":
        plait.accelerate(layer, engine="numpy")
    parametrizations.weight_norm(layer, "weight_hh_l0")
    plait.accelerate(layer, engine="numpy")
    assert isinstance(layer, plait.GRU)
    ours = layer(x)[0]
    g = gradients(layer, ours.square().sum())
    plait.restore(layer)
    assert isinstance(layer, nn.GRU)
    assert not isinstance(layer, plait.GRU)
    assert parametrize.is_parametrized(layer, "weight_hh_l0")
    assert_close([ours, *g], [layer(x)[0], *gradients(layer, layer(x)[0].square().sum())])
    parametrize.remove_parametrizations(layer, "weight_hh_l0")
    assert type(layer) is nn.GRU


def test_accelerate_again_with_another_engine() -> None:
    model = nn.Sequential(nn.GRU(3, 4), plait.LSTM(4, 4))
    for engine in ("auto", "numpy", "torch"):
        plait.accelerate(model, engine)
        assert [layer.engine for layer in model] == [engine] * 2


def test_accelerate_checks_the_engine_before_it_touches_anything() -> None:
    layer = nn.GRU(3, 4)
    with pytest.raises(PlaitError, match="engine 'fast' is not known"):
        plait.accelerate(layer, engine="fast")
    assert type(layer) is nn.GRU


@own_engine
def test_a_parametrization_is_evaluated_once(engine: str) -> None:
    """As spectral_norm's power iteration and anything random need it to be."""

    class Counted(nn.Module):
        calls = 0

        def forward(self, w):
            Counted.calls += 1
            return w

    layer = plait.LSTM(3, 4, engine=engine)
    parametrize.register_parametrization(layer, "weight_ih_l0", Counted())
    Counted.calls = 0
    layer(torch.randn(5, 2, 3))
    assert Counted.calls == 1


@every_engine
def test_a_subclass_may_use_the_names_it_likes(engine: str) -> None:
    class Stateful(plait.LSTM):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            self._state, self.cell, self._stack, self._check, self._weight = None, 1, 2, 3, 4

        def forward(self, x):
            y, self._state = super().forward(x, self._state)
            return y

    layer, x = Stateful(3, 4, engine=engine), torch.randn(5, 2, 3)
    assert not torch.equal(layer(x), layer(x))  # the state is carried on


# --- copies ----------------------------------------------------------------------------------------------------------
def through_pickle(layer):
    return pickle.loads(pickle.dumps(layer))


def through_torch_save(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, through_pickle, through_torch_save])
@pytest.mark.parametrize("origin", ["made", "accelerated"])
def test_copies_work_alike(copied, origin: str) -> None:
    """A pickle of an accelerated layer holds torch's class by default: test_copies.py."""
    is_copy = copied in (copy.deepcopy, copy.copy)
    layer = (
        plait.LSTM(3, 4, 2, engine="numpy")
        if origin == "made"
        else plait.accelerate(nn.LSTM(3, 4, 2), engine="numpy", portable=is_copy)
    )
    other, x = copied(layer), torch.randn(5, 2, 3)
    assert type(other) is plait.LSTM
    assert other.engine == "numpy"
    assert torch.equal(layer(x)[0], other(x)[0])
    if copied is not copy.copy:
        with torch.no_grad():
            other.weight_ih_l0 += 1
        assert not torch.equal(layer(x)[0], other(x)[0])


# --- autograd --------------------------------------------------------------------------------------------------------
@every_engine
def test_functional_call_uses_the_parameters_it_is_given(engine: str) -> None:
    theirs = nn.GRU(3, 4)
    layer, x = twin(theirs, plait.GRU, engine), torch.randn(5, 2, 3)
    doubled = {name: 2 * p.detach() for name, p in theirs.named_parameters()}
    found = torch.func.functional_call(layer, doubled, (x,))[0]
    assert_close([found], [torch.func.functional_call(theirs, doubled, (x,))[0]])
    assert relative(found, layer(x)[0]) > 1e-2


@every_engine
def test_torch_func_grad(engine: str) -> None:
    theirs = nn.LSTM(3, 4, 2, bidirectional=True).double()
    layer, x = twin(theirs, plait.LSTM, engine, bidirectional=True, dtype=torch.float64), torch.randn(5, 2, 3).double()

    def loss(module):
        return lambda p: torch.func.functional_call(module, p, (x,))[0].square().sum()

    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    found, expected = (torch.func.grad(loss(m))(parameters) for m in (layer, theirs))
    assert_close(list(found.values()), list(expected.values()), 1e-10)


@every_engine
@pairs
def test_create_graph_goes_on_to_second_derivatives(engine: str, theirs, ours) -> None:
    a = theirs(3, 4).double()
    b, x = twin(a, ours, engine, dtype=torch.float64), torch.randn(5, 2, 3).double()

    def second(layer):
        inputs = [x.clone().requires_grad_(), *layer.parameters()]
        y, state = layer(inputs[0])
        loss = y.square().sum() + (state[0] if isinstance(state, tuple) else state).sum()
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), inputs)]

    assert_close(second(b), second(a), 1e-10)


@own_engine
def test_gradgradcheck_of_the_implicit_gru(engine: str) -> None:
    layer = plait.ImplicitGRU(1, 2, bidirectional=True, dtype=torch.float64, engine=engine)
    x = torch.randn(3, 2, 1, dtype=torch.float64, requires_grad=True)
    h = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, h: layer(x, h), (x, h))
    assert torch.autograd.gradgradcheck(lambda x, h: layer(x, h), (x, h))


@own_engine
def test_third_derivatives(engine: str) -> None:
    theirs = nn.GRU(1, 2).double()
    layer = twin(theirs, plait.GRU, engine, dtype=torch.float64)

    def third(module):
        x = torch.full((3, 1, 1), 0.3, dtype=torch.float64, requires_grad=True)
        g = module(x)[0].sum()
        for _ in range(3):
            (d,) = torch.autograd.grad(g, x, create_graph=True)
            g = d.square().sum()
        return [g]

    assert_close(third(layer), third(theirs), 1e-10)


@every_engine
def test_two_backwards_through_one_graph(engine: str) -> None:
    layer = plait.LSTM(3, 4, engine=engine)
    y, _ = layer(torch.randn(5, 2, 3))
    first = gradients(layer, y.square().sum(), retain_graph=True)
    second = gradients(layer, y.square().sum())
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        gradients(layer, y.square().sum())


@own_engine
@pytest.mark.parametrize("bidirectional", [False, True])
def test_outputs_may_be_changed_in_place(engine: str, bidirectional: bool) -> None:
    """y shares memory with what the derivative needs: nn.ReLU(inplace=True) after a layer must not spoil it."""
    layer, x = plait.GRU(3, 4, bidirectional=bidirectional, engine=engine), torch.randn(5, 2, 3)
    y, _ = layer(x)
    expected = gradients(layer, y.relu().square().sum())
    y, _ = layer(x)
    assert_close(gradients(layer, y.relu_().square().sum()), expected)


@every_engine
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("make", [plait.LSTM, plait.ImplicitGRU])
def test_without_gradients(engine: str, mode, make) -> None:
    layer, x = make(3, 4, 2, bidirectional=True, engine=engine), torch.randn(5, 2, 3)
    with mode():
        y, _ = layer(x)
        ragged, _ = layer(x, lengths=[5, 2])
    assert not y.requires_grad
    assert_close([y, ragged], [layer(x)[0], layer(x, lengths=[5, 2])[0]], 1e-6)


@own_engine
def test_nothing_outlives_its_graph(engine: str) -> None:
    """No reference cycle, and no tape kept when backward has used it."""
    layer, x = plait.GRU(3, 4, engine=engine), torch.randn(5, 2, 3)
    gc.collect()
    gc.freeze()  # only what is made from now on is looked at
    gc.disable()
    try:
        alive = []
        for _ in range(4):
            y, h = layer(x)
            (y.sum() + h.sum()).backward()
            del y, h
            alive.append(sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()))
    finally:
        gc.enable()
    assert alive[1:] == alive[1:2] * 3


def test_what_is_done_to_the_output_does_not_reach_the_gradient() -> None:
    """Not even behind autograd's back."""
    layer, x = plait.GRU(3, 4, engine="numpy"), torch.randn(5, 2, 3)
    d = torch.randn(5, 2, 4)
    y, _ = layer(x)
    expected = torch.autograd.grad(y, list(layer.parameters()), d)
    y, _ = layer(x)
    y.data.zero_()
    assert_close(torch.autograd.grad(y, list(layer.parameters()), d), expected)


def test_weights_changed_before_backward_are_noticed() -> None:
    layer = plait.GRU(3, 4, engine="numpy")
    y, _ = layer(torch.randn(5, 2, 3))
    with torch.no_grad():
        layer.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@every_engine
def test_only_what_is_asked_for_is_differentiated(engine: str) -> None:
    layer, x = plait.LSTM(3, 4, engine=engine), torch.randn(5, 2, 3, requires_grad=True)
    for name, p in layer.named_parameters():
        p.requires_grad_(name == "bias_ih_l0")
    _, (_, c) = layer(x)
    c.sum().backward()
    assert layer.bias_ih_l0.grad is not None
    assert layer.weight_hh_l0.grad is None
    assert x.grad is not None
    with torch.no_grad():
        assert not layer(x)[0].requires_grad


@every_engine
def test_gradient_clipping(engine: str) -> None:
    layer = plait.GRU(3, 4, engine=engine)
    (100 * layer(torch.randn(5, 2, 3))[0].sum()).backward()
    nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in layer.parameters()]))
    assert norm == pytest.approx(0.5, rel=1e-4)


@own_engine
def test_autocast_leaves_float32_alone_where_it_is_asked_for(engine: str) -> None:
    layer, x = plait.GRU(3, 4, engine=engine, precision="float32"), torch.randn(5, 2, 3)
    expected = outputs_and_gradients(layer, x, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = outputs_and_gradients(layer, x, None)
        half = layer(x.bfloat16(), torch.zeros(1, 2, 4, dtype=torch.bfloat16))[0]
    assert deviation(found, expected)[0] == 0
    assert half.dtype == torch.float32
    packed = pack_sequence([x[:, 0], x[:2, 1]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(packed.to(torch.bfloat16))[0].data.dtype == torch.float32


@own_engine
def test_autocast_does_not_reach_second_derivatives(engine: str) -> None:
    layer = plait.GRU(3, 4, engine=engine, precision="float32")
    x = torch.randn(5, 2, 3, requires_grad=True)

    def both():
        inputs = [x, *layer.parameters()]
        first = torch.autograd.grad(layer(x)[0].square().sum(), inputs, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), inputs)]

    expected = both()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = both()
    assert {g.dtype for g in found} == {torch.float32}
    assert_close(found, expected, 1e-6)


def test_autocast_with_torchs_own_layers_is_torchs() -> None:
    layer, x = plait.GRU(3, 4, engine="torch"), torch.randn(5, 2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x)[0].dtype == nn.GRU(3, 4)(x)[0].dtype


# --- what is not there says so ---------------------------------------------------------------------------------------
@every_engine
def test_vmap_says_why_not(engine: str) -> None:
    layer = plait.LSTM(3, 4, engine=engine)
    why = f"vmap .* engine '{engine}' has a batch axis of its own. Put the mapped axis"
    with pytest.raises(PlaitError, match=why):
        torch.func.vmap(lambda x: layer(x)[0])(torch.randn(7, 5, 2, 3))
    x, many = torch.randn(5, 2, 3), {name: torch.stack([p.detach()] * 3) for name, p in layer.named_parameters()}
    with pytest.raises(PlaitError, match=why):  # an ensemble of models
        torch.func.vmap(lambda p: torch.func.functional_call(layer, p, (x,))[0])(many)


@every_engine
def test_jvp_says_why_not(engine: str) -> None:
    layer, x = plait.LSTM(3, 4, engine=engine), torch.randn(5, 2, 3)
    with pytest.raises(PlaitError, match=f"jvp: engine '{engine}' differentiates this layer in reverse only"):
        torch.func.jvp(lambda x: layer(x)[0], (x,), (x,))


# --- torch.compile ---------------------------------------------------------------------------------------------------
class Wrapped(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(8, 1)

    def forward(self, x):
        y, state = self.layer(x * 2)
        return self.head(y), state


def called_twice(call, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The outputs and last states of one call, and the gradients of a loss of all those of another."""
    (y, state), again = call(x), call(x)
    loss = sum(t.square().sum() for t in (again[0], *states_of(again[1])))
    return [y, *states_of(state), *gradients(model, loss)]


@pytest.mark.filterwarnings("error:Dynamo detected")
@pytest.mark.parametrize(
    ("make", "engine"),
    [*((plait.ImplicitGRU, engine) for engine in ENGINES), (plait.LSTM, "torch"), (plait.LSTM, "fused")],
)
def test_compile(engine: str, make, dynamo) -> None:
    """As it comes, dynamo breaks its graph at every subclass of nn.LSTM; the layer then runs as it does without it."""
    model, x = Wrapped(make(3, 4, 2, bidirectional=True, engine=engine)), torch.randn(5, 2, 3)
    compiled = torch.compile(model, backend="aot_eager")
    found = called_twice(compiled, model, x)
    assert_close(found, called_twice(model, model, x))


@pytest.mark.parametrize(
    ("engine", "make", "layers"),  # an engine is no more than an argument of the op
    [*((e, plait.ImplicitGRU, 2) for e in ENGINES[1:]), *(("fused", plait.LSTM, layers) for layers in (1, 2))],
)
def test_compiled_into_one_graph_a_layer_is_one_opaque_op(engine: str, make, layers: int, dynamo) -> None:
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    model, x = Wrapped(make(3, 4, layers, bidirectional=True, engine=engine)), torch.randn(5, 2, 3)
    with dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        found = called_twice(compiled, model, x)
    assert_close(found, called_twice(model, model, x))
    (graph,) = graphs
    ops = [node for node in graph.graph.nodes if "plait" in str(node.target)]
    assert len(ops) == layers
    assert not [node for node in graph.graph.nodes if "tanh" in str(node.target) or "sigmoid" in str(node.target)]


def test_compile_with_lengths_packed_and_other_shapes(dynamo) -> None:
    layer = plait.ImplicitGRU(3, 4, engine="fused")
    compiled = torch.compile(layer, backend="aot_eager")
    for T, B in ((5, 2), (7, 3)):
        x, lengths = torch.randn(T, B, 3), torch.tensor([T, 2, 4][:B])
        packed = pack_sequence([x[:n, b] for b, n in enumerate(lengths)], enforce_sorted=False)
        for args in ((x,), (x, None, lengths), (packed,)):
            found, expected = (f(*args)[0] for f in (compiled, layer))
            if isinstance(found, PackedSequence):
                found, expected = found.data, expected.data
            g, h = (gradients(layer, y.square().sum()) for y in (found, expected))
            assert_close([found, *g], [expected, *h])


@pytest.mark.slow
def test_compile_with_the_default_backend(dynamo) -> None:
    model, x = Wrapped(plait.ImplicitGRU(3, 4, 2, bidirectional=True, engine="numpy")), torch.randn(5, 2, 3)
    compiled = torch.compile(model, fullgraph=True)
    found = called_twice(compiled, model, x)
    assert_close(found, called_twice(model, model, x))


@own_engine
def test_opaque_op_is_well_formed(engine: str) -> None:
    layer = plait.LSTM(3, 4, 1, bidirectional=True, engine=engine)
    tensors = [*(torch.randn(2, 2, 4, requires_grad=True) for _ in range(2)), *layer.parameters()]
    for sizes in (None, torch.tensor([2, 2, 1])):
        x = torch.randn(*((2, 2) if sizes is None else (5,)), 3, requires_grad=True)
        args = (x, tensors, sizes, 2, f"{engine} 2 1 1 0 serial 0 lstm", True)
        torch.library.opcheck(torch.ops.plait.layer, args)


def test_functorch_and_an_ordinary_backward_on_one_forward() -> None:
    """Each would use the tape up, and both have the same one."""
    layer, x = plait.GRU(3, 5, engine="fused"), torch.randn(4, 2, 3)
    for p in layer.parameters():
        p.requires_grad_()
    expected = torch.autograd.grad(layer(x.requires_grad_())[0].sum(), x)[0]
    out, pull = torch.func.vjp(lambda v: layer(v)[0], x.detach())
    out.sum().backward()
    assert torch.allclose(pull(torch.ones_like(out))[0], expected, atol=1e-6)
    assert torch.allclose(pull(torch.ones_like(out))[0], expected, atol=1e-6)


def test_a_layer_cannot_be_traced_by_torch_jit() -> None:
    layer = plait.LSTM(3, 4, engine="fused")
    with torch.no_grad(), pytest.raises(PlaitError, match=r"torch.jit.trace .* plait.restore"):
        torch.jit.trace(layer, torch.randn(2, 1, 3))


def test_weights_with_other_strides_between_the_passes() -> None:
    found = []
    for engine in ("fused", "python"):
        torch.manual_seed(0)
        layer = plait.LSTM(8, 2, dtype=torch.float64, engine=engine)  # weight_ih is (8, 8)
        y = layer(torch.randn(5, 3, 8, dtype=torch.float64))[0]
        layer.weight_ih_l0.data = layer.weight_ih_l0.data.t()
        y.sum().backward()
        found.append(layer.weight_ih_l0.grad)
    torch.testing.assert_close(*found)


def test_copies_of_weights_do_not_wait_for_backward() -> None:
    layer = plait.LSTM(6, 6, engine="fused")
    layer.weight_hh_l0.data = layer.weight_hh_l0.data.t().contiguous().t()
    state, x = None, torch.randn(1, 2, 6)
    for _ in range(20):
        y, state = layer(x, state)
    gc.collect()
    assert y.requires_grad
    assert sum(type(o) is Packed for o in gc.get_objects()) <= 1


def test_hooks_that_move_saved_tensors_away_free_them() -> None:
    layer, x, h, c = plait.LSTM(4, 5), torch.randn(3, 2, 4), torch.randn(1, 2, 5), torch.randn(1, 2, 5)
    alive = weakref.ref(h)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):
        y = layer(x, (h, c))[0]
    del h
    gc.collect()
    assert y.requires_grad
    assert alive() is None


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 6])
def test_the_op_refuses_a_wrong_number_of_weights(count: int) -> None:
    tensors = [*plait.LSTM(4, 5).parameters()] * 2
    rest = (None, 2, "fused 1 1 0 0 serial 0 lstm", False)
    with pytest.raises(PlaitError, match=r"weights: expected 4, or one more|weight w_hr is"):
        torch.ops.plait.layer(torch.randn(3, 2, 4), tensors[:count], *rest)
