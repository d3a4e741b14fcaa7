"""The peers: each computes the same step, what is wrong is refused, and what is missing is named."""

import io
import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from plait.bench.core.turns import Spread
from plait.bench.peers import measure as peers
from plait.bench.peers import race as peers_race
from plait.bench.peers import table as peers_table
from plait.bench.peers.contenders import worker
from plait.bench.peers.contenders.network import WEIGHTS, Network
from plait.bench.peers.contenders.worker import Worker, serve
from plait.bench.peers.race import Failed, Process, compare, expected
from plait.bench.peers.table import PEERS, Peer
from plait.errors import PlaitError

TINY = ("rnn", 3, 4, 2, 5, 2)
DRAWN = [*TINY, 0.1, 0]
WRONG = """
from .with_numpy import NumPy

class Wrong(NumPy):
    def weights(self):
        found = super().weights()
        found["w_hh"][1, 2] *= 1.01
        return found

class Later(NumPy):
    blocks = 0

    def run(self, steps):
        self.blocks += steps > 1
        return super().run(steps) if self.blocks < 12 else float("nan")

def prepare(net, variant):
    print("not an answer")
    if variant == "ends":
        raise SystemExit("out of luck")
    return (Later if variant == "later" else Wrong)(net)
"""


@pytest.fixture(autouse=True)
def one_thread(set_threads, monkeypatch: pytest.MonkeyPatch) -> None:
    set_threads(1)
    for name in ("OMP", "HL"):
        monkeypatch.setenv(f"{name}_NUM_THREADS", "1")


@pytest.fixture
def net() -> Network:
    return Network.drawn(*DRAWN)


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender of its own: a weight is off by one part in a hundred after a step."""
    copied = tmp_path / "copied"
    shutil.copytree(peers_race.WORKER.parent, copied)
    (copied / "with_wrong.py").write_text(WRONG)
    monkeypatch.setattr(peers_race, "WORKER", copied / "worker.py")
    for variant in ("", "ends", "later"):
        monkeypatch.setitem(PEERS, f"wrong{variant}", Peer("wrong", variant))


# --- the same step ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sizes", [(3, 4, 2, 5, 2), (1, 2, 1, 1, 1), (33, 3, 17, 40, 3)])
@pytest.mark.parametrize(
    ("name", "cell"),
    [
        pytest.param(name, cell, marks=[pytest.mark.slow] * (peer.variant == "compile"))
        for name, peer in PEERS.items()
        for cell in peer.cells
    ],
)
def test_each_contender_makes_the_same_step(name: str, cell: str, sizes: tuple[int, ...], empty_folder: Path) -> None:
    peer = PEERS[name]
    if peer.needs or peer.own:
        pytest.importorskip(peer.module)
    net = Network.drawn(cell, *sizes, rate=0.1, seed=1)
    made = import_module(f"plait.bench.peers.contenders.with_{peer.module}").prepare(net, peer.variant)
    before, right = {n: w.copy() for n, w in net.weights.items()}, expected(net)
    loss = made.run(1)
    assert compare(net, loss, made.weights(), right) < peers_race.SAME_CHANGE
    for w in WEIGHTS:
        np.testing.assert_array_equal(net.weights[w], before[w])
    assert made.run(3) < loss


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_wrong_weight_is_refused_by_its_name(name: str, net: Network) -> None:
    loss, moved = expected(net)
    right = loss, moved
    assert compare(net, loss, {n: w.astype(np.float32) for n, w in moved.items()}, right) < 1e-4
    for factor in (1.01, float("nan")):
        change = (moved[name] - net.weights[name]) * factor
        with pytest.raises(Failed, match=f"refused: its change of {name} is off by (1.0e-02|nan), at most 1e-03"):
            compare(net, loss, {**moved, name: net.weights[name] + change}, right)


@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_a_wrong_loss_is_refused(factor: float, net: Network) -> None:
    loss, moved = expected(net)
    with pytest.raises(Failed, match=r"refused: its loss \S+ is off by"):
        compare(net, loss * factor, moved, (loss, moved))


# --- the process -----------------------------------------------------------------------------------------------------
def test_orders_are_answered_line_by_line(net: Network, tmp_path: Path) -> None:
    orders = [
        {"do": "run", "warm": 0, "steps": 1},
        {"do": "load", "network": DRAWN, "weights": str(tmp_path / "w.npz")},
        {"do": "run", "warm": 2, "steps": 3},
        {"do": "sing"},
    ]
    out = io.StringIO()
    serve(Worker("numpy", ""), io.StringIO("".join(json.dumps(o) + "\n" for o in orders) + "{\n"), out)
    early, loaded, ran, unknown, broken = map(json.loads, out.getvalue().splitlines())
    assert early["error"].startswith("AttributeError")
    right = expected(net)
    with np.load(tmp_path / "w.npz") as file:
        compare(net, loaded["loss"], dict(file), right)
    assert ran["loss"] < loaded["loss"]
    assert ran["seconds"] > 0
    assert unknown == {"error": "AttributeError: 'Worker' object has no attribute 'sing'"}
    assert broken["error"].startswith("JSONDecodeError")
    again = Worker("numpy", "")
    again.load(DRAWN, str(tmp_path / "w.npz"))
    assert [again.run(warm=0, steps=n)["loss"] for n in (2, 3)][-1] == ran["loss"]


def test_a_worker_starts_by_its_path_and_is_asked(net: Network, tmp_path: Path, wrong: None) -> None:
    process = Process(Peer("wrong"), 1, tmp_path)
    try:
        with pytest.raises(Failed, match="refused: its change of w_hh"):
            process.load(DRAWN, net, expected(net))
        assert process.ask(do="run", warm=0, steps=2)["loss"] > 0
        assert "not an answer" in process.said.read_text()
    finally:
        process.end()
    ended = Process(Peer("wrong", "ends"), 1, tmp_path)
    with pytest.raises(Failed, match="out of luck"):
        ended.load(DRAWN, net, expected(net))
    with pytest.raises(Failed, match="out of luck"):
        ended.ask(do="run", warm=0, steps=1)
    ended.end()


def test_a_worker_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_race, "PATIENCE", 0.2)
    (tmp_path / "worker.py").write_text("import time; time.sleep(100)")
    monkeypatch.setattr(peers_race, "WORKER", tmp_path / "worker.py")
    process = Process(Peer("numpy"), 1, tmp_path)
    with pytest.raises(Failed, match="no answer in 0 s"):
        process.ask(do="run", warm=0, steps=1)
    process.end()
    assert process.process.returncode is not None


# --- turns -----------------------------------------------------------------------------------------------------------
class Known(Process):
    """Takes a known time for a step."""

    def __init__(self, name: str, seconds: float, orders: list[str], loss: float = 1.0) -> None:
        self.name, self.seconds, self.orders, self.loss, self.steps = name, seconds, orders, loss, 1

    def ask(self, do: str, warm: int, steps: int) -> dict[str, float]:
        self.orders.append(f"{self.name}{warm}+{steps}")
        return {"seconds": self.seconds * steps, "loss": self.loss}

    def end(self) -> None:
        self.orders.append(f"{self.name} ends")


@pytest.fixture
def course(tmp_path: Path) -> peers.Course:
    return peers.Course([], tmp_path, 1)


def test_blocks_are_long_enough_and_take_turns(course: peers.Course) -> None:
    said: list[str] = []
    course.processes = {n: Known(n, s, said) for n, s in (("a", 0.01), ("b", 2.0))}
    for process in course.processes.values():
        process.fill(0.2)
    assert said == ["a0+1", "a1+4", "a4+16", "b0+1"]
    said.clear()
    found = course.race("row", ["a", "b"], 5)
    assert not course.remarks
    assert said == [*("a5+20", "b0+1"), *("b0+1", "a5+20")] * 2 + ["a5+20", "b0+1"]
    assert found["a"] == pytest.approx([0.01] * 5)
    assert found["b"] == pytest.approx([2.0] * 5)


def test_a_loss_that_is_no_number_ends_its_race(course: peers.Course) -> None:
    said: list[str] = []
    losses = {"a": 1.0, "b": float("nan")}
    course.processes = {name: Known(name, 1.0, said, loss) for name, loss in losses.items()}
    found = course.race("row", ["a", "b"], 5)
    assert found == {"a": pytest.approx([1.0] * 5)}
    assert course.remarks == ["b failed in row row: its loss became nan."]
    assert (said.count("b0+1"), said.count("b ends")) == (1, 1)
    assert list(course.processes) == ["a"]


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ((2.0, 1.9, 2.1), (3.0, 2.9, 3.1), "fastest"),
        ((2.0, 1.8, 2.1), (1.7, 1.6, 1.8), "within the spread"),
        ((2.0, 1.9, 2.1), (1.0, 0.9, 1.1), "slower by 2.00"),
        ((5e-4, 5e-4, 5e-4), (2.5e-4, 2e-4, 3e-4), "slower by 2.00, under 1 ms"),
    ],
)
def test_the_verdict(ours: tuple[float, ...], theirs: tuple[float, ...], said: str) -> None:
    row = peers.verdict("small", {"plait": Spread(*ours), "jax": Spread(*theirs)})
    assert row["plait is"] == said
    assert row["fastest"] == ("plait" if said == "fastest" else "jax")


# --- the command -----------------------------------------------------------------------------------------------------
def test_what_is_missing_wrong_or_not_written_is_named(plait, wrong: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_table, "find_spec", lambda name: None)
    monkeypatch.setattr(peers_table, "which", lambda name: None)
    monkeypatch.setattr(peers_table, "folder", Path)  # with no environment in it
    monkeypatch.setitem(PEERS, "halide-none", Peer("halide", "none", cells=("rnn",)))
    monkeypatch.setattr(peers, "BIG", 10.0)  # a step of that many seconds is small, and is profiled
    monkeypatch.setattr(peers, "CASES", {"little": ("gru", *TINY[1:]), "n1000": TINY})
    peers_asked = "jax,numpy,pytensor,torch.compile,wrong,wrongends,wronglater,halide-none"
    code, out, err = plait("bench", "peers", "--quick", "--only", peers_asked, "--repeats", "5", "--json", "found.json")
    assert (code, [line for line in err.splitlines() if "measuring" not in line]) == (0, [])
    assert max(map(len, out.partition("\n\n")[2].partition("float32")[0].splitlines())) <= 80
    found = json.loads(Path("found.json").read_text())
    rows = {row["peer"]: row for row in found["rows"] if "peer" in row}
    assert {n: row["ms"] for n, row in rows.items() if isinstance(row["ms"], str)} == {
        **dict.fromkeys(("jax", "pytensor", "torch.compile"), "missing"),
        **dict.fromkeys(("wrong", "wrongends", "wronglater"), "failed"),
        "halide-none": "not written",
    }
    assert rows["numpy"]["low"] <= rows["numpy"]["ms"] <= rows["numpy"]["high"]
    for remark in (
        "jax is missing: pip install 'plait[peers]'.",
        "pytensor is missing: --install makes an environment for it (pytensor>=3).",
        "torch.compile is missing: install a C++ compiler, such as g++.",
        "wrong failed in row little: refused: its change of w_hh is off by",
        "wrongends failed in row little: out of luck.",
        "wronglater failed in row little: its loss became nan.",
    ):
        assert remark in out
    parts = {row["part of plait's step"]: row["share %"] for row in found["rows"] if "share %" in row}
    assert "kernels" in parts
    assert sum(parts.values()) == pytest.approx(100)
    assert all(share > 0 for share in parts.values())


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--only", "tensorflow", "--only: peer 'tensorflow' is not known"),
        ("--only", "", "--only: peer '' is not known"),
        ("--rows", "airlines", "--rows: network 'airlines' is not known: did you mean 'airline'?"),
    ],
)
def test_unknown_names_are_refused(refused, option: str, value: str, said: str) -> None:
    assert said in refused("bench", "peers", option, value)


def test_an_environment_counts_when_all_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, ran = Peer("pytensor", own="pytensor>=3"), []
    monkeypatch.setattr(peers_table, "find_spec", lambda name: None)
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path))
    answer = subprocess.CompletedProcess([], 0, "", "")

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True, exist_ok=True)
            return subprocess.CompletedProcess([], 0, "", "")
        return answer

    monkeypatch.setattr(subprocess, "run", run)
    answer.returncode, answer.stderr = 1, "looking\nno such package\n"
    with pytest.raises(PlaitError, match=r"pytensor>=3 was not installed in .*: no such package; leave --install out"):
        peer.install()
    assert peer.missing()
    answer.returncode = 0
    peer.install()
    assert peer.missing() is None
    assert Path(peer.python).is_relative_to(tmp_path)
    assert ran[-1][0] == peer.python
    count = len(ran)
    peer.install()
    assert len(ran) == count


def test_the_worker_needs_nothing_of_plait() -> None:
    """PyTensor's environment has neither plait nor torch."""
    code = f"import sys, runpy; sys.argv = ['worker', 'x', '']; runpy.run_path({worker.__file__!r}, run_name='x'); "
    code += "print([n for n in ('plait', 'torch') if n in sys.modules])"
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
