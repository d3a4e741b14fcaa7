"""Tensors that a kernel cannot read: fake ones have no memory, mapped ones are several at once, and make_fx records."""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call
from torch.fx import GraphModule, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.rnn import PackedSequence
from torch.utils._mode_utils import no_dispatch

import plait
from plait.layers.tensor_kinds import is_recording

KINDS = [(nn.LSTM, {}), (nn.GRU, {"num_layers": 2, "dropout": 0.3, "bidirectional": True}), (nn.RNN, {"bias": False})]


def shapes_of(layer: nn.Module, x: Any) -> list[Any]:
    y, state = layer(x)
    y = y if isinstance(y, Tensor) else y.data
    y.sum().backward()
    states = state if isinstance(state, tuple) else (state,)
    found = [y, *states, *[p.grad for p in layer.parameters()]]
    assert all(isinstance(t, FakeTensor) for t in found)
    return [(t.shape, t.dtype) for t in found]


@pytest.mark.parametrize("engine", ["auto", "numpy"])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_fake_tensors_give_fake_results_with_torchs_shapes(kind: Any, options: dict[str, Any], engine: str) -> None:
    with FakeTensorMode():
        theirs = kind(3, 5, **options)
        ours = plait.accelerate(kind(3, 5, **options), engine=engine)
        x = torch.randn(7, 4, 3)
        assert shapes_of(ours, x) == shapes_of(theirs, x)


@pytest.mark.parametrize("fake_x", [True, False])
def test_a_layer_that_has_run_sees_that_tensors_are_fake_now(fake_x: bool) -> None:
    """The plan of its last call does not hold then."""
    layer, x = plait.LSTM(3, 5), torch.randn(7, 4, 3)
    before = layer(x)[0]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = layer(mode.from_tensor(x) if fake_x else x)[0]
    assert isinstance(found, FakeTensor)
    assert found.shape == before.shape
    weights = {name: mode.from_tensor(p) for name, p in layer.named_parameters()}
    with mode:
        found = functional_call(layer, weights, (x,))[0]
    assert isinstance(found, FakeTensor)
    assert torch.equal(layer(x)[0], before)


@pytest.mark.parametrize("lengths", [None, [7, 2, 3, 1]])
def test_one_fake_tensor_among_others(lengths: Any) -> None:
    layer, x, mode = plait.LSTM(3, 5), torch.randn(7, 4, 3), FakeTensorMode(allow_non_fake_inputs=True)
    bias = {"bias_hh_l0": mode.from_tensor(layer.bias_hh_l0)}
    h = mode.from_tensor(torch.randn(1, 4, 5))
    for found in (functional_call(layer, bias, (x,), {"lengths": lengths}), layer(x, (h, h), lengths=lengths)):
        assert isinstance(found[0], FakeTensor)
        assert found[0].shape == (7, 4, 5)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_fake_gradient_of_a_real_result(create_graph: bool) -> None:
    layer, x = plait.GRU(3, 5), torch.randn(7, 4, 3, requires_grad=True)
    mode, y = FakeTensorMode(allow_non_fake_inputs=True), layer(x)[0]
    options = {"create_graph": create_graph, "retain_graph": True}
    found = [torch.autograd.grad(y, x, mode.from_tensor(torch.ones_like(y)), **options)[0]]
    with mode:
        found += torch.autograd.grad(y, x, torch.ones_like(y), **options)
    assert all(isinstance(d, FakeTensor) and d.shape == x.shape for d in found)


class Logged(Tensor):
    """Its operators are Python, but it has memory."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with no_dispatch():
            return func(*args, **(kwargs or {}))


def test_a_tensor_with_memory_whose_operators_are_python() -> None:
    layer, x = plait.LSTM(3, 5), torch.randn(7, 4, 3)
    logged = Tensor._make_subclass(Logged, x.clone(), True)
    d = torch.autograd.grad(layer(logged)[0].sum(), logged, create_graph=True)[0]
    second = torch.autograd.grad(d.square().sum(), [*layer.parameters()])
    plain = x.clone().requires_grad_()
    d = torch.autograd.grad(layer(plain)[0].sum(), plain, create_graph=True)[0]
    for a, b in zip(second, torch.autograd.grad(d.square().sum(), [*layer.parameters()]), strict=True):
        torch.testing.assert_close(a, b)


def test_fake_tensors_and_a_solver_that_sweeps() -> None:
    with FakeTensorMode(), pytest.raises(plait.PlaitError, match="needs numbers, not fake tensors"):
        plait.LSTM(3, 5, solver=plait.Shooting(2))(torch.randn(40, 4, 3))


def of_padded(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)[0]


def of_lengths(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, lengths=[5, 2, 4])[0]


def of_packed(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(PackedSequence(x.flatten(0, 1)[:11], torch.tensor([3, 3, 2, 2, 1])))[0].data


# --- recorded
def of_state(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, torch.ones_like(x[:1, :, :1]).expand(-1, -1, layer.hidden_size))[0]


def count(op: Any, graph: GraphModule) -> int:
    return sum(node.target is op.default for node in graph.graph.nodes)


@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize("call", [of_padded, of_lengths, of_packed])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_make_fx_records_each_layer_as_one_op(
    kind: Any, options: dict[str, Any], call: Any, pre_dispatch: bool
) -> None:
    layer, x, z = plait.accelerate(kind(3, 5, **options)).eval(), torch.randn(5, 3, 3), torch.randn(5, 3, 3)
    call(layer, x)  # the plan of this call does not hold then
    graph = make_fx(lambda x: call(layer, x), pre_dispatch=pre_dispatch)(x)
    torch.testing.assert_close(graph(z), call(layer, z))
    assert count(torch.ops.plait.layer, graph) == layer.num_layers


@pytest.mark.parametrize("engine", ["fused", "numpy", "torch:steps", "torch"])
def test_make_fx_with_initial_states(engine: str) -> None:
    layer, x, z = plait.GRU(3, 5, engine=engine), torch.randn(7, 4, 3), torch.randn(7, 4, 3)
    torch.testing.assert_close(make_fx(lambda x: of_state(layer, x))(x)(z), of_state(layer, z))


def of_autograd(layer: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(layer(x)[0].square().sum(), x)[0]


def of_last_state(layer: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(layer(x)[1].square().sum(), x)[0]


def of_torch_func(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.func.grad(lambda x: layer(x)[0].square().sum())(x)


def of_jacobian(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.autograd.functional.jacobian(lambda x: layer(x)[0], x, vectorize=True)


def of_second(layer: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    d = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)[0]
    return torch.autograd.grad(d.square().sum(), x)[0]


def test_a_gradient_that_is_recorded_is_one_op() -> None:
    layer = plait.GRU(3, 5)
    graph = make_fx(lambda x: of_autograd(layer, x))(torch.randn(7, 4, 3))
    assert count(torch.ops.plait.layer_vjp, graph) == 1


@pytest.mark.parametrize("call", [of_autograd, of_last_state, of_torch_func, of_jacobian, of_second])
def test_make_fx_records_a_gradient(call: Any) -> None:
    layer, x, z = plait.GRU(3, 5), torch.randn(3, 2, 3), torch.randn(3, 2, 3)
    torch.testing.assert_close(make_fx(lambda x: call(layer, x))(x)(z), call(layer, z))


def test_make_fx_records_the_way_back_alone() -> None:
    layer, x = plait.LSTM(3, 5), torch.randn(7, 4, 3, requires_grad=True)
    y = layer(x)[0]

    def back(d: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, d, retain_graph=True)[0]

    d, e = torch.randn(2, *y.shape)
    torch.testing.assert_close(make_fx(back)(d)(e), back(e))


def test_a_graph_that_was_recorded_without_gradients_has_them() -> None:
    layer, x = plait.LSTM(3, 5), torch.randn(7, 4, 3, requires_grad=True)
    with torch.no_grad():
        graph = make_fx(lambda x: layer(x)[0])(x)
    found, expected = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (graph, lambda x: layer(x)[0]))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("form", [torch.stack, list])
def test_what_make_fx_cannot_record_is_refused(form: Any) -> None:
    layer, x = plait.LSTM(3, 5), torch.randn(40, 4, 3)
    with pytest.raises(plait.PlaitError, match="records lengths as constants, and found a tensor: give numbers"):
        make_fx(lambda x, n: layer(x, lengths=form([n] * 4))[0])(x, torch.tensor(2))
    with pytest.raises(plait.PlaitError, match="needs numbers, not fake tensors or make_fx: use"):
        make_fx(plait.LSTM(3, 5, solver=plait.Shooting(2)))(x)


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_in_another_thread(pre_dispatch: bool) -> None:
    layer, x, began, end = plait.GRU(3, 5), torch.randn(7, 4, 3), threading.Event(), threading.Event()

    def slow(x: Tensor) -> Tensor:
        began.set()
        assert end.wait(60)
        return x + 1

    thread = threading.Thread(target=lambda: make_fx(slow, pre_dispatch=pre_dispatch)(x))
    thread.start()
    try:
        assert began.wait(60)
        assert not is_recording()
        found = layer(x, lengths=torch.tensor([7, 2, 3, 1]))[0]
    finally:
        end.set()
        thread.join()
    assert torch.equal(found, layer(x, lengths=torch.tensor([7, 2, 3, 1]))[0])


@pytest.mark.parametrize(
    ("layer", "todo"), [(plait.LSTM, r"plait.restore\(model\) first"), (plait.ImplicitGRU, "export")]
)
def test_torch_fx_is_told_what_to_do(layer: Any, todo: str) -> None:
    with pytest.raises(plait.PlaitError, match=f"torch.fx cannot record plait's kernels: .*{todo}"):
        symbolic_trace(nn.Sequential(layer(3, 5)))


# --- several gradients at once
@pytest.mark.parametrize("call", [of_padded, of_lengths, of_packed])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_gradients_in_a_batch_are_those_one_by_one(kind: Any, options: dict[str, Any], call: Any) -> None:
    layer = plait.accelerate(kind(3, 5, **options)).double()
    x = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True)
    inputs = [x, *layer.parameters()]
    y = call(layer, x)
    d = torch.randn(4, *y.shape, dtype=torch.float64)
    together = torch.autograd.grad(y, inputs, d, is_grads_batched=True, retain_graph=True)
    mapped = torch.func.vmap(lambda one: torch.autograd.grad(y, inputs, one, retain_graph=True))(d)
    single = zip(*[torch.autograd.grad(y, inputs, one, retain_graph=True) for one in d], strict=True)
    for a, b, each in zip(together, mapped, single, strict=True):
        torch.testing.assert_close(a, torch.stack(each))
        torch.testing.assert_close(b, torch.stack(each))


def test_a_jacobian_in_one_go() -> None:
    layer, x = plait.GRU(2, 3).double(), torch.randn(4, 1, 2, dtype=torch.float64)
    one_by_one, at_once = (
        torch.autograd.functional.jacobian(lambda x: layer(x)[0], x, vectorize=vectorize) for vectorize in (False, True)
    )
    torch.testing.assert_close(at_once, one_by_one)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_jacobian_that_is_differentiated(layers: int) -> None:
    theirs = nn.GRU(2, 3, layers).double()
    ours, x = plait.accelerate(copy.deepcopy(theirs)), torch.randn(4, 1, 2, dtype=torch.float64, requires_grad=True)
    found = []
    for layer in (theirs, ours):
        jacobian = torch.autograd.functional.jacobian(
            lambda x, layer=layer: layer(x)[0], x, vectorize=True, create_graph=True
        )
        found.append([jacobian, *torch.autograd.grad(jacobian.square().sum(), [x, *layer.parameters()])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(b, a)


def test_jacrev_of_jacrev() -> None:
    layer, x = plait.LSTM(2, 2).double(), torch.randn(3, 1, 2, dtype=torch.float64)
    expected = torch.autograd.functional.hessian(lambda x: layer(x)[0].sin().sum(), x)
    found = torch.func.jacrev(torch.func.jacrev(lambda x: layer(x)[0].sin().sum()))(x)
    torch.testing.assert_close(found, expected)


def test_a_plain_gradient_before_and_after() -> None:
    """The first one may spend what was kept."""
    layer, x = plait.LSTM(2, 3, 2, dropout=0.5).double(), torch.randn(4, 2, 2, dtype=torch.float64)
    y = layer(x)[0]
    d, weights = torch.randn(2, *y.shape, dtype=torch.float64), [*layer.parameters()]
    before = torch.autograd.grad(y, weights, d[1], retain_graph=True)
    together = torch.autograd.grad(y, weights, d, is_grads_batched=True, retain_graph=True)
    after = torch.autograd.grad(y, weights, d[1])
    for a, b, c in zip(before, together, after, strict=True):
        torch.testing.assert_close(b[1], a)
        torch.testing.assert_close(c, a)


def test_only_a_last_state_is_differentiated() -> None:
    layer, x = plait.LSTM(2, 3).double(), torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    c = layer(x)[1][1]
    d = torch.randn(3, *c.shape, dtype=torch.float64)
    found = torch.autograd.grad(c, x, d, is_grads_batched=True, retain_graph=True)[0]
    torch.testing.assert_close(found, torch.stack([torch.autograd.grad(c, x, e, retain_graph=True)[0] for e in d]))


# --- zeros without memory, as autograd makes them
ZEROS = torch._efficientzerotensor


@pytest.mark.parametrize("engine", ["fused", "numpy", "python"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("lengths", [None, [5, 3]])
def test_zeros_without_memory_are_zeros(engine: str, keep: bool, lengths: Any) -> None:
    layer = plait.LSTM(3, 4, 2, engine=engine)
    found, expected = [], []
    for make, results in ((ZEROS, found), (torch.zeros, expected)):
        with torch.set_grad_enabled(keep):
            state = make((2, 2, 4)), torch.ones(2, 2, 4)
            y, last = layer(make((5, 2, 3)), state, lengths=lengths)
            results += [y, *last]
            if keep:
                results += torch.autograd.grad(y.square().sum(), [*layer.parameters()])
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("T", [1, 5])
def test_gradients_and_weights_that_are_zeros_without_memory(T: int) -> None:
    layer, x = plait.GRU(3, 4), torch.randn(T, 2, 3, requires_grad=True)
    weights = {**dict(layer.named_parameters()), "bias_hh_l0": ZEROS((12,))}
    y = functional_call(layer, weights, (x,))[0]
    assert torch.equal(y, functional_call(layer, {**weights, "bias_hh_l0": torch.zeros(12)}, (x,))[0])
    (found,) = torch.autograd.grad(y, x, ZEROS((T, 2, 4)), retain_graph=True)
    assert torch.equal(found, torch.zeros(T, 2, 3))
    with plait.packed(layer), torch.no_grad():
        functional_call(layer, weights, (x,))


@pytest.mark.parametrize("kind", [plait.LSTMCell, plait.GRUCell, plait.RNNCell])
def test_one_step_from_zeros_without_memory(kind: Any) -> None:
    """Also where the step before was like it (one_step.py)."""
    cell, x = kind(3, 4), torch.randn(2, 3)
    (z, zero), (ones, weight) = (make((2, 3)) for make in (ZEROS, torch.zeros)), (torch.ones(2, 4), cell.weight_hh)
    state = (ones, ones) if kind is plait.LSTMCell else ones
    first = lambda found: found[0] if isinstance(found, tuple) else found  # noqa: E731
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(first(cell(z, state)), first(cell(zero, state)))
            cell(x, state)
        cell.weight_hh = nn.Parameter(ZEROS(tuple(weight.shape)), requires_grad=False)
        found = first(cell(x, state))
        cell.weight_hh = nn.Parameter(torch.zeros_like(weight))
        assert torch.equal(found, first(cell(x, state)))
    z.requires_grad_(False)
    assert torch.equal(first(cell(z, state)), first(cell(zero, state)))
