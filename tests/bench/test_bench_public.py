"""The public reports: what is timed is what they time, it is compared with torch, and their figures stand beside it."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from plait import layers
from plait.bench.core import malloc
from plait.bench.public import measure as public
from plait.bench.public.measure import Script, checked, packed, pair, race
from plait.bench.public.reports import PACKED
from plait.errors import PlaitError


@pytest.fixture(autouse=True)
def one_thread(set_threads) -> None:
    set_threads(1)


@pytest.fixture
def small(monkeypatch) -> None:
    """Networks of the same kinds, and blocks of one step."""
    monkeypatch.setattr(public, "LEAST", 0.0)
    monkeypatch.setattr(public, "SMALL", ["10", "20"])
    gru = lambda: pair(nn.GRU(3, 4, batch_first=True), torch.randn(2, 5, 3, requires_grad=True), None)  # noqa: E731
    lstm = lambda: pair(nn.LSTM(3, 4, 2, batch_first=True), torch.rand(2, 6, 3), torch.rand(2, 2, 2, 4))  # noqa: E731
    monkeypatch.setattr(public, "SCRIPTS", {"4154": gru, "81634": lstm})


# --- what is timed ---------------------------------------------------------------------------------------------------
def test_packed_sequences_have_lengths_from_one_to_the_longest() -> None:
    contenders = packed(7, 3, 4, 5)
    assert list(contenders) == ["padded", "packed", "plait", "lengths="]
    for name in ("packed", "plait", "lengths="):
        y = contenders[name].forward()
        assert (y != 0).any(2).sum(0).tolist() == [1, 4, 7]
    assert (contenders["padded"].forward() != 0).all()
    theirs, ours = contenders["packed"].layer, contenders["plait"].layer
    assert type(theirs) is nn.LSTM
    assert isinstance(ours, layers.Recurrent)
    assert contenders["padded"].layer is theirs
    assert contenders["lengths="].layer is ours
    assert theirs.num_layers == 2


@pytest.mark.parametrize(
    ("report", "kind", "shape", "input_gradient"),
    [("4154", nn.GRU, "64,32,32,128,1", True), ("81634", nn.LSTM, "8,2000,256,256,2", False)],
)
def test_shapes_of_the_other_reports(report: str, kind: type, shape: str, input_gradient: bool) -> None:
    contenders = public.SCRIPTS[report]()
    B, T, I, H, count = map(int, shape.split(","))
    layer, x = contenders["torch"].layer, contenders["torch"].x
    assert type(layer) is kind
    assert (x.shape, x.requires_grad) == ((B, T, I), input_gradient)
    assert (layer.input_size, layer.hidden_size, layer.num_layers, layer.batch_first) == (I, H, count, True)
    assert contenders["plait"].x is x


def test_forward_and_backward_are_timed_in_turns(monkeypatch) -> None:
    """By a clock that only the two passes turn: forward 1 s, backward 2 s (a layer twice as slow: 2 s and 4 s)."""
    now, order = [0.0], []
    monkeypatch.setattr(public, "perf_counter", lambda: now[0])
    monkeypatch.setattr(public, "LEAST", 5.0)
    monkeypatch.setattr(public, "LONG", 100.0)

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, cost):
            ctx.cost = cost
            now[0] += cost
            return x.clone()

        @staticmethod
        def backward(ctx, d_y):
            now[0] += 2 * ctx.cost
            return d_y, None

    def contender(cost: float) -> Script:
        x = torch.ones(3, requires_grad=True)

        def forward() -> torch.Tensor:
            order.append(cost)
            return Slow.apply(x, cost)

        return Script(nn.Identity(), x, forward)

    phases = race({"a": contender(1.0), "b": contender(2.0)}, 3)
    assert phases == {
        "forward": {"a": [1.0] * 3, "b": [2.0] * 3},
        "backward": {"a": [2.0] * 3, "b": [4.0] * 3},
        "step": {"a": [3.0] * 3, "b": [6.0] * 3},
    }
    warm = [1.0] * 3 + [2.0] * 2  # one step, then as many as take 5 s
    assert order == [*warm, 1, 1, 2, 2, 1, 1, 1, 1, 2]


def test_long_steps_are_repeated_less_often(monkeypatch) -> None:
    monkeypatch.setattr(public, "LONG", 0.0)
    contenders = packed(3, 2, 2, 2)
    phases = race(contenders, 9)
    assert {len(seconds) for phase in phases.values() for seconds in phase.values()} == {5}
    assert all(contender.steps == 1 for contender in contenders.values())


def test_another_network_is_refused() -> None:
    contenders = packed(5, 3, 4, 6)
    assert checked(contenders, "packed", "L 5") < 1e-6
    with torch.no_grad():
        contenders["plait"].layer.weight_hh_l1[3, 2] += 0.3
    with pytest.raises(PlaitError, match=r"L 5: plait's results are .* off torch's"):
        checked(contenders, "packed", "L 5")


# --- the report ------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("small")
def test_public(plait, monkeypatch) -> None:
    run = []
    monkeypatch.setattr(malloc, "runner", lambda name: lambda f, *args: (run.append(name), f(*args))[1])
    args = ("bench", "public", "--sizes", "3,4,5", "--lengths", "20,10", "--malloc", "both", "--repeats", "5")
    code, out, _ = plait(*args, "--threads", "1", "--json", "result.json")
    assert code == 0
    assert run == ["default", "tuned"]
    rows = json.loads(Path("result.json").read_text())["rows"]
    both = ("default", "tuned")
    assert [(r["L"], r["timed"], r["malloc"], r["report %"]) for r in rows if "L" in r] == [
        (L, timed, malloc, PACKED[L][k])
        for L in (10, 20)
        for k, timed in enumerate(("forward", "backward"))
        for malloc in both
    ]
    assert [(r["report"], r["timed"], r["malloc"], r["report ms"]) for r in rows if "report" in r] == [
        (*row[:2], malloc, row[2])
        for row in (("#4154", "step", 10.2), ("#81634", "forward", 200e3), ("#81634", "step", "not given"))
        for malloc in both
    ]
    assert {r["B,T,I,H,layers"] for r in rows if "report" in r} == {"2,5,3,4,1", "2,6,3,4,2"}
    for row in rows:
        assert row["deviation"] < 1e-5
        assert row["repeats"] == 5
        assert 0 < row["low"] <= row["faster"] <= row["high"]
        for name in ("packed", "plait", "lengths=", "padded") if "L" in row else ("torch", "plait"):
            low, high = row[f"{name} quartiles"]
            assert 0 < low <= row[name if "L" in row else f"{name} ms"] <= high
    assert "The reports are of other machines: docs/public.md says which" in out


@pytest.mark.usefixtures("small")
def test_quick_takes_some_lengths_and_one_malloc(plait) -> None:
    args = ("bench", "public", "--quick", "--reports", "149194", "--sizes", "3,4,5", "--repeats", "5", "--json", "-")
    result = json.loads(plait(*args)[1])
    assert [(r["L"], r["malloc"]) for r in result["rows"]] == [(L, "default") for L in (10, 10, 20, 20)]
    assert not any("report" in row for row in result["rows"])


def test_on_a_narrow_terminal(plait, monkeypatch) -> None:
    times = {"padded": 1234.5, "packed": 12345.6, "plait": 1234.5, "lengths=": 1234.5, "deviation": 1.23456e-7}
    shares = {"report %": 11384.78, "torch %": 11384.78, "plait %": 123.45}
    ratios = {"faster": 12.345, "low": 11.2345, "high": 13.4567}
    some = {"L": 4000, "timed": "backward", **times, **shares, **ratios}
    other = {"report": "#81634", "timed": "forward", "report ms": "not given", "torch ms": 12345.6, "plait ms": 1234.5}
    other |= {**ratios, "B,T,I,H,layers": "8,2000,256,256,2", "deviation": 1.23e-7}
    monkeypatch.setattr(public, "measured", lambda *_: [some, other])
    out = plait("bench", "public", "--malloc", "default")[1]
    found = [line for line in out.splitlines() if line.startswith(("L ", "4000", "report", "#"))]
    assert len(found) == 8
    assert max(map(len, found)) <= 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--reports", "149194,7"), "report '7' is not known"),
        (("--lengths", "10,11"), "length '11' is not known"),
        (("--sizes", "32,64"), "sizes '32,64': expected batch, inputs and units"),
        (("--sizes", "32,64,0"), "units 0: must be at least 1"),
        (("--malloc", "mine"), "malloc 'mine' is not known"),
    ],
)
def test_what_is_refused(refused, options: tuple[str, ...], message: str) -> None:
    assert message in refused("bench", "public", *options)


def test_the_report_on_packed_sequences_says_5_to_114_times() -> None:
    forward = [told[0] / 100 for told in PACKED.values()]
    assert math.floor(min(forward)) == 5
    assert round(max(forward)) == 114
    assert list(PACKED) == sorted(PACKED)
