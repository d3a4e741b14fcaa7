"""The benchmarks: how they take turns, what they count and what they report. Their numbers are looked at elsewhere."""

import inspect
import json
import math
import mmap
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils.flop_counter import FlopCounterMode

from plait import layers as plait_layers
from plait.bench import (
    QUESTIONS,
    allocators,
    asked,
    batch,
    bucketing,
    classify,
    language,
    layers,
    phases,
    phases_rotate,
    ragged,
    steps,
    targets,
)
from plait.bench.peak import Peak
from plait.bench.report import Report, interleaved, ratio, show, text, timing
from plait.bench.steps import Case
from plait.cli.output import Output
from plait.data import buckets
from plait.data.text import sentences
from plait.errors import PlaitError
from plait.kernels.records import peak as PEAK
from plait.kernels.schedule import Schedule
from plait.tasks.classify import read_all
from plait.tasks.dataset import Dataset
from plait.tasks.pooled import judge
from plait.tasks.rotate import Rotator, squared_error
from plait.tasks.settings import ClassifySettings, RotateSettings

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this system's C library is not glibc")
TINY = "2,3,4,5,1 3,2,1,4,2"


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """--threads is for the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# --- taking turns ----------------------------------------------------------------------------------------------------
class Track:
    """Contenders that take a known time, and the clock that they turn."""

    def __init__(self, **costs: float) -> None:
        self.now, self.order = 0.0, ""
        self.contenders = {name: self.contender(name, cost) for name, cost in costs.items()}

    def contender(self, name: str, cost: float):
        def run() -> None:
            self.now += cost
            self.order += name

        return run


def test_contenders_take_turns_there_and_back_for_long_enough() -> None:
    track = Track(a=0.125, b=0.25, c=1.0)
    found = interleaved(track.contenders, 5, least=0.5, clock=lambda: track.now)
    assert found == {"a": [0.125] * 5, "b": [0.25] * 5, "c": [1.0] * 5}
    there, back = "aaaa" + "bb" + "c", "c" + "bb" + "aaaa"
    warm = "a" + "aaaa" + "b" + "bb" + "c" + "c"  # one call that does not count, then as many as it takes
    assert track.order == warm + there + back + there + back + there
    again = Track(a=0.125, c=1.0)
    interleaved(again.contenders, 5, warm=False, least=0.5, clock=lambda: again.now)
    assert again.order.startswith("aaaa" + "c" + "aaaa" + "c" + "c" + "aaaa")


def test_every_file_with_a_measure_can_be_asked() -> None:
    folder = Path(layers.__file__).parent
    assert sorted(QUESTIONS) == sorted(p.stem for p in folder.glob("*.py") if "\ndef measure(" in p.read_text())


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_help_reads_is_what_measure_takes(name: str) -> None:
    """The text of the signature is read without importing the file: both must say the same."""
    module = import_module(f"plait.bench.{name}")
    about, signature = asked(name)
    assert about
    assert module.__doc__.startswith(about)
    assert signature.parameters == inspect.signature(module.measure).parameters
    for p in signature.parameters.values():
        text, *metavar = p.annotation.__metadata__
        assert text.endswith((".", ")"))
        assert all(m.isupper() for m in metavar)
        assert p.default is None or isinstance(p.default, p.annotation.__origin__)


@pytest.mark.parametrize("name", [name for name in QUESTIONS if "repeats" in asked(name)[1].parameters])
def test_too_few_repeats(refused, name: str) -> None:
    assert "repeats 4: must be at least 5" in refused("bench", name, "--repeats", "4")


def test_ratios_are_taken_pair_by_pair() -> None:
    """All is twice as slow in the second half: the ratios do not notice."""
    ours = [1.0, 1.0, 1.0, 2.0, 2.0]
    theirs = [3.0, 3.3, 2.7, 6.0, 6.2]
    found = ratio(theirs, ours)
    assert (found.low, found.median, found.high) == (3.0, 3.0, 3.1)
    assert timing(theirs).high / timing(ours).low > 5


# --- the report ------------------------------------------------------------------------------------------------------
def test_numbers_as_they_are_printed() -> None:
    values = (None, "walk", 3, 0.0, 3e-7, 0.0123456, -0.5, 1.0, 123.456, 12345.6, 1e12)
    assert [text(v) for v in values] == [
        *("-", "walk", "3", "0", "3.00e-07", "0.0123", "-0.5000", "1", "123.5", "12346", "1.00e+12")
    ]


def test_a_report_prints_each_table_with_the_rows_that_have_its_keys(capsys) -> None:
    rows = [{"a": 1, "b": 2.5}, {"c": 7}, {"a": 3, "b": None}]
    show(Report("Why?", [("a", "b"), ("c",)], rows, ["So."], 2), Output(None))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Why?"
    assert [line.split() for line in lines[2:]] == [["a", "b"], ["1", "2.5"], ["3", "-"], [], ["c"], ["7"], [], ["So."]]
    show(Report("Why?", [("a", "b"), ("c",)], rows, (), 1), Output(None))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[2:]] == [["a", "b"], ["1", "2.5"], [], ["c"], ["7"], []]
    show(Report("Why?", [("a", "b")], rows, (), 2), Output("-"))
    assert json.loads(capsys.readouterr().out)["rows"] == rows  # all of them


# --- what is counted -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("input_gradient", [False, True])
@pytest.mark.parametrize("case", [Case("lstm", 2, 5, 3, 4), Case("gru", 3, 4, 6, 5, 3), Case("rnn", 1, 2, 1, 1, 2)])
def test_the_work_is_what_torch_counts(case: Case, input_gradient: bool) -> None:
    layer = plait_layers.layer(case.cell, case.I, case.H, case.layers, engine="torch:steps")
    x = torch.randn(case.T, case.B, case.I, requires_grad=input_gradient)
    with FlopCounterMode(display=False) as counter:
        layer(x)[0].sum().backward()
    assert counter.get_total_flops() == case.work(input_gradient)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps the peak of a process's memory")
def test_memory_of_a_step() -> None:
    """The rows of a step are some MB at least, whoever computes them."""
    for step in steps.contenders(Case("lstm", 64, 32, 8, 128), "auto").values():
        step()
        found = [steps.extra_memory(step) for _ in range(3)]  # the system takes memory back when it likes
        assert None not in found
        rows = 64 * 32 * 128 * 4 / 2**20
        assert 4 * rows < max(found) < 100 * rows


def test_memory_that_nobody_knows(monkeypatch) -> None:
    monkeypatch.setattr(steps, "give_back", lambda: None)
    assert steps.extra_memory(steps.contenders(Case("rnn", 1, 1, 1, 1), "auto")["torch"]) is None
    monkeypatch.setattr(steps, "give_back", lambda: print)
    monkeypatch.setattr(steps, "Path", lambda name: Path("nowhere") / name.lstrip("/"))
    assert steps.extra_memory(steps.contenders(Case("rnn", 1, 1, 1, 1), "auto")["torch"]) is None


# --- layers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [[], ["--input-gradient", "--engine", "torch:steps"]])
def test_layers(plait, options: list[str]) -> None:
    args = ("bench", "layers", "--shapes", TINY, "--cells", "gru,lstm", "--repeats", "5", "--threads", "1")
    result = json.loads(plait(*args, *options, "--json", "-")[1])
    assert result["environment"]["threads"] == 1
    rows = result["rows"]
    (peak,) = {row["peak GFLOP/s"] for row in rows}
    assert f"peak: {peak:.1f} GFLOP/s, of the register tile from the first cache, on 1 thread." in result["remarks"]
    assert [(row["shape"], row["cell"]) for row in rows] == [(s, c) for s in TINY.split() for c in ("gru", "lstm")]
    for row in rows:
        assert set(row) >= {*layers.TIMES, *layers.SHARES, *layers.REST, *layers.PAGES}
        assert math.isclose(row["plait %"] * peak / 100, row["GFLOP/s"])
        assert math.isclose(row["torch %"] * row["torch ms"], row["plait %"] * row["plait ms"])
        assert math.isclose(row["peak ms"] * 100, row["plait %"] * row["plait ms"])
        assert row["malloc"] == "default"
        assert 0 < row["low"] <= row["faster"] <= row["high"]
        assert 0.1 < row["faster"] * row["plait ms"] / row["torch ms"] < 10  # two kinds of median
        case = Case(row["cell"], *map(int, row["shape"].split(",")))
        assert math.isclose(row["GFLOP/s"] * row["plait ms"] * 1e6, case.work(bool(options)))
        assert row["deviation"] < 1e-4
        assert row["slower"] == (row["high"] < 1)
        assert row["engine"] == ("torch:steps" if options else "fused")
        for name in ("torch", "plait"):
            assert (row[f"{name} MB"] < 100) if sys.platform == "linux" else (row[f"{name} MB"] is None)


def settings_of_malloc(*_: object) -> tuple[list[layers.Row], list[str]]:
    row = {"shape": "1,1,1,1,1", "cell": "gru", "slower": False, "deviation": 0.0, "where": "here"}
    return [{**row, "threads": torch.get_num_threads(), "faster": os.environ.get("MALLOC_TRIM_THRESHOLD_")}], []


def lost(*_: object) -> None:
    os._exit(1)


@pytest.mark.slow
@needs_glibc
def test_malloc_is_tuned_in_a_process_of_its_own(monkeypatch) -> None:
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "7")
    torch.set_num_threads(3)
    monkeypatch.setattr(layers, "measured", settings_of_malloc)
    for malloc, setting in (("tuned", str(1 << 32)), ("default", None)):
        (row,) = layers.measure(None, "gru", None, "auto", False, malloc, 5, 0).rows
        assert (row["malloc"], row["faster"], row["threads"]) == (malloc, setting, 3)
    assert "MALLOC_TRIM_THRESHOLD_" not in os.environ
    assert os.environ["MALLOC_MMAP_THRESHOLD_"] == "7"
    with pytest.raises(PlaitError, match="ended from outside"):
        allocators.tuned(lost)


@needs_glibc
@pytest.mark.slow
def test_torch_touches_fresh_pages_unless_malloc_is_tuned() -> None:
    """Why a large LSTM of torch is slow as it comes."""
    faults = {}
    for malloc in ("default", "tuned"):
        (row,) = layers.measure("64,128,128,256,1", "lstm", None, "auto", False, malloc, 5, 0).rows
        faults[malloc] = row["torch faults"], row["plait faults"]
    assert faults["default"][0] > 1000
    assert max(faults["default"][1], *faults["tuned"]) < 20


def test_a_malloc_that_cannot_be_tuned(monkeypatch, refused) -> None:
    monkeypatch.setattr(allocators.platform, "libc_ver", lambda: ("", ""))
    assert "malloc 'tuned' is a setting of glibc" in refused("bench", "layers", "--malloc", "tuned")


def test_fresh_pages_are_counted() -> None:
    class Fresh(steps.Step):
        def __call__(self) -> None:
            mmap.mmap(-1, 100 * mmap.PAGESIZE).write(b"1" * 100 * mmap.PAGESIZE)

    faults, system = steps.pages(Fresh(torch.nn.Identity(), torch.ones(1), torch.ones(1)), 5)
    if sys.platform == "win32":
        assert (faults, system) == (None, None)
    else:
        assert faults >= 100
        assert system >= 0


@pytest.mark.parametrize("engine", ["numpy", "torch:steps", "fused"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_the_contenders_are_torchs_layer_and_plaits_on_the_engine_asked_for(cell: str, engine: str) -> None:
    pair = steps.contenders(Case(cell, 2, 3, 4, 5, 2), engine)
    assert list(pair) == ["torch", "plait"]
    theirs, ours = (step.layer for step in pair.values())
    assert type(theirs) is steps.TORCH[cell]
    assert isinstance(ours, plait_layers.Recurrent)
    assert ours.engine == engine
    assert pair["torch"].x is pair["plait"].x
    assert pair["torch"].d_y is pair["plait"].d_y
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert p is not q
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("module", "args"),
    [
        (layers, ("layers", "--shapes", "2,3,4,5,1", "--cells", "gru")),
        (batch, ("batch", "--size", "4", "--cell", "gru")),
    ],
    ids=["layers", "batch"],
)
@pytest.mark.usefixtures("small")
def test_what_is_raced_runs_on_the_engine_asked_for(plait, monkeypatch, module, args: tuple[str, ...]) -> None:
    raced = []

    def race(pair: dict[str, steps.Step], repeats: int):
        raced.append((type(pair["torch"].layer), type(pair["plait"].layer), pair["plait"].layer.engine))
        return [timing([1.0] * repeats)] * 3

    monkeypatch.setattr(module, "race", race)
    assert plait("bench", *args, "--engine", "torch:steps", "--repeats", "5", "--threads", "1")[0] == 0
    assert set(raced) == {(torch.nn.GRU, plait_layers.GRU, "torch:steps")}


def test_layers_on_a_narrow_terminal(plait, monkeypatch) -> None:
    shape = "1000,10,1000,1000,1"
    times = {"torch ms": 1234.5, "plait ms": 1034.5, "faster": 1.2345, "low": 0.98765, "high": 1.34567}
    rest = {"GFLOP/s": 123.456, "engine": "fused", "torch MB": 1234.5, "plait MB": 999.87, "deviation": 1.23456e-7}
    pages = {"torch faults": 123456.0, "plait faults": 1234.5, "torch sys": 1234.5, "plait sys": 0.0123}
    row = {"shape": shape, "cell": "lstm", **times, **rest, **pages, "where": "d_weight_hh_l0", "slower": False}
    monkeypatch.setattr(layers, "compare", lambda *_: row)
    out = plait("bench", "layers", "--shapes", shape, "--cells", "lstm")[1]
    found = [line for line in out.splitlines() if line.startswith(("shape ", shape))]
    words = [7 + 2, 7, 7 + 3, 7, 6 + 2, 6, 6 + 4, 6]  # some names are two words
    assert [len(line.split()) for line in found] == words
    assert max(map(len, found)) <= 80
    split = [{"phase": name, "share %": 12.345} for name in (*phases.PHASES, "sum", "step")]
    monkeypatch.setattr(phases, "split", lambda *_: split)
    monkeypatch.setattr(layers, "draw", lambda *_: [Case("lstm", 1000, 10, 1000, 1000)])
    out = plait("bench", "layers", "--random", "1", "--json", "result.json")[1]
    found = [line for line in out.splitlines() if line.startswith(("shape ", shape))]
    assert [len(line.split()) for line in found] == [*words[:4], 9, 9, *words[4:]]
    assert max(map(len, found)) <= 80
    (row,) = json.loads(Path("result.json").read_text())["rows"]
    assert row["phases"] == split
    assert [row[name] for name in layers.WORST[3:]] == [12.345] * 6


def test_random_shapes_are_seeded_and_within_limits() -> None:
    drawn = layers.draw(300, ["lstm", "rnn"], 7)
    assert drawn == layers.draw(300, ["lstm", "rnn"], 7)
    assert drawn[:20] != layers.draw(20, ["lstm", "rnn"], 8)
    assert drawn[:20] == layers.draw(20, ["lstm", "rnn"], 7)
    assert {case.cell for case in drawn} == {"lstm", "rnn"}
    for name, most in layers.MOST.items():
        values = [getattr(case, name) for case in drawn]
        assert min(values) >= 1
        assert max(values) <= most
        assert sum(v * v < most for v in values) > 100  # small ones are not rare
    assert all(case.layers == 1 and case.work() <= layers.MOST_WORK for case in drawn)


@pytest.mark.slow
def test_random_shapes_from_the_command_line(plait, monkeypatch) -> None:
    monkeypatch.setattr(layers, "MOST_WORK", 1e6)
    monkeypatch.setattr(layers, "PRINTED", 1)
    code, out, _ = plait(
        "bench", "layers", "--random", "3", "--repeats", "5", "--seed", "1", "--threads", "1", "--json", "result.json"
    )
    assert code == 0
    assert "3 shapes at random" in out
    rows = json.loads(Path("result.json").read_text())["rows"]
    assert {(row["shape"], row["cell"]) for row in rows} == {
        (case.shape, case.cell) for case in layers.draw(3, ["lstm", "gru", "rnn"], 1)
    }
    assert [row["faster"] for row in rows] == sorted(row["faster"] for row in rows)
    assert out.count(rows[0]["shape"]) >= 2
    printed = [line for line in out.splitlines() if re.match(r"\d+,", line)]
    assert len(printed) == 5  # a line of each table
    assert re.search(r"^\d of 3 meet the target", out, re.MULTILINE)
    (worst,) = [row for row in rows if "phases" in row]
    assert worst["reach"] == min(row["reach"] for row in rows)


def test_what_seems_slower_is_measured_again(monkeypatch) -> None:
    cases = [Case("rnn", n, 1, 1, 1) for n in (1, 2, 3, 4)]
    quartiles = {  # what is found first, and then
        (1, 5): (1.5, 2.0, 2.5),
        (2, 5): (0.7, 0.9, 1.1),
        (2, 15): (1.0, 1.1, 1.2),  # it only seemed so
        (3, 5): (0.5, 0.6, 0.7),
        (3, 15): (0.8, 0.9, 0.99),  # slower
        (4, 5): (0.5, 0.6, 0.7),
        (4, 15): (0.8, 0.9, 1.01),  # not beyond the spread
    }
    asked = []

    def made_up(case: Case, engine: str, repeats: int, input_gradient: bool) -> layers.Row:
        asked.append((case.B, repeats))
        low, faster, high = quartiles[asked[-1]]
        about = {"shape": case.shape, "cell": case.cell, "deviation": case.B / 1e7, "where": "output 0"}
        return {**about, "low": low, "faster": faster, "high": high, "slower": high < 1}

    monkeypatch.setattr(layers, "compare", made_up)
    between = SimpleNamespace(between=iter)  # in place of the peak
    rows, remarks = layers.search(cases, "auto", 5, False, between)
    assert asked == [(1, 5), (2, 5), (3, 5), (4, 5), (2, 15), (3, 15), (4, 15)]
    assert [row["faster"] for row in rows] == [0.9, 0.9, 1.1, 2.0]
    assert remarks[0].startswith("4 shapes at random, half of them 1 times faster or more")
    assert remarks[1] == "3 seemed slower and were measured again, with 15 repeats."
    slower, deviation = layers.verdict(rows)
    assert slower == "slower beyond the spread (high < 1): 1 of 4; rnn 3,1,1,1,1"
    assert deviation == "largest deviation from torch 4.0e-07: output 0 of rnn 4,1,1,1,1"


# --- the peak, and what is to be reached -----------------------------------------------------------------------------
def test_the_peak_is_the_best_of_all_samples(monkeypatch) -> None:
    torch.set_num_threads(1)
    peak, seconds = Peak("gru"), iter([9.0, *[2.0] * 14, 1.0, 9.0, 0.5, *[3.0] * 14])
    assert peak.work == pytest.approx(1e8, rel=0.2)
    monkeypatch.setattr(peak, "burst", lambda: next(seconds))
    assert list(peak.between([7])) == [7]  # a sample before, one after, each with a call that does not count
    assert peak.best == peak.work / 0.5 / 1e9


@pytest.mark.parametrize("count", [1, 2])
def test_the_peak_computes_the_whole_tile(count: int) -> None:
    """So often as it says: all pieces are taken, once, and each thread has looked once more."""
    torch.set_num_threads(count)
    peak = Peak("gru")
    peak.sample()
    taken, pieces = (int(peak.block[word]) for word in (PEAK.TAKEN, PEAK.PIECES))
    target = Schedule().target(double=False)
    assert 1 <= taken - pieces <= count
    assert peak.work == pieces * int(peak.block[PEAK.EACH]) * 2 * target.rows * target.width * peak.rows.shape[1]
    assert (peak.rows.shape[0], peak.panel.shape[1]) == (target.rows, target.width)
    assert peak.rows.nbytes + peak.panel.nbytes < 32 << 10
    assert 0 < peak.best < 1e4 * count


@pytest.mark.parametrize(
    ("case", "found", "reach"),  # cell, B, H; faster, share, ms at the peak
    [
        (("lstm", 32, 64), (1.15, 10, 0.9), 1.0),  # faster is enough for small ones
        (("lstm", 32, 64), (1.0, 88, 0.9), 1.0),  # and so is the peak
        (("lstm", 32, 64), (1.0, 44, 0.9), 1.0 / 1.15),
        (("gru", 32, 64), (3.0, 35, 1.0), 0.5),  # from 1 ms on, a share is wanted in any case
        (("gru", 8, 64), (3.0, 35, 1.0), 2.0),  # but not of small batches
        (("rnn", 9, 64), (2.6, 60, 9.9), 1.0),
        (("rnn", 9, 64), (2.6, 60, 10.0), 0.75),
        (("lstm", 9, 72), (1.38, 70, 10.0), 1.0),  # units that do not fill vectors of 16
        (("rnn", 9, 72), (2.6, 60, 5.0), 1.0),
        (("lstm", 1000, 1000), (1.0, 88, 99.0), 1.0),
    ],
)
def test_how_much_of_the_target_is_reached(case, found, reach: float) -> None:
    faster, share, ms = found
    assert targets.reach(*case, 16, faster=faster, share=share, ms=ms) == pytest.approx(reach)


def test_a_row_is_judged_by_the_peak() -> None:
    row = {"shape": "9,2,3,72,1", "cell": "gru", "GFLOP/s": 50.0, "plait ms": 4.0, "torch ms": 8.0, "faster": 2.0}
    found = targets.judged(row, 200.0, 16)
    expected = {"peak GFLOP/s": 200.0, "peak ms": 1.0, "plait %": 25.0, "torch %": 12.5, "reach": 25 / 70}
    assert found == {**row, **expected}
    assert targets.verdict([found, {"reach": 1.0}]).startswith("1 of 2 meet the target")


# --- batch and phases ------------------------------------------------------------------------------------------------
@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(batch, "BATCHES", (2, 5))
    monkeypatch.setattr(batch, "SIZES", {8: 3, 10: 2, 12: 2})
    monkeypatch.setattr(batch, "PLAIN", 10)
    monkeypatch.setattr(batch, "POWER", 12)


@pytest.mark.usefixtures("small")
def test_batch(plait) -> None:
    args = ("bench", "batch", "--size", "4", "--cell", "gru", "--repeats", "5", "--threads", "1")
    code, out, _ = plait(*args, "--json", "result.json")
    assert code == 0
    rows = json.loads(Path("result.json").read_text())["rows"]
    assert [row["batch"] for row in rows if "batch" in row] == [2, 5]
    sizes = {row["size"]: row for row in rows if "size" in row}
    assert [(n, row["T"]) for n, row in sizes.items()] == [(8, 3), (10, 2), (12, 2)]
    for row in rows:
        N = row["batch"] * batch.STEPS if "batch" in row else batch.BATCH * row["T"]
        n = row.get("size", 4)
        for name in ("torch", "plait"):
            assert math.isclose(row[f"{name} ms/1000"], row[f"{name} ms"] * 1000 / N)
            assert math.isclose(row[f"{name} GFLOP/s"] * row[f"{name} ms"] * 1e6, 2 * N * 3 * n * 5 * n)
        assert row["low"] <= row["faster"] <= row["high"]
    share = sizes[12]["plait GFLOP/s"] / sizes[10]["plait GFLOP/s"]
    assert f"plait: 12 units have {share:.3f} of the GFLOP/s that 10 have." in out
    printed = [line for line in out.splitlines() if re.match(r"\d|batch|size", line)]
    assert len(printed) == 2 + 2 + 3  # two headers
    assert max(map(len, printed)) <= 80


def test_phases(plait) -> None:
    args = ("bench", "phases", "--shapes", "2,3,4,5,1", "--cells", "lstm,gru", "--repeats", "5", "--threads", "1")
    result = json.loads(plait(*args, "--json", "-")[1])
    rows = result["rows"]
    (peak,) = {row["peak GFLOP/s"] for row in rows}
    assert result["remarks"][0].startswith(f"peak: {peak:.1f} GFLOP/s")
    for row in rows:
        assert (
            row["peak %"] is None
            if row["phase"] == "bias"
            else row["peak %"] * peak / 100 == pytest.approx(row["GFLOP/s"])
        )
    names = ["project", "walk", "walk back", "weights", "input", "bias", "sum", "step"]
    assert [(row["cell"], row["phase"]) for row in rows] == [(c, name) for c in ("lstm", "gru") for name in names]
    for group in (rows[:8], rows[8:]):
        by_phase = {row["phase"]: row for row in group}
        assert by_phase["bias"]["GFLOP/s"] is None
        assert math.isclose(by_phase["sum"]["share %"], 100)
        assert 20 < sum(row["share %"] for row in group[:6]) < 200
        products = sum(row["GFLOP/s"] * row["ms"] * 1e6 for row in group[:5])
        assert math.isclose(products, Case(group[0]["cell"], 2, 3, 4, 5).work(input_gradient=True))


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_phases_of_the_fourth_paper(plait, cell: str) -> None:
    args = ("bench", "phases", "--task", "rotate", "--shapes", "3,4,6,5,1", "--cells", cell, "--repeats", "5")
    code, out, _ = plait(*args, "--threads", "1", "--json", "result.json")
    assert code == 0
    assert max(len(line) for line in out.splitlines()[2:]) <= 100
    rows = json.loads(Path("result.json").read_text())["rows"]
    phases = {row["phase"]: row for row in rows}
    assert [name.split()[0] for name in phases] == [*map(str, range(1, 11)), "sum", "step"]
    assert sum(row["paper %"] for row in rows[:10]) == pytest.approx(100.02)
    assert phases["step"]["paper %"] is None
    assert phases["sum"]["share %"] == 100
    assert phases["sum"]["peak %"] == pytest.approx(phases["sum"]["GFLOP/s"] / phases["sum"]["peak GFLOP/s"] * 100)
    assert phases["4 save"]["share %"] < min(row["share %"] for row in rows[:10] if row is not phases["4 save"])
    G = {"rnn": 1, "lstm": 4, "gru": 3}[cell]
    products = sum(row["GFLOP/s"] * row["ms"] * 1e6 for row in rows[:10] if row["GFLOP/s"] is not None)
    assert products == pytest.approx(2 * 12 * (2 * 6 * 5 * G + 3 * 5 * 5 * G + 3 * 6 * 5))
    assert float(re.search(r"gradients from autograd's: (\S+)", out)[1]) < 1e-5


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_the_work_of_the_fourth_papers_step_is_what_torch_counts(cell: str) -> None:
    model = Rotator(RotateSettings(cell=cell, hidden=5, engine="torch:steps"), 6)
    with FlopCounterMode(display=False) as counter:
        squared_error(model(torch.rand(4, 3, 6)), torch.rand(4, 3, 6)).backward()
    assert counter.get_total_flops() == sum(phases_rotate.work(Case(cell, 3, 4, 6, 5)).values())


# --- mistakes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["layers", "--malloc", "tune"],
            "malloc 'tune' is not known: did you mean 'tuned'? Expected one of default, tuned",
        ),
        (["layers", "--shapes", "32,12"], "shape '32,12': expected B,T,I,H,layers, each 1 to 99999, such as"),
        (["layers", "--shapes", "1,1,1,1,1 2,2,2,2,0"], "shape '2,2,2,2,0': expected"),
        (["layers", "--shapes", "1,1,1,1,100000"], "shape '1,1,1,1,100000': expected"),
        (["layers", "--shapes", ""], "shape '': expected"),
        (["layers", "--cells", "lstm,gruu"], "cell 'gruu' is not known: did you mean 'gru'?"),
        (["layers", "--cells", "implicit_gru"], "cell 'implicit_gru' is not known"),
        (["layers", "--engine", "fusd"], "engine 'fusd' is not known: did you mean 'fused'?"),
        (["layers", "--random", "0"], "random 0: must be at least 1."),
        (["layers", "--random", "5", "--shapes", "1,1,1,1,1"], "--shapes and --random were both given"),
        (["layers", "--repeats", "4"], "repeats 4: must be at least 5."),
        (["layers", "--threads", "0"], "threads 0: must be at least 1."),
        (["batch", "--size", "0"], "size 0: must be at least 1."),
        (["batch", "--cell", "lstm,gru"], "cell 'lstm,gru' is not known"),
        (["batch", "--repeats", "1"], "repeats 1: must be at least 5."),
        (["phases", "--shapes", "1,2,3,4,2"], "shape '1,2,3,4,2': the phases are those of one layer"),
        (["phases", "--cells", ""], "cell '' is not known"),
        (["phases", "--task", "rotat"], "task 'rotat' is not known: did you mean 'rotate'?"),
        (["phases", "--task", "rotate", "--cells", "rnn,gru"], "cells 'rnn,gru': task rotate takes one of each."),
        (["phases", "--task", "rotate", "--shapes", "1,2,3,4,2"], "shape '1,2,3,4,2': the phases are those of one la"),
        (["phases", "--repeats", "0"], "repeats 0: must be at least 5."),
    ],
)
def test_mistakes(refused, args: list[str], sentence: str) -> None:
    assert sentence in refused("bench", *args)


# --- ragged batches and language models ------------------------------------------------------------------------------
@pytest.fixture
def book(empty_folder: Path) -> str:
    """Sentences of 1 to 12 words: a third of the slots of a batch is padding, or more."""
    lines = (" ".join(f"w{(3 * k + j) % 17}" for j in range(1 + k * 5 % 12)) for k in range(150))
    Path("book.txt").write_text("\n".join(lines) + "\n")
    return "book.txt"


def rows_of(plait, *args: str) -> tuple[list[dict], str]:
    code, out, _ = plait("bench", *args, "--threads", "1", "--json", "result.json")
    assert code == 0
    result = json.loads(Path("result.json").read_text())
    assert result["environment"]["threads"] == 1
    return result["rows"], out


def test_bench_ragged(plait, book: str) -> None:
    rows, out = rows_of(
        plait, "ragged", "--data", book, "--hidden", "8", "--batch", "6", "--draws", "2", "--repeats", "5"
    )
    assert [(row["draw"], row["cell"]) for row in rows] == [(k, cell) for k in (0, 1) for cell in ("lstm", "gru")]
    for row in rows:
        assert 0 < row["real %"] < 100
        assert row["low"] <= row["faster"] <= row["high"]
        assert row["deviation"] < 1e-5
        assert row["of dense"] > 0 < row["rows, of dense"]
    assert "Outputs and gradients differ from torch's by at most" in out


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_ways_to_run_a_draw_are_whose_they_say(cell: str) -> None:
    draw = ragged.Draw(cell, torch.tensor([2, 5, 1]), 4)
    assert type(draw.theirs) is steps.TORCH[cell]
    assert isinstance(draw.ours, plait_layers.Recurrent)
    assert draw.ours.engine == "fused"
    called = []
    for name, layer in (("torch", draw.theirs), ("plait", draw.ours)):
        layer.register_forward_hook(
            lambda _, args, out, name=name: called.append((name, type(args[0]), out[0].data.shape))
        )
    for run in draw.contenders().values():
        run()
    padded, rows, dense = (5, 3, 4), (8, 4), (3, 3, 4)  # 8 steps of 3 sentences: about 3 each
    assert called == [
        ("torch", torch.Tensor, padded),
        ("torch", PackedSequence, rows),
        ("plait", torch.Tensor, padded),
        ("plait", PackedSequence, rows),
        ("plait", torch.Tensor, dense),
    ]


@pytest.mark.parametrize(("padded", "packed"), [(4.0, 2.0), (2.0, 3.0)])
def test_a_draw_is_compared_with_the_better_of_torchs_two(monkeypatch, padded: float, packed: float) -> None:
    seconds = {"padded": padded, "packed": packed, "plait": 1.0, "rows": 0.5, "dense": 0.25}
    monkeypatch.setattr(ragged, "interleaved", lambda _, n: {name: [took] * n for name, took in seconds.items()})
    row = ragged.compare(0, "gru", ragged.Draw("gru", torch.tensor([2, 5, 1]), 4), 5)
    assert (row["low"], row["faster"], row["high"]) == (2.0, 2.0, 2.0)
    assert row["real %"] == pytest.approx(100 * 8 / 15)
    assert row["of dense"] == pytest.approx(4 * 9 / 8)  # four times as long for 8 steps as for 9
    assert row["rows, of dense"] == pytest.approx(2 * 9 / 8)


def test_bucketing_runs_on_the_engine_asked_for(plait, book: str, monkeypatch) -> None:
    made = []

    class Spied(bucketing.Network):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            made.append(self.model.rnn)

    monkeypatch.setattr(bucketing, "Network", Spied)
    monkeypatch.setattr(bucketing, "by_turns", lambda _, every, repeats: dict.fromkeys(every, [1.0] * repeats))
    sizes = ("--hidden", "3", "--embedding", "2", "--batch", "4", "--sentences", "4", "--repeats", "5")
    rows, _ = rows_of(plait, "bucketing", "--data", book, "--layers", "1,2", *sizes, "--engine", "numpy")
    took = {row["batches"]: row["s/epoch"] for row in rows}
    assert took["none"] == pytest.approx(134 / 4)  # a second for four sentences of 134
    assert [(type(rnn), rnn.num_layers, rnn.engine) for rnn in made] == [
        (plait_layers.LSTM, layers, "numpy") for layers in (1, 2)
    ]


def test_bench_bucketing(plait, book: str) -> None:
    sizes = ("--hidden", "6", "--embedding", "5", "--batch", "4", "--sentences", "12", "--repeats", "5")
    rows, out = rows_of(plait, "bucketing", "--data", book, "--layers", "2,1", *sizes, "--picture", "b.png")
    assert Path("b.png").read_bytes().startswith(b"\x89PNG")
    assert {row["layers"] for row in rows} == {1, 2}
    found = {row["batches"]: row for row in rows if row["layers"] == 2}
    assert next(iter(found)) == "none"
    assert found["none"]["faster"] == 1
    lengths = [len(words) for words in sentences(Path(book).read_text())][:134]  # without validation and test
    assert found["none"]["padding %"] == pytest.approx(100 * buckets.padding(lengths, buckets.none(lengths)))
    order = ["none", "optimal 5", "optimal 10", "ragged"]
    padding = [found[name]["padding %"] for name in order]
    assert padding == sorted(padding, reverse=True)
    assert padding[-1] == found["ragged, pool:50"]["padding %"] == 0
    ideal = 1 / (1 - padding[0] / 100)
    for row in found.values():
        assert row["ideal %"] == pytest.approx(100 * row["faster"] / ideal)
    deviation = re.search(r"differ by at most (\S+) \(relative\)", out)
    assert float(deviation[1]) < 1e-5


@pytest.mark.parametrize("lengths", [[6] * 24, [2, 6, 4] * 8])
def test_bench_classify(plait, lengths: list[int]) -> None:
    """The script's network is that of the task: with its weights it gives the same logits, dense and ragged."""
    rng = np.random.default_rng(0)
    np.savez("x.npz", x=rng.normal(size=(24, 6, 3)), y=np.arange(24) % 2, lengths=lengths)
    sizes = ("--hidden", "4", "--layers", "2", "--batch", "8", "--repeats", "5")
    rows, _ = rows_of(plait, "classify", "--data", "x.npz", *sizes)
    assert [row["what"] for row in rows] == [
        *("plait, implicit_gru", "plait, gru", "plait, lstm"),
        "a torch script, nn.GRU",
    ]
    assert rows[-1]["faster"] == 1
    assert all(row["low"] <= row["faster"] <= row["high"] for row in rows)

    s = ClassifySettings(data="x.npz", hidden=4, layers=2, dropout=0.0)
    data = Dataset.of(read_all(s), validation=0.2, test=0.2, missing="error", seed=0)
    ours, script = classify.Ours(s, data).task.model, classify.Script(s, data)
    script.rnn.load_state_dict(ours.rnn.state_dict())
    script.head.load_state_dict(ours.head.state_dict())
    x, found, labels = script.parts["train"]
    expected = judge(ours, data.parts["train"])
    assert len(labels) == len(expected)
    torch.testing.assert_close(script.logits(x, found), expected, rtol=1e-5, atol=1e-6)
    before = [p.clone() for p in script.model.parameters()]
    script()
    assert not any(torch.equal(a, b) for a, b in zip(before, script.model.parameters(), strict=True))


def test_the_language_models_are_whose_they_say(plait, book: str, monkeypatch) -> None:
    raced = {}

    def spied(trainers, *args, **options):
        raced.update(trainers)
        return interleaved(trainers, *args, **options)

    monkeypatch.setattr(language, "interleaved", spied)
    sizes = ("--hidden", "3", "--batch", "2", "--steps", "3", "--count", "1", "--repeats", "5")
    rows_of(plait, "language", "--data", book, "--cell", "gru", *sizes)
    ours, swapped, script = raced.values()
    assert list(raced) == ["plait", "plait, but nn.GRU", "a torch script"]
    assert [type(trainer) for trainer in raced.values()] == [language.Ours, language.Ours, language.Script]
    assert [type(t.model.rnn) for t in raced.values()] == [plait_layers.GRU, torch.nn.GRU, torch.nn.GRU]
    assert ours.model.rnn.engine == "auto"
    assert ours.task.model is ours.model
    assert swapped.task.model is swapped.model
    assert len({id(t.model.rnn.weight_hh_l0) for t in (ours, swapped, script)}) == 3


def test_bench_language(plait, book: str) -> None:
    sizes = ("--hidden", "6", "--batch", "4", "--steps", "5", "--count", "2", "--repeats", "5")
    rows, _ = rows_of(plait, "language", "--data", book, "--cell", "gru", *sizes)
    assert [row["what"] for row in rows] == ["plait", "plait, but nn.GRU", "a torch script"]
    for row in rows:
        assert row["tokens/s"] == pytest.approx(4 * 5 / row["ms/step"] * 1e3)
        assert sum(value for key, value in row.items() if key.endswith(" %")) == pytest.approx(100)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("ragged",), "ragged batches need sentences"),
        (("bucketing",), "language needs a text"),
        (("language",), "language needs a text"),
        (("ragged", "--data", "book.txt", "--batch", "1000"), "expected at least a batch, 1000"),
        (("bucketing", "--data", "book.txt", "--layers", "two"), "layers 'two'"),
        (("bucketing", "--data", "book.txt", "--layers", "1001"), "layers '1001': expected numbers from 1 to 1000"),
        (("bucketing", "--data", "book.txt", "--picture", "b.jpg"), "--picture b.jpg"),
        (("bucketing", "--data", "book.txt", "--sentences", "3"), "sentences 3"),
        (("language", "--data", "book.txt", "--cell", "implicit_gru"), "cell 'implicit_gru' is not known"),
    ],
)
def test_what_cannot_be_measured_on_a_text(refused, book: str, args, sentence: str) -> None:
    assert sentence in refused("bench", *args)
