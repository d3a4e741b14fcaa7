"""The kernels' functions: their ends, and how exact they are (`plait bench functions` measures more of the numbers)."""

import math
import struct

import pytest
import torch
from torch import Tensor

import plait
from plait.bench.functions import measure as functions
from plait.bench.functions.measure import ABOVE, BELOW, FUNCTIONS, H, Worst, alone, drawn, on_kernel, sweep
from plait.cells import Cell
from plait.cells.ops import tensors
from plait.kernels.emit.target import host

# In units of the last place. (sigmoid in float32 is exact to 1, not to its size.)
PLACES = {"tanh": 5.0, "sigmoid": 3.0, "exp": 1.0, "log": 1.0, "sqrt": 0.5, "softplus": 2.0}
PLACES64 = {"tanh": 3.0, "sigmoid": 2.5, "exp": 1.0, "log": 1.0, "sqrt": 0.5, "softplus": 2.0}


NAMES = ("exp", "log", "sqrt", "softplus")


class Many(Cell):
    """All functions of one number, so that one kernel is compiled for them."""

    gates = ("a", "b", "c")
    states = ("h", "s", "u", "v")

    def step(wx, rh, state, ops):
        return ops.exp(wx[0]), ops.log(wx[0]), ops.sqrt(wx[0]), ops.softplus(wx[0])


class Gates(Cell):
    """Both functions that open and shut gates."""

    gates = ("a", "b")
    states = ("h", "s")

    def step(wx, rh, state, ops):
        return ops.tanh(wx[0]), ops.sigmoid(wx[1])


class Pairs(Cell):
    gates = ("a", "b", "c")
    states = ("h", "s", "u", "v")

    def step(wx, rh, state, ops):
        a, b, c = wx
        return ops.maximum(a, b), ops.minimum(a, b), ops.where(a < b, c, ops.abs(a)), ops.where(b >= 0.5, 0.25, c)


def run(cell: type[Cell], *columns: Tensor) -> list[Tensor]:
    """One step on the kernel: each state, for numbers in the gates' columns."""
    engine = functions.engines.get("fused")
    x = torch.stack([c.view(-1, H) for c in columns], 1).flatten(1)  # (B, G*H)
    G = len(cell.gates)
    w = functions.Weights(x.new_zeros(G * H, 1), x.new_zeros(G * H, H), None, None, None)
    finals, _ = engine.recur(engine.prepare(cell, w), x, None, functions.Layout(1, x.shape[0]), keep=False)
    return [f.flatten() for f in finals]


def nan(payload: int, dtype: torch.dtype) -> float:
    """Not a number, but with something in its bits."""
    if dtype == torch.float64:
        return struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000 | payload))[0]
    return struct.unpack("<f", struct.pack("<I", 0x7FC00000 | payload))[0]


def ends(dtype: torch.dtype) -> Tensor:
    far = [1e30, -1e30, 100.0, -100.0, 700.0, -700.0, 710.0, -710.0, 1e-30, -1e-30, 1.0, -1.0, 0.5, 20.0, 88.0, -87.0]
    values = [0.0, -0.0, math.inf, -math.inf, math.nan, nan(1, dtype), nan(0x7FF, dtype), *far]
    values += [0.0] * (-len(values) % H)
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ends_are_torchs(dtype: torch.dtype) -> None:
    x = ends(dtype)
    found = run(Many, x, x, x)
    for y, name in zip(found, NAMES, strict=True):
        expected = getattr(tensors, name)(x)
        expected[expected.abs() < torch.finfo(dtype).tiny] = 0.0  # denormals count as 0
        torch.testing.assert_close(y, expected, rtol=4 * torch.finfo(dtype).eps, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_choices_are_exact_and_pass_nan_on(dtype: torch.dtype) -> None:
    x = ends(dtype)
    a, b = (v.flatten() for v in torch.meshgrid(x, x, indexing="ij"))
    c = torch.randn(a.shape, dtype=dtype)
    found = run(Pairs, a, b, c)
    quarter = torch.full_like(c, 0.25)
    expected = (
        torch.maximum(a, b),
        torch.minimum(a, b),
        torch.where(a < b, c, a.abs()),
        torch.where(b >= 0.5, quarter, c),
    )
    for y, e in zip(found, expected, strict=True):
        torch.testing.assert_close(y, e, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("negative", [False, True])
def test_how_exact_the_functions_are(negative: bool) -> None:
    """A thin sample of all float32."""
    for x in functions.floats(87.336, 5003, negative=negative):
        for y, name in zip(run(Many, x, x, x), NAMES, strict=True):
            if negative and name not in BELOW:
                assert y.isnan().all()
                continue
            exact, worst = getattr(tensors, name)(x.double()), Worst()
            worst.add(x, (y.double() - exact).abs(), exact.float())
            assert worst.places <= PLACES[name], name


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_how_exact_all_functions_are(function: str) -> None:
    for negative in (False, True) if function in BELOW else (False,):
        end = min(100.0, BELOW[function] if negative else ABOVE.get(function, math.inf))
        if not (function == "sigmoid" and negative):
            assert sweep(function, end, 61, negative=negative)[1].places <= PLACES[function]
        assert drawn(function, end, 1 << 18, negative=negative)[1].places <= PLACES64[function]
    for dtype in (torch.float32, torch.float64):
        x = ends(dtype)
        assert on_kernel(alone(function), x).isnan().tolist() == getattr(tensors, function)(x).isnan().tolist()


def test_a_function_that_is_off_is_noticed(monkeypatch) -> None:
    """The measure itself: a result that is wrong by two last places is seen as such."""
    monkeypatch.setattr(functions, "on_kernel", lambda cell, x: torch.exp(x) * (1 + 2 * 2.0**-23))
    assert 2.0 <= sweep("exp", 1.0, 100003, negative=False)[1].places <= 5.0


FUSES = host().machine in ("aarch64", "arm64") or "fma" in host().features


@pytest.mark.skipif(not FUSES, reason="this processor has no instruction for a * b + c")
def test_gates_can_be_shut_and_opened() -> None:
    """Near 0 and 1 is not enough: a state that should stay would fade over thousands of steps."""
    first, last = (torch.tensor(v).view(torch.int32).item() for v in (7.0, 20.0))
    x = torch.arange(first, last, 5, dtype=torch.int32).view(torch.float32)
    x = torch.cat([x[: len(x) // H * H], torch.tensor([1e9, math.inf] + [20.0] * (H - 2))])
    far = x >= 8
    for sign in (1, -1):
        for y, below in zip(run(Gates, sign * x, 2 * sign * x), (-1.0, 0.0), strict=True):
            assert (y[far] == (1.0 if sign == 1 else below)).all()
            assert y.min() >= below
            assert y.max() <= 1.0


def test_an_open_gate_keeps_a_state_for_thousands_of_steps() -> None:
    layer, zero = plait.LSTM(1, 1, engine="fused"), torch.zeros(1, 1, 1)
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.bias_ih_l0.copy_(torch.tensor([-1e9, 1e9, 0.0, 0.0]))  # i shut, f open
        c = layer(torch.zeros(5000, 1, 1), (zero, zero + 2.0))[1][1]
    assert c.item() == 2.0
