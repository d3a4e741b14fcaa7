"""Anyone's cell: plait.layer makes a layer of it that does all that torch.nn's do, in every engine."""

import copy
import inspect
import io
import pickle
import re
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import plait
from plait import PlaitError
from plait.ladder.compare import TOLERANCE, deviation, outputs_and_gradients
from plait.layers import CellLayer, states_of
from reference import Formula, Packed
from some_cells import MGU, Decay, PeepholeLSTM

ENGINES = ("python", "numpy", "torch:steps", "torch", "fused")
T, B, I, H = 5, 3, 4, 6
LENGTHS = [3, 5, 1]


# The same equations once more, as one writes them in torch. a = W x + b, u = R h + c, all gates in one.
def mgu(a: Tensor, u: Tensor, state: list[Tensor], _) -> tuple[Tensor, ...]:
    (h,), (a_f, a_n), (u_f, u_n) = state, a.chunk(2), u.chunk(2)
    f = torch.sigmoid(a_f + u_f)
    return ((1 - f) * h + f * torch.tanh(a_n + f * u_n),)


def peephole_lstm(a: Tensor, u: Tensor, state: list[Tensor], params: list[Tensor]) -> tuple[Tensor, ...]:
    (_, c), (p_i, p_f, p_o), (i, f, g, o) = state, params, (a + u).chunk(4)
    new = torch.sigmoid(f + p_f * c) * c + torch.sigmoid(i + p_i * c) * torch.tanh(g)
    return torch.sigmoid(o + p_o * new) * torch.tanh(new), new


def decay(a: Tensor, u: Tensor, state: list[Tensor], _) -> tuple[Tensor, ...]:
    (h,), (s, n) = state, (a + u).chunk(2)
    k = torch.exp(-torch.log1p(torch.exp(s)))
    return (k * h + (1 - k) * torch.tanh(n),)


FORMULAS = {MGU: mgu, PeepholeLSTM: peephole_lstm, Decay: decay}
CELLS = list(FORMULAS)
every_engine = pytest.mark.parametrize("engine", ENGINES)
quick_engine = pytest.mark.parametrize("engine", ENGINES[1:])
every_cell = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda dtype: str(dtype)[6:])


def draw(layer: nn.Module, batch: int = B) -> tuple[Tensor, list[Tensor]]:
    """An input, and initial states."""
    made = {"dtype": layer.weight_ih_l0.dtype}
    x, count = torch.randn(T, batch, layer.input_size, **made), layer.num_layers * (1 + layer.bidirectional)
    widths = [layer.proj_size or layer.hidden_size, *[layer.hidden_size] * (len(layer._plait_cell.states) - 1)]
    return x, [torch.randn(count, batch, width, **made) for width in widths]


def assert_same(layer: nn.Module, equations, form: str, with_hx: bool) -> None:
    """Outputs, last states and the gradients of the input, of the states and of every parameter are the formula's."""
    x, hx = draw(layer)
    peer, lengths = Formula(layer, equations), None
    given: Tensor | PackedSequence = x.transpose(0, 1).contiguous() if layer.batch_first else x
    their_lengths = None
    if form == "unbatched":
        given, hx = x[:, 1], [s[:, 1] for s in hx]
    elif form == "lengths":
        lengths, their_lengths = torch.tensor(LENGTHS), LENGTHS
    elif form == "packed":
        given = pack_padded_sequence(given, torch.tensor(LENGTHS), layer.batch_first, enforce_sorted=False)
        peer = Packed(peer)
    states = hx if with_hx else None
    found = outputs_and_gradients(layer, given, states, lengths)
    expected = outputs_and_gradients(peer, given, states, their_lengths)
    found_at = deviation(found, {name.replace("d_layer.", "d_"): value for name, value in expected.items()})
    assert found_at[0] <= TOLERANCE[x.dtype], found_at


FORMS = [  # form of the input, options, whether states are given
    ("tensor", {"num_layers": 2, "bidirectional": True}, True),
    ("lengths", {"bias": False, "batch_first": True, "bidirectional": True}, False),
    ("packed", {"num_layers": 2, "batch_first": True, "dropout": 0.5}, True),
    ("unbatched", {"bidirectional": True}, True),
]


@every_cell
@every_engine
@every_dtype
def test_it_is_its_formula(cell, engine: str, dtype: torch.dtype) -> None:
    if (cell, engine, dtype) == (Decay, "fused", torch.float32):
        pytest.skip("to compile it takes longer than it tells more than float64 and the other cells do")
    for form, options, with_hx in FORMS:
        layer = plait.layer(cell, I, H, engine=engine, dtype=dtype, **options).eval()
        assert_same(layer, FORMULAS[cell], form, with_hx)


@every_cell
def test_it_is_short(cell) -> None:
    assert len(inspect.getsource(cell).splitlines()) <= 40
    assert cell.__doc__


@pytest.mark.parametrize(
    ("engine", "dtype"),
    [*((engine, torch.float64) for engine in ENGINES), ("numpy", torch.float32), ("torch", torch.float32)],
)
@pytest.mark.parametrize("form", ["tensor", "packed"])
def test_a_projection_if_the_step_does_not_read_h(engine: str, dtype: torch.dtype, form: str) -> None:
    layer = plait.layer(PeepholeLSTM, I, H, 2, bidirectional=True, proj_size=5, engine=engine, dtype=dtype)
    assert layer.weight_hr_l1_reverse.shape == (5, H)
    assert_same(layer, peephole_lstm, form, True)


@pytest.mark.parametrize("engine", ["auto", "python", "torch"])
def test_no_projection_if_the_step_reads_h(engine: str) -> None:
    with pytest.raises(PlaitError, match="proj_size 2: the step of cell mgu reads h itself, and a projection leaves "):
        plait.layer(MGU, I, H, proj_size=2, engine=engine)


def test_what_is_no_cell_is_said() -> None:
    for other in (3, MGU.step, nn.LSTM, plait.Cell):
        with pytest.raises(PlaitError, match=r"expected a class derived from plait\.Cell, or one of rnn, rnn_re"):
            plait.layer(other, I, H)
    with pytest.raises(PlaitError, match="cell 'mgu' is not known: did you mean 'gru'"):
        plait.layer("mgu", I, H)


# --- a module as any other --------------------------------------------------------------------------------------------
def test_parameters_have_torchs_names_and_a_block_of_rows_for_each_gate() -> None:
    options = {"num_layers": 2, "bidirectional": True}
    names = set(nn.LSTM(I, H, proj_size=2, **options).state_dict())
    layer = plait.layer(PeepholeLSTM, I, H, proj_size=2, **options)
    ends = ("l0", "l0_reverse", "l1", "l1_reverse")
    assert set(layer.state_dict()) == names | {f"{p}_{end}" for p in ("p_i", "p_f", "p_o") for end in ends}
    assert layer.p_i_l1_reverse.shape == (H,)
    assert layer.weight_ih_l1.shape == (4 * H, 4)
    assert plait.layer(MGU, I, H).weight_hh_l0.shape == (2 * H, H)
    bound = H**-0.5
    for p in layer.parameters():
        assert p.requires_grad
        assert 0 < p.abs().max() <= bound
    assert repr(plait.layer(MGU, 3, 4, 2, batch_first=True)) == "CellLayer(MGU, 3, 4, num_layers=2, batch_first=True)"
    assert set(plait.layer(MGU, I, H, bias=False).state_dict()) == {"weight_ih_l0", "weight_hh_l0"}
    a, b = (plait.layer(PeepholeLSTM, I, H, **options) for _ in range(2))
    assert not torch.equal(a.p_o_l1, b.p_o_l1)
    b.load_state_dict(a.state_dict())
    x, hx = draw(a)
    assert deviation(outputs_and_gradients(b, x, hx), outputs_and_gradients(a, x, hx))[0] == 0


def pickled(layer: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(layer))


def saved(layer: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@every_cell
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved], ids=["deepcopy", "pickle", "save"])
def test_copies_compute_the_same_and_share_nothing(cell, copied) -> None:
    layer = plait.layer(cell, I, H, 2, bidirectional=True, engine="numpy")
    other, (x, hx) = copied(layer), draw(layer)
    assert type(other) is CellLayer
    assert (other.engine, other._plait_cell) == ("numpy", cell)
    assert deviation(outputs_and_gradients(other, x, hx), outputs_and_gradients(layer, x, hx))[0] == 0
    nn.init.zeros_(other.weight_ih_l0)
    assert layer.weight_ih_l0.any()


def test_accelerate_and_restore_leave_it_alone_but_for_the_engine() -> None:
    model = nn.Sequential(plait.layer(MGU, I, H), nn.LSTM(I, H))
    before = dict(model.named_parameters())
    plait.accelerate(model, engine="numpy")
    assert type(model[0]) is CellLayer
    assert (model[0].engine, type(model[1])) == ("numpy", plait.LSTM)
    plait.restore(model)
    assert type(model[0]) is CellLayer
    assert (model[0].engine, type(model[1])) == ("numpy", nn.LSTM)
    assert all(p is before[name] for name, p in model.named_parameters())


@quick_engine
def test_another_dtype_autocast_and_no_grad(engine: str) -> None:
    layer = plait.layer(PeepholeLSTM, I, H, 2, bidirectional=True, engine=engine)
    x, hx = draw(layer)
    y, state = layer(x, tuple(hx))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, _ = layer(x.bfloat16(), tuple(s.bfloat16() for s in hx))
    assert low.dtype == (torch.bfloat16 if engine == "fused" else torch.float32)
    torch.testing.assert_close(low.float(), y, rtol=0.02, atol=0.02)
    low.sum().backward()
    assert layer.p_f_l1.grad.any()
    for block in (torch.no_grad(), torch.inference_mode(), plait.packed(layer)):
        with block:
            again, last = layer(x, tuple(hx))
        assert again.requires_grad == isinstance(block, type(plait.packed(layer)))
        torch.testing.assert_close((again, *last), (y, *state), rtol=1e-5, atol=1e-6)
    double, _ = layer.to(torch.float64)(x.double(), tuple(s.double() for s in hx))
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), y, rtol=1e-5, atol=1e-6)
    assert_same(layer, peephole_lstm, "tensor", True)


@quick_engine
def test_within_packed_steps_are_the_sequence(engine: str) -> None:
    layer = plait.layer(PeepholeLSTM, I, H, 2, engine=engine)
    x, hx = draw(layer)
    y, last = layer(x, tuple(hx))
    state, rows = tuple(hx), []
    with plait.packed(layer), torch.no_grad():
        for t in range(T):
            row, state = layer(x[t : t + 1], state)
            rows.append(row)
    torch.testing.assert_close((torch.cat(rows), *state), (y, *last), rtol=1e-5, atol=1e-6)
    layer.p_f_l0.data.add_(1.0)  # the block is over: nothing is remembered
    assert not torch.allclose(layer(x, tuple(hx))[0], y, atol=1e-4)


@quick_engine
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["dense", "ragged"])
def test_second_derivatives(engine: str, lengths) -> None:
    """Of the vectors, too, and against the formula's."""
    layer = plait.layer(PeepholeLSTM, 2, 3, bidirectional=True, engine=engine, dtype=torch.float64)
    found = []
    x = torch.randn(3, 2, 2, dtype=torch.float64) if lengths is None else torch.randn(5, 3, 2, dtype=torch.float64)
    for m in (layer, Formula(layer, peephole_lstm)):
        given, parameters = x.clone().requires_grad_(), list(m.parameters())
        y, _ = m(given, None, lengths)
        first = torch.autograd.grad(y.square().sum(), [given, *parameters], create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), [given, *parameters]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@quick_engine
def test_functional_call_sees_other_tensors_and_func_grad_them(engine: str) -> None:
    layer = plait.layer(PeepholeLSTM, I, H, engine=engine, dtype=torch.float64)
    x, _ = draw(layer)
    others = {name: p.detach() + 0.1 for name, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], m: nn.Module) -> Tensor:
        return torch.func.functional_call(m, parameters, (x,))[0].square().sum()

    found, expected = (torch.func.grad(loss)(others, m) for m in (layer, Formula(layer, peephole_lstm)))
    assert deviation(found, expected)[0] <= 1e-10


# --- torch.compile ----------------------------------------------------------------------------------------------------
class Wrapped(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x, hx):
        y, state = self.layer(x if isinstance(x, PackedSequence) else x * 2, hx)
        return y, state


def in_two_forms(x: Tensor) -> list[Tensor | PackedSequence]:
    return [x, pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)]


def test_compiled_with_a_packing_that_is_sorted(dynamo) -> None:
    layer = plait.layer(MGU, I, H, engine="numpy")
    x, hx = draw(layer)
    packed = pack_padded_sequence(x, torch.tensor([5, 3, 1]))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for state in (None, hx[0]):
        (y, h), (y1, h1) = (m(packed, state) for m in (compiled, layer))
        assert torch.equal(y.data, y1.data)
        assert torch.equal(h, h1)


@pytest.mark.parametrize("engine", ["torch", "fused"])
def test_compiled_into_one_graph(engine: str, dynamo) -> None:
    layer = plait.layer(PeepholeLSTM, I, H, 2, bidirectional=True, engine=engine)
    model, (x, hx) = Wrapped(layer), draw(layer)
    for given in in_two_forms(x):
        dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        found = run_compiled(compiled, model, given, hx)
        assert deviation(found, run_compiled(model, model, given, hx))[0] <= 1e-5


def run_compiled(call, model: nn.Module, x, hx: list[Tensor]) -> dict[str, Tensor]:
    y, state = call(x, tuple(hx) if len(hx) > 1 else hx[0])
    outputs = [y.data if isinstance(y, PackedSequence) else y, *states_of(state)]
    gradients = torch.autograd.grad(sum(o.square().sum() for o in outputs), list(model.parameters()))
    named = {name: g for (name, _), g in zip(model.named_parameters(), gradients, strict=True)}
    return named | {f"output {k}": o for k, o in enumerate(outputs)}


# --- steps that cannot be traced --------------------------------------------------------------------------------------
class Normed(plait.Cell):
    """h' = tanh(a / rms(a)), a = W x + b + R h + c, over the units: each needs all others."""

    gates, states = ("a",), ("h",)

    def step(wx, rh, state, ops):
        a = wx[0] + rh[0]
        return ops.tanh(a / (a.square().mean(-1, keepdim=True) + 1e-3).sqrt())


class Branching(plait.Cell):
    """Python decides by what the values are."""

    gates, states = ("a",), ("h",)

    def step(wx, rh, state, ops):
        (h,) = state
        if h.sum() > 0:
            return ops.tanh(wx[0] + rh[0])
        return ops.sigmoid(wx[0] + rh[0]) - 0.5 * h


class Torchs(plait.Cell):
    """A function of torch in place of one of ops; and a vector."""

    gates, states, params = ("a",), ("h", "m"), ("p",)

    def step(wx, rh, state, params, ops):
        (_, m), (p,) = state, params
        m = 0.5 * m + p * torch.sin(wx[0] + rh[0])
        return ops.tanh(m), m


def normed(a: Tensor, u: Tensor, state: list[Tensor], _) -> tuple[Tensor, ...]:
    a = a + u
    return (torch.tanh(a / ((a * a).sum() / a.shape[0] + 1e-3) ** 0.5),)


def torchs(a: Tensor, u: Tensor, state: list[Tensor], params: list[Tensor]) -> tuple[Tensor, ...]:
    m = state[1] / 2 + params[0] * torch.sin(a + u)
    return torch.tanh(m), m


UNTRACED = {
    Normed: (r"test_own_cells\.py, line \d+, `return ops\.tanh\(a / \(a\.square.*`: a value has no \.square", normed),
    Torchs: (r"line \d+, `m = 0\.5 .* torch\.sin\(.*`: torch's sin does not know these values", torchs),
    Branching: (r"line \d+, `if h\.sum\(\) > 0:`: a value has no \.sum", None),
}
untraced = pytest.mark.parametrize("cell", [Normed, Torchs], ids=lambda cell: cell.name)


@pytest.mark.parametrize("cell", list(UNTRACED), ids=lambda cell: cell.name)
def test_a_step_that_cannot_be_traced_is_said_with_its_line(cell) -> None:
    sentence = UNTRACED[cell][0]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        layer = plait.layer(cell, I, H)
        layer(torch.randn(T, B, I))[0].sum().backward()
    with pytest.raises(PlaitError, match=r"^proj_size 1: whether the step reads h is not known\. cell .* Leave proj"):
        plait.layer(cell, I, H, proj_size=1)
    (only,) = said
    assert re.search(sentence + r".*Engine 'auto' takes 'torch' for it, which is slower\.$", str(only.message))
    assert only.filename == __file__
    for engine in ("fused", "numpy", "python", "torch:steps"):
        layer.engine = engine
        with pytest.raises(PlaitError, match=sentence + r".*\. Use engine='torch', which runs it by autograd\.$"):
            layer(torch.randn(T, B, I))


@untraced
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", FORMS, ids=[form for form, *_ in FORMS])
@every_dtype
def test_it_runs_in_torch_by_autograd(cell, form, dtype: torch.dtype) -> None:
    kind, options, with_hx = form
    layer = plait.layer(cell, I, H, engine="torch", dtype=dtype, **options).eval()
    assert_same(layer, UNTRACED[cell][1], kind, with_hx)


@pytest.mark.filterwarnings("ignore:cell .* cannot be traced")
def test_untraced_it_is_twice_differentiable_copied_cast_and_within_blocks() -> None:
    layer = plait.layer(Torchs, 2, 3, bidirectional=True, dtype=torch.float64)
    x, hx = draw(layer)
    peer, given = Formula(layer, torchs), x.clone().requires_grad_()
    found = []
    for m in (copy.deepcopy(layer), peer):
        y, _ = m(given, tuple(hx))
        first = torch.autograd.grad(y.square().sum(), [given, *m.parameters()], create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), [given, *m.parameters()]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    expected = peer(x, tuple(hx))[0]
    with plait.packed(layer), torch.no_grad():
        y = pickled(layer)(x, tuple(hx))[0]
        torch.testing.assert_close(layer(x, tuple(hx))[0], y)
    assert not y.requires_grad
    torch.testing.assert_close(y, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = layer.float()(x.float(), tuple(s.float() for s in hx))[0]
    assert low.dtype == torch.float32
    torch.testing.assert_close(low.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:cell .* cannot be traced")
def test_python_that_depends_on_values_runs_as_it_is() -> None:
    layer = plait.layer(Branching, I, H, bidirectional=True, dtype=torch.float64)
    (x, _), ways = draw(layer, batch=1), set()

    def equations(a: Tensor, u: Tensor, state: list[Tensor], _) -> tuple[Tensor, ...]:
        (h,) = state
        ways.add(h.sum().item() > 0)
        return (torch.where(h.sum() > 0, torch.tanh(a + u), torch.sigmoid(a + u) - 0.5 * h),)

    found, expected = (outputs_and_gradients(m, x, None) for m in (layer, Formula(layer, equations)))
    assert deviation(found, expected)[0] <= 1e-10
    assert ways == {False, True}


@pytest.mark.filterwarnings("ignore:cell .* cannot be traced")
def test_untraced_within_torch_compile(dynamo) -> None:
    layer = plait.layer(Torchs, I, H, 2, bidirectional=True)
    model, (x, hx) = Wrapped(layer), draw(layer)
    for given in in_two_forms(x):
        compiled = torch.compile(model, backend="aot_eager")
        found = run_compiled(compiled, model, given, hx)
        assert deviation(found, run_compiled(model, model, given, hx))[0] <= 1e-5


# --- what a step reads from outside, and steps that are just wrong ----------------------------------------------------
FACTOR = 0.5


class Scaled(plait.Cell):
    """It reads a global, and writes in place where there are arrays."""

    gates, states = ("a",), ("h",)

    def step(wx, rh, state, ops):
        (h,) = state
        h += ops.tanh(wx[0] + rh[0]) * FACTOR
        return h


def test_all_derivatives_are_of_the_text_that_was_traced(monkeypatch) -> None:
    """A global that changes later changes none of them; and the text writes nothing in place."""
    layer = plait.layer(Scaled, I, H, dtype=torch.float64)
    x = torch.randn(T, B, I, dtype=torch.float64, requires_grad=True)

    def derivatives() -> list[Tensor]:
        y, _ = layer(x)
        (d_x,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return [y, d_x, *torch.autograd.grad(d_x.square().sum(), x)]

    before = derivatives()
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    for a, b in zip(derivatives(), before, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def wrong(step) -> type[plait.Cell]:
    return type("Wrong", (plait.Cell,), {"gates": ("a",), "states": ("h",), "step": step})


def returns_nothing(wx, rh, state, ops):
    ops.tanh(wx[0] + rh[0])


def asks_for_a_gate_too_many(wx, rh, state, ops):
    return wx[0] + rh[1]


def decides_by_a_value(wx, rh, state, ops):
    return wx[0] if wx[0] > 0 else rh[0]


def writes_to_its_argument(wx, rh, state, ops):
    wx[0] = wx[0] + rh[0]
    return wx[0]


def sums_its_units(wx, rh, state, ops):
    return (wx[0] + rh[0]).sum(-1)


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (returns_nothing, "Engine 'torch' cannot run it either"),
        (asks_for_a_gate_too_many, "Engine 'torch' cannot run it either: IndexError"),
        (decides_by_a_value, "use ops.where. Engine 'torch' cannot run it either"),
        (writes_to_its_argument, "Engine 'torch' cannot run it either: TypeError"),
        (sums_its_units, r"On tensors its new states are \[\(2,\)\]: expected \(2, 6\)"),
    ],
)
def test_a_step_that_nobody_can_run_is_refused_at_once(step, sentence: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not the warning that it is slow
        with pytest.raises(PlaitError, match=sentence):
            plait.layer(wrong(step), I, H)
