"""checkpoint=: states at some steps are kept, the stretches between them are walked again in the backward pass."""

import copy
import pickle
import random
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.rnn import pack_padded_sequence

import plait
from plait import PlaitError, engines
from plait.engines import stretches
from plait.kernels.launch import threads
from plait.kernels.launch.choices import Sized
from plait.ladder.compare import worst

KINDS = ("LSTM", "GRU", "RNN", "ImplicitGRU", "own")
FORMS = ("dense", "padded", "packed")
# Sums over all rows are added up stretch by stretch. In float32 the error of either order is that of a long sum.
WEIGHTS = {torch.float32: 1e-6, torch.float64: 1e-14}


class Direct(plait.Cell):
    """Its h goes on by itself, too, and one gate needs R h apart."""

    gates = ("f", "n")
    states = ("h",)
    params = ("p",)

    @staticmethod
    def step(wx, rh, state, params, ops):
        (h,), (p,) = state, params
        f = ops.sigmoid(wx[0] + rh[0])
        return (h - f * h + f * ops.tanh(wx[1] + p * f * rh[1]),)


def made(kind: str, *args, **options) -> nn.RNNBase:
    return plait.layer(Direct, *args, **options) if kind == "own" else getattr(plait, kind)(*args, **options)


class Case:
    """A layer with checkpoint= and the same one without, and a batch for them."""

    def __init__(self, seed: int, **fixed) -> None:
        r = random.Random(seed)
        torch.manual_seed(seed)
        o = {"kind": r.choice(KINDS), "form": r.choice(FORMS), "T": r.choice((1, 5, 17, 40)), "B": r.choice((1, 3, 9))}
        o |= {"I": r.choice((1, 8, 40)), "H": r.choice((3, 16, 33)), "dtype": r.choice((torch.float32, torch.float64))}
        o |= {"stateful": r.random() < 0.5, "learns_x": r.random() < 0.7, "packed": r.random() < 0.2}
        options = {"num_layers": r.choice((1, 2, 3)), "bidirectional": r.random() < 0.4, "bias": r.random() < 0.7}
        options["batch_first"] = r.random() < 0.3
        if options["num_layers"] > 1 and r.random() < 0.5:
            options["dropout"] = r.choice((0.3, 1.0))
        if o["kind"] == "LSTM" and r.random() < 0.3:
            options["proj_size"] = 2
        checkpoint = r.choice(("auto", 1, 3, 7, 100))
        for name, value in fixed.items():
            (o if name in o else options)[name] = value
        self.checkpoint = options.pop("checkpoint", checkpoint)
        self.__dict__.update(o)
        self.seed, self.options, self.dtype = seed, options, o["dtype"]
        self.plain = made(self.kind, self.I, self.H, dtype=self.dtype, engine="fused", **options)
        self.layer = copy.deepcopy(self.plain)
        self.layer.checkpoint = self.checkpoint
        D, P = 1 + self.plain.bidirectional, self.plain.proj_size or self.H
        self.x = torch.randn(self.T, self.B, self.I, dtype=self.dtype)
        self.x = self.x.transpose(0, 1) if self.plain.batch_first else self.x
        self.lengths = [r.randint(1, self.T) for _ in range(self.B)]
        widths = [P, self.H] if self.kind == "LSTM" else [P]
        self.hx = [torch.randn(self.plain.num_layers * D, self.B, w, dtype=self.dtype) for w in widths]
        self.d = torch.randn(self.T * self.B, D * P, dtype=self.dtype)

    def outputs(self, layer: nn.RNNBase, x: Tensor, hx: list[Tensor]) -> list[Tensor]:
        state = (tuple(hx) if len(hx) > 1 else hx[0]) if hx else None
        torch.manual_seed(self.seed)
        if self.form == "packed":
            x = pack_padded_sequence(x, torch.tensor(self.lengths), layer.batch_first, enforce_sorted=False)
        y, last = layer(x, state, lengths=self.lengths if self.form == "padded" else None)
        return [y.data if self.form == "packed" else y, *(last if isinstance(last, tuple) else (last,))]

    def results(self, layer: nn.RNNBase, times: int = 1) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs, the next random number, gradients of inputs; and those of the weights."""
        x = self.x.clone().requires_grad_(self.learns_x)
        hx = [s.clone().requires_grad_() for s in self.hx] if self.stateful else []
        inputs = [*([x] if self.learns_x else []), *hx]
        with plait.packed(layer) if self.packed else nullcontext():
            y, *last = self.outputs(layer, x, hx)
            after = torch.rand(1)
            flat = y.flatten(0, -2)
            loss = (flat * self.d[: len(flat)]).sum() + sum(s.sin().sum() for s in last)
            for k in range(times):
                found = torch.autograd.grad(loss, [*inputs, *layer.parameters()], retain_graph=k < times - 1)
        outputs = [y.detach(), *[s.detach() for s in last], after]
        return [*outputs, *found[: len(inputs)]], list(found[len(inputs) :])

    def exact(self) -> list[Tensor]:
        """The gradients of the weights in float64."""
        double = copy.deepcopy(self)
        for name in ("x", "d"):
            setattr(double, name, getattr(self, name).double())
        double.hx, double.layer = [s.double() for s in self.hx], copy.deepcopy(self.plain).double()
        return double.results(double.layer)[1]

    def check(self, times: int = 1) -> None:
        expected, theirs = self.results(self.plain, times)
        found, ours = self.results(self.layer, times)
        for k, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert torch.equal(a.isnan(), b.isnan()), k
            assert torch.equal(a.nan_to_num(), b.nan_to_num()), k
        limit = WEIGHTS[self.dtype]
        if worst(ours, theirs) > limit and self.dtype is torch.float32:
            exact = self.exact()
            assert worst(ours, exact) <= max(limit, worst(theirs, exact))
        elif self.dtype is torch.float64:
            assert worst(ours, theirs) <= limit


@pytest.mark.parametrize("count", [1, 2])
def test_random_calls_give_the_same_bits(count: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        for seed in range(1000 * count, 1000 * count + 40):
            Case(seed).check(times=1 + seed % 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_each_cell_in_each_form(kind: str, form: str, bidirectional: bool) -> None:
    more = {"num_layers": 2, "dropout": 0.4, "stateful": True, "learns_x": True, "T": 17, "B": 3, "checkpoint": 4}
    Case(1, kind=kind, form=form, bidirectional=bidirectional, **more).check(times=2)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_products_by_torch_have_the_same_bits(bidirectional: bool, monkeypatch) -> None:
    """torch.mm rounds a row in another way if there are few: so such a stretch has many."""
    sized = {"kind": "RNN", "form": "dense", "B": 16, "I": 700, "H": 512, "packed": False, "learns_x": True}
    case = Case(2, T=200, dtype=torch.float32, num_layers=1, bidirectional=bidirectional, checkpoint=3, **sized)
    monkeypatch.setattr(engines.get("fused"), "plans", {})
    monkeypatch.setattr(Sized, "ours", lambda *_: False)
    monkeypatch.setattr(Sized, "folded", False)
    case.check()
    cuts, real = [], stretches.Stretches.cuts
    monkeypatch.setattr(stretches.Stretches, "cuts", lambda self, r: (cuts.append(found := real(self, r)), found)[1])
    case.results(case.layer)
    assert {t1 - t0 for found in cuts for t0, t1 in found} == {66, 68}
    assert 66 * case.B >= stretches.TORCH_ROWS > 63 * case.B


def test_numbers_that_are_none_stay_where_they_are() -> None:
    for kind, number in (("LSTM", float("nan")), ("GRU", float("inf"))):
        case = Case(3, kind=kind, form="padded", T=17, B=3, checkpoint=4, dtype=torch.float32, learns_x=True)
        case.x[0, 0, 0] = number
        y = case.outputs(case.plain, case.x, [])[0]
        case.check()
        assert kind == "GRU" or (y.isnan().any() and not y.isnan().all())


# --- what is kept
def bytes_kept(layer: nn.RNNBase, x: Tensor) -> int:
    given = {t.data_ptr() for t in (x, *layer.parameters())}
    found: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        if t.data_ptr() not in given:
            found[t.data_ptr()] = t.nbytes
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        layer(x)
    return sum(found.values())


def test_memory_grows_with_the_root_of_the_steps() -> None:
    for options in ({"num_layers": 2}, {"bidirectional": True}):
        plain, layer = (plait.LSTM(2, 4, checkpoint=c, **options) for c in (None, "auto"))
        kept = [bytes_kept(layer, torch.randn(T, 64, 2)) for T in (1024, 4096, 16384)]
        whole = bytes_kept(plain, torch.randn(4096, 64, 2)) * 4
        assert [b / a for a, b in pairwise(kept)] == pytest.approx([2, 2], rel=0.15)
        assert kept[-1] < whole / 100


def test_masks_are_kept_as_bits_and_rows_between_two_layers_of_two_directions() -> None:
    T, B, H = 64, 4, 16
    x = torch.randn(T, B, 8)
    one, two = (plait.GRU(8, H, 2, dropout=p, checkpoint=16) for p in (0.0, 0.5))
    assert bytes_kept(two, x) - bytes_kept(one, x) == T * B * H // 8
    both = plait.GRU(8, H, 2, bidirectional=True, checkpoint=16)
    states = 4 * 4 * B * H * 4
    assert bytes_kept(both, x) == T * B * 2 * H * 4 + states


def test_without_gradients_nothing_changes() -> None:
    case = Case(5, kind="LSTM", form="dense")
    with torch.no_grad():
        found, expected = (case.outputs(layer, case.x, []) for layer in (case.layer, case.plain))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert found[0].grad_fn is None


def test_auto_keeps_everything_where_it_would_save_nothing() -> None:
    layer = plait.LSTM(8, 16, checkpoint="auto")
    x = torch.randn(1, 2, 8)
    assert bytes_kept(layer, x) == bytes_kept(plait.LSTM(8, 16), x)


def test_a_stretch_is_one_launch_for_the_stack(monkeypatch) -> None:
    launches, run = [], threads.run
    monkeypatch.setattr(threads, "run", lambda *a: (launches.append(1), run(*a))[1])
    y = plait.GRU(4, 8, 3, checkpoint=5)(torch.randn(20, 2, 4))[0]
    assert len(launches) == 4
    y.sum().backward()
    assert len(launches) == 4 + 8


# --- beside other tools
def test_second_derivatives_are_those_without() -> None:
    case = Case(6, kind="GRU", form="dense", T=6, B=2, dtype=torch.float64, num_layers=2, dropout=0.3, checkpoint=2)
    found = []
    for layer in (case.plain, case.layer):
        x = case.x.clone().requires_grad_()
        y = case.outputs(layer, x, [])[0]
        (d_x,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(d_x.square().sum(), [x, *layer.parameters()]))
    assert worst(found[1], found[0]) <= 1e-12


def test_functional_gradients_and_many_at_once() -> None:
    case = Case(7, kind="LSTM", form="dense", T=6, B=2, dtype=torch.float64, num_layers=1, checkpoint=2, stateful=False)
    found = []
    for layer in (case.plain, case.layer):
        grad = torch.func.grad(lambda x, layer=layer: layer(x)[0].square().sum())(case.x)
        x = case.x.clone().requires_grad_()
        y = layer(x)[0]
        many = torch.autograd.grad(y, x, torch.stack([y.detach(), y.detach() * 2]), is_grads_batched=True)[0]
        found.append([grad, many])
    assert worst(found[1], found[0]) <= 1e-12


def test_copies_pickles_and_restore() -> None:
    layer = plait.LSTM(3, 4, checkpoint=5)
    assert "checkpoint=5" in repr(layer)
    assert "checkpoint" not in repr(plait.LSTM(3, 4))
    assert copy.deepcopy(layer).checkpoint == pickle.loads(pickle.dumps(layer)).checkpoint == 5
    model = plait.accelerate(nn.Sequential(nn.LSTM(3, 4), layer))
    assert [m.checkpoint for m in model] == [None, 5]
    plait.restore(model)
    assert type(layer) is nn.LSTM
    assert "checkpoint" not in vars(layer)


def test_inside_torch_compile_the_graph_breaks() -> None:
    layer, x = plait.LSTM(3, 4, checkpoint=2), torch.randn(6, 2, 3)
    with pytest.raises(Exception, match=r"torch\.compiler\.disable"):
        torch.compile(layer, fullgraph=True, backend="eager")(x)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(layer, backend="eager")(x)[0], layer(x)[0])
    with pytest.raises(PlaitError, match=r"torch\.compiler\.disable"):
        make_fx(lambda x: layer(x)[0])(x)


# --- bad input
@pytest.mark.parametrize("checkpoint", [0, -3, True, "some", 2.5])
def test_what_is_no_number_of_steps(checkpoint) -> None:
    for make in (plait.LSTM, plait.RNN, plait.GRU, plait.ImplicitGRU, lambda *a, **o: plait.layer(Direct, *a, **o)):
        with pytest.raises(PlaitError, match=r"^checkpoint=.*: expected None, 'auto', or a whole number of steps.*\.$"):
            make(3, 4, checkpoint=checkpoint)


def test_engines_and_solvers_that_keep_all_steps() -> None:
    for options, why in (
        ({"engine": "numpy"}, "engine 'numpy' keeps all steps: use engine='fused'"),
        ({"engine": "torch"}, "engine 'torch' keeps all steps: use engine='fused'"),
        ({"solver": "shooting"}, r"with solver shooting.* its pieces run side by side.* use plait\.Serial"),
    ):
        with pytest.raises(PlaitError, match=why):
            plait.LSTM(3, 4, checkpoint="auto", **options)
    layer = plait.LSTM(3, 4, checkpoint="auto")
    layer.engine = "python"
    with pytest.raises(PlaitError, match="engine 'python' keeps all steps"):
        layer(torch.randn(5, 2, 3))
    with torch.no_grad():
        assert layer(torch.randn(5, 2, 3))[0].shape == (5, 2, 4)


def test_a_stretch_is_no_plan_of_the_call() -> None:
    with pytest.raises(PlaitError, match="each stretch is a plan of its own"):
        plait.LSTM(3, 4, checkpoint=2).plan(torch.randn(6, 2, 3))


def test_saved_states_of_another_shape() -> None:
    layer, x = plait.LSTM(3, 4, checkpoint=2), torch.randn(6, 2, 3)
    with saved_tensors_hooks(lambda t: t, lambda t: t[:1] if t.dim() == 4 else t):
        y = layer(x)[0]
        with pytest.raises(PlaitError, match="a saved state h is"):
            y.sum().backward()


def test_an_input_that_was_changed_unseen_is_refused():
    layer, x = plait.LSTM(5, 8, checkpoint=2), torch.randn(9, 3, 5, requires_grad=True)
    y = layer(x)[0].sum()
    x.data = torch.zeros(1, 3, 5)
    with pytest.raises(PlaitError, match=r"input is \(1, 3, 5\).* expected \(27, 5\)"):
        y.backward()


@pytest.mark.parametrize(
    ("is_other", "what"),
    [
        (lambda t: t.dtype is torch.uint8, "a saved mask"),
        (lambda t: t.dim() == 3 and t.shape[-1] == 16, "saved rows"),
        (lambda t: t.dim() == 4, "a saved state h"),
    ],
)
def test_saved_tensors_that_do_not_fit_are_refused(is_other, what):
    layer, x = plait.LSTM(5, 8, 2, bidirectional=True, dropout=0.5, checkpoint=2), torch.randn(9, 3, 5)
    with saved_tensors_hooks(lambda t: t, lambda t: t[:1] if is_other(t) else t):
        y = layer(x.requires_grad_())[0].sum()
    with pytest.raises(PlaitError, match=what):
        y.backward()


def test_zeros_without_memory_are_zeros():
    layer = plait.LSTM(3, 4, checkpoint=2)
    found = layer(torch._efficientzerotensor(5, 2, 3))[0]
    assert torch.equal(found, layer(torch.zeros(5, 2, 3))[0])
