"""Cells: torch.nn's, step by step."""

import copy
import pickle
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plait
from plait.engines.bound import Bound

PAIRS = [(nn.RNNCell, plait.RNNCell), (nn.LSTMCell, plait.LSTMCell), (nn.GRUCell, plait.GRUCell)]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
all_pairs = pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=["rnn", "lstm", "gru"])


def states_of(hx) -> list[torch.Tensor]:
    return [] if hx is None else list(hx) if isinstance(hx, tuple) else [hx]


def twins(theirs, ours, I: int = 5, H: int = 19, **options) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    engine = {"engine": options.pop("engine")} if "engine" in options else {}
    a = theirs(I, H, **options)
    b = ours(I, H, **options, **engine)
    b.load_state_dict(a.state_dict())
    return a, b


def state(cell: nn.Module, *shape: int, dtype=torch.float32, requires_grad: bool = False):
    def new() -> torch.Tensor:
        return torch.randn(*shape, cell.hidden_size, dtype=dtype).requires_grad_(requires_grad)

    return (new(), new()) if isinstance(cell, nn.LSTMCell) else new()


def results(cell: nn.Module, x: torch.Tensor, hx=None) -> list[torch.Tensor]:
    """The new states, and the gradients of all that has one."""
    outputs = states_of(cell(x, hx))
    inputs = [t for t in (x, *states_of(hx), *cell.parameters()) if t.requires_grad]
    loss = sum((k + 1) * (s * s).sum() for k, s in enumerate(outputs))
    return [*outputs, *torch.autograd.grad(loss, inputs, allow_unused=True)]


def check_close(found, expected, dtype=torch.float32) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        a, b = a.detach(), b.detach()
        assert a.numel() == 0 or float((a - b).abs().max()) <= TOLERANCE[dtype] * max(1.0, float(b.abs().max()))


@all_pairs
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["f32", "f64"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("given", ["none", "plain", "learnt"])
@pytest.mark.parametrize("shape", [(7,), (1,), ()], ids=["B 7", "B 1", "unbatched"])
def test_all_forms_are_torchs(theirs, ours, dtype, bias, given, shape) -> None:
    a, b = twins(theirs, ours, bias=bias, dtype=dtype, engine="fused")
    x = torch.randn(*shape, 5, dtype=dtype, requires_grad=True)
    hx = None if given == "none" else state(a, *shape, dtype=dtype, requires_grad=given == "learnt")
    expected = results(a, x, hx)
    check_close(results(b, x, hx), expected, dtype)
    with torch.no_grad():
        for _ in range(3):  # as a plan, then as the step before
            check_close(states_of(b(x, hx)), states_of(a(x, hx)), dtype)


@pytest.mark.parametrize("engine", ["fused", "torch", "numpy", "python"])
@all_pairs
def test_engines(theirs, ours, engine) -> None:
    a, b = twins(theirs, ours, engine=engine)
    x, hx = torch.randn(3, 5, requires_grad=True), state(a, 3, requires_grad=True)
    check_close(results(b, x, hx), results(a, x, hx))


def test_nonlinearity_may_change() -> None:
    a, b = twins(nn.RNNCell, plait.RNNCell, nonlinearity="relu")
    x, h = torch.randn(3, 5), torch.randn(3, 19)
    with torch.no_grad():
        for kind in ("relu", "tanh", "relu"):
            a.nonlinearity = b.nonlinearity = kind
            for _ in range(2):
                check_close([b(x, h)], [a(x, h)])
        a.nonlinearity = b.nonlinearity = "none"
        for cell in (a, b):
            with pytest.raises(RuntimeError, match="Unknown nonlinearity: none"):
                cell(x, h)


@pytest.mark.parametrize("B", [1, 6])
@pytest.mark.parametrize("packed", [False, True], ids=["open", "packed"])
@all_pairs
def test_a_loop_of_fifty_steps(theirs, ours, packed, B) -> None:
    a, b = twins(theirs, ours)
    x = torch.randn(50, B, 5)

    def walk(cell: nn.Module) -> list[torch.Tensor]:
        hx, found = None, []
        for t in range(50):
            hx = cell(x[t], hx)
            found += states_of(hx)
        return found

    expected, whole = walk(a), [plait.packed(b) if packed else nullcontext()][0]
    gradients = torch.autograd.grad(sum(s.sum() for s in expected), list(a.parameters()))
    with whole:
        found = walk(b)
        check_close(found, expected)
        check_close(torch.autograd.grad(sum(s.sum() for s in found), list(b.parameters())), gradients)
        with torch.no_grad():
            for s, e in zip(walk(b), found, strict=True):
                assert torch.equal(s, e)


@all_pairs
def test_wrong_arguments_raise_what_torch_raises(theirs, ours) -> None:
    a, b = twins(theirs, ours)
    x, hx = torch.randn(3, 5), state(a, 3)

    def changed(what):
        return tuple(map(what, hx)) if isinstance(hx, tuple) else what(hx)

    wrong = [
        (torch.randn(3, 6), hx),
        (torch.randn(2, 3, 5), hx),
        (torch.randn(4, 5), hx),
        (x, changed(lambda s: s[:, :-1])),
        (x, changed(lambda s: s[None, None])),
        (x, changed(lambda s: s[0])),
        (x.double(), hx),
        (x, changed(torch.Tensor.double)),
        (torch.randn(5), hx),
    ]
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            b(x, hx)
            for arguments in wrong:
                with pytest.raises((ValueError, RuntimeError)) as theirs_says:
                    a(*arguments)
                with pytest.raises(type(theirs_says.value)) as ours_says:
                    b(*arguments)
                assert str(ours_says.value) == str(theirs_says.value)


@all_pairs
def test_state_dict_kind_and_text(theirs, ours) -> None:
    a, b = twins(theirs, ours, bias=False, device="cpu", dtype=torch.float64)
    assert isinstance(b, theirs)
    assert list(a.state_dict()) == list(b.state_dict())
    a.load_state_dict(b.state_dict())
    assert repr(b) == repr(a)
    assert repr(ours(2, 3, engine="fused")).endswith(", engine='fused')")
    with pytest.raises(plait.PlaitError, match="engine 'nothing'"):
        ours(2, 3, engine="nothing")
    assert [p.dtype for p in b.parameters()] == [torch.float64] * 2


@pytest.mark.parametrize("packed", [False, True], ids=["open", "packed"])
@pytest.mark.parametrize("kind", ["layer", "cell"])
def test_steps_after_the_first_take_the_short_way(kind, packed, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, run = [], Bound.run

    def counted(step: Bound, *tensors: Any) -> Any:
        found = run(step, *tensors)
        taken.extend([step] * (found is not None))
        return found

    monkeypatch.setattr(Bound, "run", counted)
    model = plait.LSTM(5, 19) if kind == "layer" else plait.LSTMCell(5, 19)
    x, state = torch.randn(1, 1, 5) if kind == "layer" else torch.randn(1, 5), None
    with torch.no_grad(), plait.packed(model) if packed else nullcontext():
        for _ in range(6):
            found = model(x, state)
            state = found[1] if kind == "layer" else found
    assert len(taken) == 4  # not the first, nor the first with a state
    model(x, state)
    assert len(taken) == 4  # nor one with gradients


def test_a_shallow_copy_shares_neither_step_nor_block() -> None:
    cell, x = plait.LSTMCell(5, 19), torch.randn(1, 5)
    with torch.no_grad(), plait.packed(cell):
        cell(x)
        other = copy.copy(cell)
        assert cell._plait_step is not None
        assert other._plait_step is None
        assert other._plait_block is None
        assert other.weight_ih is cell.weight_ih


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_copy_works_alike_and_forgets_the_last_step(copied) -> None:
    cell, x = plait.LSTMCell(5, 19), torch.randn(1, 5)
    with torch.no_grad(), plait.packed(cell):
        expected = cell(x)
        cell(x)
        assert cell._plait_step is not None
        other = copied(cell)
        assert other._plait_step is None
        with torch.no_grad():
            for p in cell.parameters():
                p.data = p.data * 2
        for a, b in zip(other(x), expected, strict=True):
            assert torch.equal(a, b)
    assert cell._plait_step is None


@pytest.mark.parametrize("packed", [False, True], ids=["open", "packed"])
@pytest.mark.parametrize("kind", ["layer", "cell"])
def test_what_changes_between_two_steps_is_noticed(kind, packed) -> None:
    """Another module with the same weights says what is right."""
    shape = (1, 2, 5) if kind == "layer" else (2, 5)

    def new() -> nn.Module:
        return plait.LSTM(5, 19) if kind == "layer" else plait.LSTMCell(5, 19)

    def flat(found) -> list[torch.Tensor]:
        return [found[0], *found[1]] if kind == "layer" else list(found)

    def check(x: torch.Tensor, hx=None) -> None:
        fresh = new().to(x.dtype)
        fresh.load_state_dict(model.state_dict())
        for a, b in zip(flat(model(x, hx)), flat(fresh(x, hx)), strict=True):
            assert torch.equal(a, b)

    model, x = new(), torch.randn(shape)
    hx = torch.randn(*shape[:-1], 19), torch.randn(*shape[:-1], 19)
    with torch.no_grad(), plait.packed(model) if packed else nullcontext():
        for _ in range(2):
            check(x, hx)
        check(x + 1, hx)
        check(x)
        for _ in range(2):
            check(x[..., :1, :], tuple(s[..., :1, :] for s in hx))
        check(x[..., :1, :].expand(shape), hx)
        other = new()
        model.load_state_dict(other.state_dict(), assign=True)
        check(x, hx)
        check(x, hx)
        for p in model.parameters():
            p.data = p.data.t().contiguous().t() if p.dim() == 2 else p.data + 1
        check(x, hx)
        model.double()
        check(x.double(), tuple(s.double() for s in hx))
        check(x.double(), tuple(s.double() for s in hx))
    y = model(x.double())[0]
    assert y.requires_grad


def test_a_step_in_inference_mode_and_in_autocast() -> None:
    a, b = twins(nn.LSTMCell, plait.LSTMCell)
    x = torch.randn(2, 5)
    with torch.inference_mode():
        for _ in range(2):
            found = b(x)
            check_close(found, a(x))
            assert found[0].is_inference()
    with torch.autocast("cpu"), torch.no_grad():
        h, c = b(x)
        assert h.dtype is c.dtype is torch.float32
        assert max(float((p - q).abs().max()) for p, q in zip((h, c), a(x), strict=True)) < 0.02
    with torch.no_grad():
        assert not b(x)[0].is_inference()


@all_pairs
def test_second_derivatives(theirs, ours) -> None:
    cell = ours(3, 4, dtype=torch.float64, engine="fused")
    x, hx = torch.randn(2, 3, dtype=torch.float64, requires_grad=True), state(cell, 2, dtype=torch.float64)
    hx = tuple(s.requires_grad_() for s in hx) if isinstance(hx, tuple) else hx.requires_grad_()

    def run(x, *states):
        return cell(x, states if len(states) > 1 else states[0])

    assert torch.autograd.gradcheck(run, (x, *states_of(hx)))
    assert torch.autograd.gradgradcheck(run, (x, *states_of(hx)))


def test_torch_func_and_functional_call() -> None:
    a, b = twins(nn.GRUCell, plait.GRUCell)
    x, h = torch.randn(2, 5), torch.randn(2, 19)
    weights = {name: p.detach() * 2 for name, p in a.named_parameters()}
    found, expected = (
        torch.func.grad(lambda w, cell=cell: torch.func.functional_call(cell, w, (x, h)).square().sum())(weights)
        for cell in (b, a)
    )
    check_close(found.values(), expected.values())
    with torch.no_grad():
        b(x, h)
        check_close([torch.func.functional_call(b, weights, (x, h))], [torch.func.functional_call(a, weights, (x, h))])
        b.engine = "fused"
        with pytest.raises(plait.PlaitError, match="vmap over"):
            torch.vmap(b, (0, 0))(x[None], h[None])


def test_two_backward_passes_and_no_sequences() -> None:
    a, b = twins(nn.LSTMCell, plait.LSTMCell)
    x = torch.randn(2, 5)
    h, c = b(x)
    first, again = (torch.autograd.grad((h * c).sum(), list(b.parameters()), retain_graph=True) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)
    check_close(b(x[:0]), a(x[:0]))
    h, _ = b(x)
    check_close(
        torch.autograd.grad(h.sum(), list(b.parameters())), torch.autograd.grad(a(x)[0].sum(), list(a.parameters()))
    )


def test_a_parametrized_cell() -> None:
    a, b = twins(nn.GRUCell, plait.GRUCell)
    for cell in (a, b):
        nn.utils.parametrizations.weight_norm(cell, "weight_hh")
    x, h = torch.randn(2, 5), torch.randn(2, 19)
    with torch.no_grad():
        for _ in range(2):
            check_close([b(x, h)], [a(x, h)])
    check_close(results(b, x, h), results(a, x, h))


def test_meta_device_and_jit() -> None:
    cell = plait.LSTMCell(3, 4, device="meta")
    assert cell(torch.empty(2, 3, device="meta"))[0].shape == (2, 4)
    cell, x = plait.LSTMCell(3, 4), torch.randn(2, 3)
    with torch.no_grad():
        cell(x)
        with pytest.raises(plait.PlaitError, match=r"torch.jit.trace cannot record plait's kernels: plait.restore"):
            torch.jit.trace(cell, (x,))


@pytest.mark.parametrize("engine", ["auto", "torch", "fused", "numpy", "cuda", "cuda:v4"])
@all_pairs
def test_a_cell_off_the_cpu_says_what_the_report_says(theirs, ours, engine) -> None:
    cell, x = ours(3, 4, device="meta", engine=engine), torch.empty(2, 3, device="meta")
    (row,) = plait.report(cell)
    if engine in ("auto", "torch"):
        assert row.engine == "torch"
        assert states_of(cell(x))[0].shape == (2, 4)
        return
    with pytest.raises(plait.PlaitError) as says:
        cell(x)
    assert str(says.value) == f"{row.why}: {row.todo}."
    assert "layers" in row.why if "cuda" in engine else "the CPU" in row.why


def test_a_thread_that_leaves_a_block_does_not_disturb_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, x = plait.LSTMCell(5, 19), torch.randn(1, 5)
    with torch.no_grad(), plait.packed(cell):
        expected = cell(x)
        cell(x)

        class Dropping:
            """At its second reading it is gone."""

            def __get__(self, cell, owner) -> object:
                return cell.__dict__.pop("kept", None)

            def __set__(self, cell, value) -> None:
                cell.__dict__["kept"] = value

        step = cell.__dict__.pop("_plait_step")
        monkeypatch.setattr(plait.LSTMCell, "_plait_step", Dropping(), raising=False)
        cell.__dict__["kept"] = step
        for a, b in zip(cell(x), expected, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("grad", [True, False])
@all_pairs
def test_compile(theirs, ours, grad, dynamo) -> None:
    a, b = twins(theirs, ours)
    x, hx = torch.randn(2, 5), state(a, 2)
    with torch.no_grad():
        b(x, hx)
        b(x, hx)  # a step to go back to, which a graph cannot
    compiled = torch.compile(b, backend="aot_eager", fullgraph=True)
    with torch.set_grad_enabled(grad):
        expected = states_of(a(x, hx))
        found = states_of(compiled(x, hx))
        check_close(found, expected)
        if grad:
            check_close(
                *(torch.autograd.grad(s[0].sum(), list(m.parameters())) for s, m in ((found, b), (expected, a)))
            )


def test_a_step_reads_its_weights_each_time() -> None:
    """Outside of a block they may change in place."""
    a, b = twins(nn.LSTMCell, plait.LSTMCell)
    x = torch.randn(1, 5)
    with torch.no_grad():
        for _ in range(4):
            check_close(b(x), a(x))
            for cell in (a, b):
                for p in cell.parameters():
                    p.mul_(1.1)


@all_pairs
def test_accelerate_everywhere_and_restore(theirs, ours) -> None:
    class Theirs(theirs):
        def forward(self, input, hx=None):
            return super().forward(2 * input, hx)

    x = torch.randn(2, 5)
    for cls in (theirs, Theirs):
        model = nn.ModuleList([cls(5, 19)])
        expected = results(model[0], x)
        assert isinstance(plait.accelerate(model)[0], ours)
        assert isinstance(model[0], cls)
        check_close(results(model[0], x), expected)
        with torch.no_grad():
            model[0](x)
        assert type(pickle.loads(pickle.dumps(plait.accelerate(nn.ModuleList([theirs(5, 19)]))))[0]) is theirs
        assert type(copy.deepcopy(model)[0]) is type(model[0])
        assert type(plait.restore(model)[0]) is cls
        assert not [name for name in vars(model[0]) if name.startswith("_plait_") or name == "engine"]
    with plait.everywhere():
        cell = theirs(5, 19)
    assert type(cell) is ours
    check_close(results(cell, x), results(plait.restore(cell), x))


@pytest.mark.parametrize("name", ["RNNCell", "GRUCell"])
def test_vmap_and_forward_derivatives_are_those_of_torch(name) -> None:
    ours = getattr(plait, name)(3, 4, dtype=torch.float64)
    theirs = getattr(nn, name)(3, 4, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    x, h = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)

    def results(cell) -> list[Tensor]:
        y, d = torch.func.jvp(cell, (x, h), (x, h))
        return [torch.func.vmap(cell)(x, h), y, d, torch.func.jacfwd(cell, argnums=1)(x[0], h[0])]

    for found, expected in zip(results(ours), results(theirs), strict=True):
        torch.testing.assert_close(found, expected)
