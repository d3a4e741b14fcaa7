"""A block in which the weights stand still; and that outside of it nobody guesses that they did."""

import copy
import gc
import pickle
import threading
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import plait
from plait.layers.pinned import Block
from processes import python


def layer(**options) -> nn.Module:
    return plait.LSTM(3, 40, 2, engine="fused", bidirectional=True, **options)


def steps(model: nn.Module, x: torch.Tensor, state=None) -> list[torch.Tensor]:
    """One step at a time, as generation has it."""
    result = []
    for t in range(x.shape[0]):
        y, state = model(x[t : t + 1], state)
        result.append(y)
    return [*result, *state]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("lengths", [None, [4, 1, 3]], ids=["dense", "ragged"])
@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru", "implicit_gru"])
def test_within_the_block_all_is_as_without_it(cell, lengths) -> None:
    model, x = plait.layer(cell, 3, 40, 2, engine="fused", bidirectional=True), torch.randn(4, 3, 3)
    expected = steps(model, x) if lengths is None else [model(x, None, lengths)[0]]
    gradients = torch.autograd.grad(sum(t.sum() for t in expected), list(model.parameters()))
    with plait.packed(model):
        for _ in range(2):  # packs; has them packed
            found = steps(model, x) if lengths is None else [model(x, None, lengths)[0]]
            assert max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)) < 1e-6
            again = torch.autograd.grad(sum(t.sum() for t in found), list(model.parameters()))
            assert max(float((a - b).abs().max()) for a, b in zip(again, gradients, strict=True)) < 1e-4
        with torch.no_grad():
            plain = steps(model, x) if lengths is None else [model(x, None, lengths)[0]]
        assert same(plain, found)


def test_it_is_packed_once() -> None:
    model, x = layer(), torch.randn(5, 1, 3)
    with plait.packed(model), torch.no_grad():
        model(x)
        (block,) = [m._plait_block for m in model.modules()]
        first = {key: [p.panels for p in found[2]] for key, found in block.found.items()}
        assert len(first) == 1  # both layers are one plan
        assert all(p.ready for found in block.found.values() for p in found[2])
        model(x)
        assert all(a is b.panels for key in first for a, b in zip(first[key], block.found[key][2], strict=True))
    assert model._plait_block is None
    assert not block.is_open


def fused_optimizer(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.SGD(model.parameters(), lr=0.1, fused=True).step()


def behind_autograd(model: nn.Module) -> None:
    for p in model.parameters():
        p.data.add_(0.1)


def by_numpy(model: nn.Module) -> None:
    for p in model.parameters():
        p.detach().numpy()[...] += 0.1


def in_inference_mode(model: nn.Module) -> None:
    with torch.inference_mode():
        for p in model.parameters():
            p.data.add_(0.1)


def of_another_process(model: nn.Module) -> None:
    """Memory that several processes share: Hogwild."""
    model.share_memory()
    text = "import torch\n"
    for p in model.parameters():
        handle = p.data.untyped_storage()._share_filename_cpu_()
        text += (
            f"s = torch.UntypedStorage._new_shared_filename_cpu({handle[0]!r}, {handle[1]!r}, {handle[2]})\n"
            f"torch.empty(0).set_(s, 0, ({p.numel()},)).add_(0.1)\n"
        )
    python(text)


@pytest.mark.parametrize(
    "change",
    [fused_optimizer, behind_autograd, by_numpy, in_inference_mode, of_another_process],
    ids=lambda f: f.__name__,
)
def test_a_step_sees_new_weights_however_they_came_to_be(change) -> None:
    """Neither a version nor an address tells of these: outside of the block nothing is remembered."""
    model, x = plait.LSTM(3, 40, engine="fused"), torch.randn(3, 2, 3)
    with torch.no_grad():
        with plait.packed(model):
            model(x)
        before = model(x)[0]
        change(model)
        after = model(x)[0]
        fresh = plait.LSTM(3, 40, engine="fused")
        fresh.load_state_dict(copy.deepcopy(model.state_dict()))
        assert torch.equal(after, fresh(x)[0])
        assert not torch.equal(after, before)


def test_weights_that_are_inference_tensors() -> None:
    """They have no version at all."""
    with torch.inference_mode():
        model, x = plait.GRU(3, 40, engine="fused"), torch.randn(3, 2, 3)
        with plait.packed(model):
            before = model(x)[0]
        for p in model.parameters():
            p.mul_(0.5)
        after = model(x)[0]
        assert not torch.equal(after, before)
        with plait.packed(model):
            assert torch.equal(model(x)[0], after)


def test_other_tensors_in_a_weights_place_are_seen_within_the_block() -> None:
    model, other, x = layer(), layer(), torch.randn(3, 2, 3)
    with torch.no_grad():
        expected = other(x)[0]
        with plait.packed(model):
            mine = model(x)[0]
            found = torch.func.functional_call(model, dict(other.named_parameters()), (x,))[0]
            assert torch.equal(found, expected)
            assert torch.equal(model(x)[0], mine)
            model.load_state_dict(other.state_dict(), assign=True)
            assert torch.equal(model(x)[0], expected)


def test_a_parametrized_layer_is_packed_once_if_it_is_computed_once() -> None:
    model, x = plait.LSTM(3, 40, engine="fused"), torch.randn(3, 2, 3)
    parametrizations.spectral_norm(model, "weight_hh_l0")
    model.eval()

    def panels() -> torch.Tensor:
        ((_, _, (p,)),) = model._plait_block.found.values()
        return p.panels["r", False]

    with torch.no_grad():
        expected = model(x)[0]
        with plait.packed(model):
            assert torch.equal(model(x)[0], expected)
            with parametrize.cached():
                assert torch.equal(model(x)[0], expected)
                first = panels()
                assert torch.equal(model(x)[0], expected)
                assert panels() is first


def test_other_strides_on_the_same_memory_are_seen_within_the_block() -> None:
    model, x = plait.RNN(3, 40, engine="fused"), torch.randn(4, 1, 3)
    with plait.packed(model), torch.no_grad():
        for _ in range(3):  # the call is ready
            before = model(x)[0]
        model.weight_hh_l0.data = model.weight_hh_l0.data.t()
        found = model(x)[0]
    assert not torch.equal(found, before)
    assert torch.equal(found, model(x)[0])


def test_nothing_is_kept_after_the_block() -> None:
    """Neither by a cycle of references, nor by a graph that was made within the block."""
    model, x = layer(), torch.randn(4, 1, 3)
    gc.disable()  # it would hide a cycle
    try:
        with plait.packed(model):
            y, _ = model(x)
            with torch.no_grad():
                steps(model, x)
            (block,) = [m._plait_block for m in model.modules()]
            alive = [weakref.ref(p) for found in block.found.values() for p in found[2]]
            del block
        assert len(alive) == 4
        assert [p() for p in alive] == [None] * 4
    finally:
        gc.enable()
    y.sum().backward()


def test_other_models_are_not_in_the_block() -> None:
    model, other, x = layer(), parametrizations.weight_norm(nn.Linear(3, 3)), torch.randn(2, 3)
    with plait.packed(model), torch.no_grad():
        before = other(x)
        other.parametrizations.weight.original0.mul_(3)
        assert not torch.equal(other(x), before)


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_calls_of_many_shapes_in_one_block(cell) -> None:
    """Small ones, whose W x the kernel computes, and large ones, for which torch.mm does, each several times over."""
    model = plait.layer(cell, 64, 128, 1, engine="fused", bidirectional=True)
    shapes = [(1, 4), (1, 4), (50, 32), (50, 32), (1, 4), (50, 32), (3, 1), (80, 32), (80, 32), (3, 1), (1, 4)]
    with torch.no_grad():
        for lengths in (None, "ragged"):
            with plait.packed(model):
                for T, B in shapes:
                    x = torch.randn(T, B, 64)
                    some = None if lengths is None else [T] * (B - B // 2) + [max(1, T // 2)] * (B // 2)
                    found = model(x, None, some)[0]
                    with torch.enable_grad():
                        expected = copy.deepcopy(model)(x, None, some)[0]
                    assert torch.allclose(found, expected, atol=1e-5), (T, B, lengths)


def test_backward_after_the_block_sees_the_weights_of_then() -> None:
    model, x = plait.GRU(3, 40, engine="fused"), torch.randn(3, 2, 3, requires_grad=True)
    expected = torch.autograd.grad(model(x)[0].sum(), x)[0]
    with plait.packed(model):
        y = model(x)[0]
    assert torch.allclose(torch.autograd.grad(y.sum(), x)[0], expected, atol=1e-6)


def test_blocks_may_be_nested_and_end_with_an_error() -> None:
    model = nn.Sequential(layer())

    def use() -> None:
        with plait.packed(model):
            outer = model[0]._plait_block
            with plait.packed(model[0]):
                assert model[0]._plait_block is outer
            assert outer.is_open
            raise KeyError

    with pytest.raises(KeyError):
        use()
    assert model[0]._plait_block is None


def test_copies_of_a_model_are_not_in_the_block() -> None:
    model, x = layer(), torch.randn(3, 2, 3)
    with plait.packed(model), torch.no_grad():
        model(x)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert other._plait_block is None
            expected = other(x)[0]
            for p in other.parameters():
                p.add_(0.1)
            assert not torch.equal(other(x)[0], expected)
    assert isinstance(Block(), Block)


def test_every_thread_packs_for_itself() -> None:
    model, x = layer(), torch.randn(9, 2, 3)
    with torch.no_grad():
        expected = model(x)[0]
        found: list[bool] = []
        begin = threading.Barrier(4)  # all are alive at once: else a thread may get the number of one that has ended

        def run() -> None:
            begin.wait(60)
            with torch.no_grad():
                found.extend(torch.equal(model(x)[0], expected) for _ in range(20))

        with plait.packed(model):
            workers = [threading.Thread(target=run) for _ in range(4)]
            for w in workers:
                w.start()
            for w in workers:
                w.join()
            assert len(model._plait_block.found) == 4  # one for each thread
    assert found == [True] * 80


def test_torch_layers_and_other_modules_are_left_alone() -> None:
    model = nn.ModuleList([nn.LSTM(3, 4), nn.Linear(3, 4)])
    x = torch.randn(2, 1, 3)
    expected = model[0](x)[0]
    with plait.packed(model):
        assert torch.equal(model[0](x)[0], expected)
        assert not hasattr(model[0], "_plait_block")


def test_a_layer_that_a_backward_pass_leaves_out_is_packed_by_the_next_one() -> None:
    """The first pass needs no gradient below the upper layer, so it does not pack the lower one's weights."""
    x, found = torch.randn(5, 4, 8), []
    for block in (nullcontext, plait.packed):
        torch.manual_seed(0)
        layer = plait.LSTM(8, 16, 2, engine="fused")
        lower, upper = ({n: p for n, p in layer.named_parameters() if n.endswith(end)} for end in ("l0", "l1"))

        def loss(some, layer=layer, lower=lower):
            return torch.func.functional_call(layer, {**lower, **some}, (x,))[0].square().sum()

        with block(layer):
            above = torch.func.grad(loss)({name: p.detach() for name, p in upper.items()})
            layer(x)[0].square().sum().backward()
        found.append([*above.values(), *(p.grad for p in layer.parameters())])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_block_that_another_thread_closes_during_a_call(times: int, monkeypatch) -> None:
    """It is open the first few times that the call asks."""
    layer, x = plait.GRU(3, 5, engine="fused"), torch.randn(6, 4, 3)
    expected, block = layer(x)[0], Block()
    answers = [True] * times
    is_open = property(lambda self: bool(answers and answers.pop()), lambda self, value: None)
    monkeypatch.setattr(Block, "is_open", is_open, raising=False)
    monkeypatch.setitem(layer.__dict__, "_plait_block", block)
    found = layer(x)[0]
    assert torch.equal(found, expected)
    found.sum().backward()
    grads = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    expected.sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, layer.parameters(), strict=True))


def test_what_takes_the_place_of_a_weight_in_the_block_is_used() -> None:
    """A lazily negated view has the same memory; another nonlinearity is another cell."""
    layer, x = plait.RNN(3, 5, dtype=torch.float64, engine="fused"), torch.randn(4, 6, 3, dtype=torch.float64)
    z = torch.randn(5, 5, dtype=torch.complex128)
    with plait.packed(layer):
        for weight, same in ((z.imag, z.imag.clone()), (z.conj().imag, -z.imag)):
            found, expected = (torch.func.functional_call(layer, {"weight_hh_l0": w}, (x,))[0] for w in (weight, same))
            torch.testing.assert_close(found, expected)
        layer(x)
        layer.mode = "RNN_RELU"
        found = layer(x)[0]
    torch.testing.assert_close(found, layer(x)[0])
