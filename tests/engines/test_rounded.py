"""Products of bfloat16 numbers, against the same roundings step by step in float64."""

import random

import pytest
import torch

from plait import engines
from plait.cells import CELLS
from plait.cells.trace import trace
from plait.engines import Layout, Weights
from plait.engines.fused import FusedEngine
from plait.errors import PlaitError
from plait.kernels.launch.schedule import Schedule
from plait.ladder.compare import ONE_ROUNDING
from plait.ladder.rounded import Layer, drawn, rounded
from some_cells import MGU, Apart, Leaky, PeepholeLSTM

EVERY = [*CELLS.values(), MGU, Apart, Leaky, PeepholeLSTM]


def case(seed: int) -> Layer:
    draw, cell = random.Random(seed), EVERY[seed % len(EVERY)]
    I, H, T = draw.choice((1, 3, 8, 31, 70)), draw.choice((1, 5, 8, 15, 16, 31, 64, 97)), draw.choice((1, 2, 7, 13))
    B = draw.choice((1, 2, 5, 16, 19))
    lengths = [T, *sorted((draw.randint(1, T) for _ in range(B - 1)), reverse=True)]
    layout = Layout.of_lengths(torch.tensor(lengths)) if draw.random() < 0.5 else Layout(T, B)
    is_projected = draw.random() < 0.3 and not trace(cell).reads_h and H > 1
    P, directions, bias = H // 2 if is_projected else H, draw.choice((1, 2)), draw.random() < 0.7
    return drawn(cell, layout, I, H, P, directions, bias, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(36))
def test_only_sums_may_differ(seed):
    assert case(seed).deviation() <= ONE_ROUNDING


def test_most_are_as_close_as_float32_sums_are():
    """One rounding the other way is rare: else the tolerance above would hide other faults."""
    close = [case(seed).deviation() < 2.0**-15 for seed in range(36, 60)]
    assert sum(close) > len(close) // 2


@pytest.mark.parametrize("seed", [0, 2, 3, 7, 11])
def test_threads_do_not_change_a_bit_of_the_forward_pass(seed):
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(case(seed).by_engine())
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_every_width_of_vectors_gives_the_same_bits(monkeypatch):
    host, found = Schedule().machine(), []
    if host.has_dot:
        pytest.skip("avx512_bf16 adds both products of a pair at once, shorter vectors one after the other")
    for bits in host.widths:
        one = FusedEngine(Schedule(vector_bits=bits))
        monkeypatch.setattr(engines, "get", {"fused": one}.get)
        found.append(case(14).by_engine())
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[0], strict=True))


def test_numbers_are_rounded_to_the_nearest_and_ties_to_even():
    """W x alone, with x = 1 in one place: what comes out is what W was rounded to."""
    exact = [1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, -1 - 2.0**-8, 3.4e38, 1e-30, 0.0, float("inf")]
    cell, W = CELLS["rnn_relu"], torch.tensor([[v, 0.0, 0.0] for v in exact] * 2)
    H, zero = len(W), torch.zeros(len(W), len(W))
    layer = Layer(
        cell, [Weights(W, zero)], torch.eye(3)[:1], [torch.zeros(1, 1, H)], Layout(1, 1), zero[:1], [zero[:1, None]]
    )
    rows, *_ = layer.by_engine()
    assert torch.equal(rows[0], torch.relu(rounded(W[:, 0])))


def test_what_is_no_number_stays_none():
    layer = case(0)
    layer.x[0, 0] = float("nan")
    assert layer.by_engine()[0][0].isnan().any()


def test_a_walk_from_given_inputs_is_in_float32():
    layer, engine = case(1), engines.get("fused")
    p = engine.prepare(layer.cell, layer.weights[0], rounded=True)
    wx = torch.zeros(layer.layout.N, layer.weights[0].w_ih.shape[0])
    with pytest.raises(PlaitError, match="float32: prepare the weights with rounded=False"):
        engine.recur(p, wx, None, layer.layout)


@pytest.mark.parametrize("name", ["python", "numpy", "torch:steps"])
def test_other_engines_refuse(name):
    layer = case(1)
    with pytest.raises(PlaitError, match=f"engine {name} rounds no operands"):
        layer.by_engine(name)
