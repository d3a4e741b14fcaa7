"""What the questions share: how contenders take turns, what is counted, printed and asked for."""

import inspect
import json
import mmap
import os
import pty
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from plait import bench as plait_bench
from plait import layers as plait_layers
from plait.bench import QUESTIONS, about
from plait.bench.core import malloc as mallocs
from plait.bench.core import memory, progress, steps
from plait.bench.core.peak import Burst, Peak
from plait.bench.core.pictures import factor
from plait.bench.core.report import WIDTH, Report, show, text
from plait.bench.core.steps import Case
from plait.bench.core.turns import Laps, ratio, spread, take_turns
from plait.bench.options import LAST
from plait.cli.output import Output
from plait.kernels.launch.schedule import Schedule


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
    found = take_turns(track.contenders, 5, least=0.5, clock=lambda: track.now)
    assert found == {"a": [0.125] * 5, "b": [0.25] * 5, "c": [1.0] * 5}
    there, back = "aaaa" + "bb" + "c", "c" + "bb" + "aaaa"
    warm = "a" + "aaaa" + "b" + "bb" + "c" + "c"  # one call that does not count, then as many as it takes
    assert track.order == warm + there + back + there + back + there
    again = Track(a=0.125, c=1.0)
    take_turns(again.contenders, 5, warm=False, least=0.5, clock=lambda: again.now)
    assert again.order.startswith("aaaa" + "c" + "aaaa" + "c" + "c" + "aaaa")


def test_every_folder_but_the_core_is_a_question() -> None:
    folder = Path(plait_bench.__file__).parent
    assert sorted([*QUESTIONS, "core"]) == sorted(p.parent.name for p in folder.glob("*/__init__.py"))


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_has_sentences_for_help_and_options_in_one_order(name: str) -> None:
    assert about(name).endswith((".", "?"))
    listed = QUESTIONS[name].listed()
    for f in listed:
        assert f.metadata["help"].endswith((".", ")"))
        assert f.metadata["metavar"] is None or f.metadata["metavar"].isupper()
        assert f.default is None or isinstance(f.default, f.type)
    names = [f.name for f in listed]
    assert [n for n in names if n in LAST] == names[-sum(n in LAST for n in names) or len(names) :]
    assert inspect.signature(import_module(f"plait.bench.{name}.measure").measure).parameters.keys() == {"options"}


def test_help_of_the_benchmarks_does_without_torch() -> None:
    code = "import sys; from plait.cli import commands; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", [name for name in QUESTIONS if "repeats" in QUESTIONS[name].__annotations__])
def test_too_few_repeats(refused, name: str) -> None:
    assert "repeats 4: must be at least 5" in refused("bench", name, "--repeats", "4")


def test_phases_of_a_step(monkeypatch) -> None:
    """The first step, which compiles, counts in the shares only."""
    now = iter([0.0, 5.0, 6.0, 10.0, 11.0, 14.0, 20.0, 22.0, 25.0])
    monkeypatch.setattr("plait.bench.core.turns.time.perf_counter", lambda: next(now))
    laps = Laps(("a", "b"))
    for _ in range(3):
        laps.walk(lambda: iter([None, None]))
    assert {name: s.median for name, s in laps.spreads().items()} == {"a": 1.5, "b": 3.0}
    assert laps.total().median == 4.5
    assert laps.shares() == {"a %": pytest.approx(100 * 8 / 15), "b %": pytest.approx(100 * 7 / 15)}


def test_ratios_are_taken_pair_by_pair() -> None:
    """All is twice as slow in the second half: the ratios do not notice."""
    ours = [1.0, 1.0, 1.0, 2.0, 2.0]
    theirs = [3.0, 3.3, 2.7, 6.0, 6.2]
    found = ratio(theirs, ours)
    assert (found.low, found.median, found.high) == (3.0, 3.0, 3.1)
    assert spread(theirs).high / spread(ours).low > 5


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
        found = [memory.extra_memory(step) for _ in range(3)]  # the system takes memory back when it likes
        assert None not in found
        rows = 64 * 32 * 128 * 4 / 2**20
        assert 4 * rows < max(found) < 100 * rows


def test_memory_that_nobody_knows(monkeypatch) -> None:
    monkeypatch.setattr(memory, "Path", lambda name: Path("nowhere") / name.lstrip("/"))
    assert memory.extra_memory(steps.contenders(Case("rnn", 1, 1, 1, 1), "auto")["torch"]) is None


def test_a_malloc_that_cannot_be_tuned(monkeypatch, refused) -> None:
    monkeypatch.setattr(mallocs.platform, "libc_ver", lambda: ("", ""))
    assert "malloc 'tuned' is a setting of glibc" in refused("bench", "layers", "--malloc", "tuned")


def test_fresh_pages_are_counted() -> None:
    class Fresh(steps.Step):
        def __call__(self) -> None:
            mmap.mmap(-1, 100 * mmap.PAGESIZE).write(b"1" * 100 * mmap.PAGESIZE)

    faults, system = memory.pages(Fresh(torch.nn.Identity(), torch.ones(1), torch.ones(1)), 5)
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


def test_the_peak_is_the_best_of_all_samples(monkeypatch) -> None:
    torch.set_num_threads(1)
    peak, seconds = Peak(), iter([9.0, 2.0, 1.0, 9.0, 0.5, 3.0])
    assert peak.work == pytest.approx(1e8, rel=0.2)
    monkeypatch.setattr(peak, "burst", lambda: next(seconds))
    assert list(peak.between([7])) == [7]  # a sample before, one after, each with a call that does not count
    assert peak.best == peak.work / 0.5 / 1e9


@pytest.mark.parametrize("count", [1, 2])
def test_the_peak_computes_the_whole_tile(count: int) -> None:
    """So often as it says: all pieces are taken, once, and each thread has looked once more."""
    torch.set_num_threads(count)
    peak = Peak()
    peak.sample()
    taken, pieces = (int(peak.block[word]) for word in (Burst.TAKEN, Burst.PIECES))
    target = Schedule().target(double=False)
    assert 1 <= taken - pieces <= count
    assert peak.work == pieces * int(peak.block[Burst.EACH]) * 2 * target.rows * target.width * peak.rows.shape[1]
    assert (peak.rows.shape[0], peak.panel.shape[1]) == (target.rows, target.width)
    assert peak.rows.nbytes + peak.panel.nbytes < 32 << 10
    assert 0 < peak.best < 1e4 * count


# --- progress ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_says_how_far_it_is_without_doing_anything_for_it(name: str, monkeypatch, capsys) -> None:
    """However long something takes that says nothing."""
    assert progress.EVERY < 5
    module = import_module(f"plait.bench.{name}.measure")
    monkeypatch.setattr(progress, "EVERY", 0.02)

    def slow(options: object) -> Report:
        for _ in progress.tracked(["first"]):
            for _ in progress.tracked(["a", "b", "c"]):
                time.sleep(0.1)
        return Report(name, [], [])

    monkeypatch.setattr(module, "measure", slow)
    plait_bench.measure(name)
    said = capsys.readouterr().err.splitlines()
    assert all(re.fullmatch(r"plait: measuring, \d s, 1 of 1, [123] of 3", line) for line in said[:-1])
    assert len(said) >= 5
    assert progress.places == []
    time.sleep(0.1)
    assert capsys.readouterr().err == ""  # it has ended


def test_on_a_terminal_the_line_stays_in_its_place() -> None:
    code = "import time; from plait.bench.core import progress\nwith progress.lines(0.02): time.sleep(0.3)"
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, "-c", code], stderr=theirs, check=True)
    os.close(theirs)
    written = os.read(ours, 10_000)
    os.close(ours)
    assert done.returncode == 0
    assert written.count(b"\r\x1b[Kplait: measuring, 0 s") >= 3
    assert written.endswith(b"\r\x1b[K")
    assert b"\n" not in written


# --- what is printed --------------------------------------------------------------------------------------------------
def printed(columns: list[str], rows: list[dict[str, object]], capsys: pytest.CaptureFixture[str]) -> list[str]:
    show(Report("question", [columns], rows), Output(None))
    return capsys.readouterr().out.splitlines()[2:]


def test_a_table_that_fits_is_printed_as_it_is(capsys) -> None:
    assert printed(["name", "torch ms"], [{"name": "a", "torch ms": 1.5}], capsys) == [
        "name  torch ms",
        "a          1.5",
        "",
    ]


@pytest.mark.parametrize("count", [8, 12, 30])
def test_a_table_fits_the_terminal(count: int, capsys) -> None:
    columns = ["network", *(f"a name of several words {k}" for k in range(count))]
    rows = [{name: f"{name[-2:]}{row}" for name in columns} for row in ("x", "y")]
    lines = printed(columns, rows, capsys)
    assert max(map(len, lines)) <= WIDTH == 100
    words = " ".join(lines).split()
    for k in range(count):
        assert words.count(f"{columns[1 + k][-2:].strip()}x") == 1  # each cell is there once
    assert words.count("rkx") == lines.count("")  # each table has the first column


def test_a_factor_has_as_many_digits_as_it_needs() -> None:
    assert [factor(v) for v in (0.3076, 1.0, 7.189, 71.92, 719.2, 12345.6)] == [
        *("0.31x", "1.00x", "7.19x", "71.9x", "719x", "12,346x")
    ]


# --- --quick ----------------------------------------------------------------------------------------------------------
LONG = {
    "busy",
    "layers",
    "schedule",
    "functions",
    "memory",
    "bucketing",
    "ranks",
    "classify",
    "time",
    "ladder",
    "peers",
    "public",
}


def test_what_takes_long_has_a_quick_way() -> None:
    assert {name for name in QUESTIONS if "quick" in {f.name for f in QUESTIONS[name].listed()}} == LONG


def test_quick_makes_smaller_what_was_not_given() -> None:
    kind = QUESTIONS["schedule"]
    assert kind().some("batch", "size") == {"batch": 1000, "size": 1000}
    assert kind(quick=True).some("batch", "size") == {"batch": 100, "size": 200}
    assert kind(quick=True, size=1000).some("batch", "size") == {"batch": 100, "size": 1000}
    assert "(default: 1000; with --quick 100)" in {f.name: f for f in kind.listed()}["batch"].metadata["help"]
