"""What `auto` does on a CUDA device, with a stand-in for the device."""

import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import plait
from plait import PlaitError, cells, engines, errors
from plait.engines import Layout, Weights, cuda_blocks
from plait.errors import PlaitWarning
from plait.kernels.cuda.gpu import enough_memory, why_too_old
from plait.layers import cuda_choice
from plait.layers.cuda_choice import CHOICES, contenders, engine_for, extent, fastest, shape_of
from plait.training import loop


class StandIn:
    """A device whose clock is set beforehand."""

    name, capability = "stand-in", (8, 0)

    def __init__(self, *seconds: float, free: int = 0) -> None:
        self.times, self.left = list(seconds), free

    def free(self) -> int:
        return self.left

    def seconds(self, run: Callable[[], object], repeats: int) -> float:
        run()
        return self.times.pop(0)


@pytest.fixture(autouse=True)
def no_choices():
    CHOICES.clear()
    errors.SAID.clear()
    yield
    CHOICES.clear()


@pytest.mark.parametrize(("seconds", "winner"), [((1.0, 2.0), "cuda"), ((2.0, 1.0), "torch")])
def test_the_faster_one_is_taken_and_compared_once(seconds, winner):
    calls = []

    def runs():
        return {name: lambda name=name: calls.append(name) for name in ("cuda", "torch")}

    device = StandIn(*seconds)
    assert fastest(device, "a shape", runs) == winner
    assert fastest(device, "a shape", runs) == winner  # the clock has no more times
    assert calls == ["cuda", "torch", "cuda", "torch"]  # to compile, then to measure
    assert {"a shape": winner} == CHOICES


def test_shapes_are_counted_in_powers_of_two():
    layer = plait.LSTM(3, 5, 2)
    assert shape_of(layer, 33, 20) == shape_of(layer, 64, 32)
    assert shape_of(layer, 33, 20) != shape_of(layer, 32, 20)
    assert shape_of(layer, 33, 20) != shape_of(plait.LSTM(3, 5, 2, bidirectional=True), 33, 20)
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(4, 3), torch.zeros(2, 3)])
    assert [extent(x, True) for x in (packed, torch.zeros(2, 7, 3), torch.zeros(7, 3))] == [(4, 2), (7, 2), (7, 1)]


def test_a_comparison_leaves_no_trace(monkeypatch):
    layer = plait.LSTM(3, 5, 2, dropout=0.5)
    monkeypatch.setattr(layer, "_plait_run", lambda cell, engine, x, hx: layer._plait_native(x, hx))
    before = torch.random.get_rng_state()
    for run in contenders(layer, 4, 2, layer.weight_ih_l0).values():
        run()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(p.grad is None for p in layer.parameters())


def test_too_many_units_are_torchs_and_it_is_said_once():
    layer = plait.LSTM(3, 600, engine="cuda")
    with pytest.warns(PlaitWarning, match=r"at most 512 units, this layer has 600: torch's own layer runs instead"):
        assert engine_for(layer, "cuda", torch.zeros(4, 2, 3), layer.weight_ih_l0) == "torch"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine_for(layer, "cuda", torch.zeros(4, 2, 3), layer.weight_ih_l0) == "torch"
    layer = plait.LSTM(3, 600)
    assert engine_for(layer, "torch", torch.zeros(4, 2, 3), layer.weight_ih_l0) == "torch"


def test_a_batch_that_does_not_fit_says_how_much_it_needs(monkeypatch):
    def full(*args, **options):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    stand_in = partial(enough_memory, found=lambda _: StandIn(free=1000 * 2**20))
    monkeypatch.setattr(cuda_blocks, "enough_memory", stand_in)
    monkeypatch.setattr(cuda_blocks.BlocksEngine, "project", full)
    engine, layer = cuda_blocks.BlocksEngine(), plait.LSTM(3, 8)
    ps = [engine.prepare(cells.get("lstm"), Weights(*layer.parameters()))]
    x = torch.zeros(2**17, 8, 3)
    with pytest.raises(PlaitError, match=r"needs 352 MiB on stand-in, 1,000 MiB are free: take fewer or shorter"):
        engine.forward(ps, x, None, Layout(2**17, 8))
    with pytest.raises(PlaitError, match=r"needs 352 MiB"):
        engine.forward(ps, x.view(-1, 3), None, Layout(2**17, 8))


def test_two_kinds_of_call_may_have_two_winners(monkeypatch):
    layer, x = plait.LSTM(3, 5), torch.zeros(4, 2, 3)
    asked = []
    monkeypatch.setattr(cuda_choice, "TorchDevice", lambda _: StandIn())
    monkeypatch.setattr(cuda_choice, "fastest", lambda device, shape, runs: asked.append(shape) or "cuda")
    monkeypatch.setattr(engines.get("cuda"), "why_not", lambda *_: None)
    for context in (torch.enable_grad(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            assert engine_for(layer, "torch", x, layer.weight_ih_l0) == "cuda"
    assert len(set(asked)) == 3
    layer.solver = plait.Shooting()
    assert engine_for(layer, "torch", x, layer.weight_ih_l0) == "cuda"
    assert engine_for(layer, "torch", torch.zeros(3), layer.weight_ih_l0) == "cuda"
    layer.solver = plait.Serial()
    for odd in (torch.zeros(3), torch.zeros(0, 2, 3)):
        assert engine_for(layer, "torch", odd, layer.weight_ih_l0) == "torch"
    assert len(asked) == 3


def test_an_old_device_is_refused():
    assert why_too_old((7, 5)) is None
    assert "compute capability 6.1" in (why_too_old((6, 1)) or "")


def test_a_run_keeps_its_choices(tmp_path):
    written = []
    config = lambda: written[-1] if written else {"task": "x"}  # noqa: E731
    run = SimpleNamespace(config=config, write_config=written.append, folder=tmp_path, is_folder=True)
    CHOICES["a shape"] = "cuda"
    loop.keep_choices(run)  # it has no config.json
    assert written == []
    loop.take_choices(run)
    CHOICES.clear()
    (tmp_path / "config.json").touch()
    loop.keep_choices(run)
    assert written == []
    CHOICES["a shape"] = "cuda"
    loop.keep_choices(run)
    loop.keep_choices(run)
    assert written == [{"task": "x", "engines": {"a shape": "cuda"}}]
    CHOICES.clear()
    loop.take_choices(run)
    assert CHOICES == {"a shape": "cuda"}
    written.append({"engines": {"a shape": "fused"}})
    with pytest.raises(PlaitError, match="expected 'cuda' or 'torch'"):
        loop.take_choices(run)
    written.append({"engines": {"a shape": ["cuda"]}})
    with pytest.raises(PlaitError, match="expected 'cuda' or 'torch'"):
        loop.take_choices(run)
