"""Compiled code is kept: found by the next process, never loaded when it is another's or damaged, never in the way."""

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plait import engines
from plait.cells import CELLS, Cell
from plait.cells.gru import GRU
from plait.check import worst
from plait.engines import Layout, Needs, Weights
from plait.engines.fused import FusedEngine
from plait.kernels import compiler
from plait.kernels.target import Form, Target
from processes import PATIENCE, finish, in_child, needs_fork, python, start

TINY = Target(double=False, lanes=1, rows=1, vectors=1)  # quickly compiled

# Waits for the others, if there are any, and prints how far a layer is from the engine `numpy`, and whether numba came.
USE = """
import sys
import time
from pathlib import Path
import torch
import plait
from plait.check import deviation, outputs_and_gradients, with_engine

reference, x = plait.RNN(3, 5, bidirectional=True, engine="numpy"), torch.randn(6, 2, 3)
if len(sys.argv) > 1:
    gate = Path(sys.argv[1])
    Path(sys.argv[2]).touch()
    while not gate.exists():
        time.sleep(0.001)
found, expected = (outputs_and_gradients(m, x, None) for m in (with_engine(reference, "fused"), reference))
print(deviation(found, expected)[0], "numba" in sys.modules)
"""


def is_right(out: str) -> bool:
    return float(out.split()[0]) <= 1e-5


def compiled(err: str) -> list[str]:
    """What was compiled, of a process that said nothing else."""
    start, end = "plait: compiling ", " for this processor ... "
    assert all(line.startswith(start) and end in line for line in err.splitlines()), err
    return [line[len(start) : line.index(end)] for line in err.splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with that part which takes long to compile."""
    compiler.walk()
    name = f"{compiler.key('walk')}.o"
    path = tmp_path_factory.mktemp("walk") / name
    shutil.copy(compiler.folder() / name, path)
    return path


@pytest.fixture(scope="module")
def first(walk: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A folder that one process has used, which found the walk there; and what that one printed."""
    folder = tmp_path_factory.mktemp("cache")
    shutil.copy(walk, folder)
    return folder, *python(USE, PLAIT_CACHE=folder)


@pytest.fixture
def walk_only(walk: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    shutil.copy(walk, folder)
    return folder


@pytest.fixture
def leaf(first: tuple[Path, str, str], walk: Path) -> str:
    """The name of what the first process compiled."""
    (name,) = set(names(first[0])) - {walk.name}
    return name


def test_the_first_use_says_what_it_compiles(first, leaf: str) -> None:
    _, out, err = first
    assert compiled(err) == ["rnn in float32"]
    assert "(kept for later)" in err
    assert is_right(out)
    assert leaf.endswith(".o")


@pytest.mark.slow
def test_the_very_first_use_says_what_it_compiles(first, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    out, err = python(USE, PLAIT_CACHE=folder)
    assert compiled(err) == ["the walk through time", "rnn in float32"]
    assert err.count("(kept for later)") == 2
    assert is_right(out)
    assert names(folder) == names(first[0])
    assert python(USE, PLAIT_CACHE=folder)[1] == ""


def test_the_second_is_silent_and_does_without_numba(first) -> None:
    out, err = python(USE, PLAIT_CACHE=first[0])
    assert err == ""
    assert is_right(out)
    assert out.split()[1] == "False"
    assert first[1].split()[1] == "True"  # as it does when it compiles


@pytest.mark.parametrize("wanted", ["leaf", pytest.param("everything", marks=pytest.mark.slow)])
def test_two_processes_at_the_same_moment(wanted: str, first, walk_only: Path, tmp_path: Path) -> None:
    folder = walk_only if wanted == "leaf" else tmp_path / "empty"
    gate, ready = tmp_path / "gate", [tmp_path / "one", tmp_path / "two"]
    running = [start(USE, gate, path, PLAIT_CACHE=folder) for path in ready]
    try:
        until(lambda: all(path.exists() for path in ready))
        gate.touch()
        for out, err in map(finish, running):
            assert is_right(out)
            assert "not kept" not in err
            assert compiled(err)[-1] == "rnn in float32"
    finally:
        for process in running:
            process.kill()
    assert names(folder) == names(first[0])


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


# --- damaged and unwritable ------------------------------------------------------------------------------------------
DAMAGES = {
    "truncated": lambda data: data[:-1],
    "cut in half": lambda data: data[: len(data) // 2],
    "shorter than a digest": lambda data: data[:10],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "one bit": lambda data: data[:999] + bytes([data[999] ^ 1]) + data[1000:],
    "the last bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "longer": lambda data: data + b"\n",
    "text": lambda data: b"<html>404</html>" * 99,
}


def test_a_damaged_file_is_compiled_again_also_after_a_kill(first, walk_only: Path, leaf: str) -> None:
    """The file is the size that it should be, with code that would crash. Nobody puts it right but who compiles it."""
    data = bytearray((first[0] / leaf).read_bytes())
    data[1000:5000] = bytes(4000)
    (walk_only / leaf).write_bytes(data)
    killed, says = start(USE, PLAIT_CACHE=walk_only), "plait: compiling rnn in float32"
    assert killed.stderr.read(len(says)) == says
    killed.kill()
    killed.communicate()
    assert (walk_only / leaf).read_bytes() == data
    assert names(walk_only) == names(first[0])
    out, err = python(USE, PLAIT_CACHE=walk_only)
    assert compiled(err) == ["rnn in float32"]
    assert is_right(out)
    assert names(walk_only) == names(first[0])
    assert compiler.read(walk_only / leaf) is not None


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_goes_unnoticed(damage: str, first, leaf: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path))
    data = (first[0] / leaf).read_bytes()
    code = compiler.read(first[0] / leaf)
    (tmp_path / "kept.o").write_bytes(DAMAGES[damage](data))
    built = []

    def build() -> bytes:
        built.append(damage)
        return code

    for _ in range(2):
        assert all(compiler.load("a test", "kept", build, compiler.NAMES).values())
    assert built == [damage]  # once
    assert (tmp_path / "kept.o").read_bytes() == data
    assert names(tmp_path) == ["kept.o"]


def blocked_folder(tmp_path: Path) -> Path:
    """Below a file, where not even root can make a folder."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "folder"


def blocked_name(tmp_path: Path) -> Path:
    (tmp_path / "kept.o").mkdir()
    return tmp_path


@pytest.mark.parametrize("blocked", [blocked_folder, blocked_name])
def test_what_cannot_be_kept_is_used_all_the_same(
    blocked, first, leaf: str, tmp_path: Path, monkeypatch, capfd
) -> None:
    monkeypatch.setenv("PLAIT_CACHE", str(blocked(tmp_path)))
    before, code = names(tmp_path), compiler.read(first[0] / leaf)
    for _ in range(2):
        assert all(compiler.load("a test", "kept", lambda: code, compiler.NAMES).values())
        err = capfd.readouterr().err
        assert compiled(err) == ["a test"]
        assert "(not kept: [Errno " in err
    assert names(tmp_path) == before


@pytest.mark.slow
def test_a_layer_where_nothing_can_be_kept() -> None:
    out, err = python(USE, PLAIT_CACHE="/dev/null/x")
    assert compiled(err) == ["the walk through time", "rnn in float32"]
    assert err.count("(not kept: ") == 2
    assert is_right(out)


@needs_fork
def test_a_fork_while_another_thread_compiles(tmp_path: Path, monkeypatch) -> None:
    """The child has no such thread, and nobody who would let go of its locks."""
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path))
    compiler.leaves(Form(CELLS["rnn"], 1, TINY))
    (kept,) = tmp_path.iterdir()
    forked, compiling = threading.Event(), threading.Event()

    def build() -> bytes:
        compiling.set()
        forked.wait()
        return compiler.read(kept)

    thread = threading.Thread(target=compiler.load, args=("a test", "other", build, compiler.NAMES))
    thread.start()
    try:
        assert compiling.wait(PATIENCE)
        assert in_child(lambda: all(compiler.leaves(Form(CELLS["rnn"], 1, TINY)).values()), patience=10)
    finally:
        forked.set()
        thread.join()


# --- what a name stands for ------------------------------------------------------------------------------------------
class Edited(GRU):
    """The GRU with an edited step, and nothing else."""

    @staticmethod
    def step(wx, rh, state, dt, ops):
        (h,), saved = GRU.step(wx, rh, state, dt, ops)
        return (0.5 * h,), saved


@pytest.fixture
def new_files(tmp_path: Path, monkeypatch) -> Callable[[Form], int]:
    """How many files it takes to have a cell's code, beside those that are there."""
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path))

    def count(form: Form) -> int:
        before = names(tmp_path)
        compiler.leaves(form)
        return len(set(names(tmp_path)) - set(before))

    return count


def test_code_is_kept_per_cell_and_shape(new_files) -> None:
    forms = [
        lambda: Form(GRU(), 1, TINY),
        lambda: Form(Edited(), 1, TINY),
        lambda: Form(GRU(), 2, TINY),
        lambda: Form(GRU(), 1, replace(TINY, double=True)),
        lambda: Form(GRU(), 1, replace(TINY, rows=2)),
        lambda: Form(CELLS["lstm"], 1, TINY),
        lambda: Form(CELLS["lstm"], 1, TINY, projected=True),
    ]
    assert [new_files(make()) for make in forms] == [1] * len(forms)
    assert [new_files(make()) for make in forms] == [0] * len(forms)


def test_code_is_kept_per_processor(new_files, monkeypatch) -> None:
    host = compiler.host()
    more, fewer = (*host.features, "wings"), host.features[1:]
    others = [
        replace(host, name="other"),
        replace(host, machine="other"),
        *(replace(host, features=f) for f in (more, fewer)),
    ]
    assert new_files(Form(GRU(), 1, TINY)) == 1
    for other in others:
        monkeypatch.setattr(compiler, "host", lambda other=other: other)
        assert new_files(Form(GRU(), 1, TINY)) == 1
    monkeypatch.undo()


def test_another_version_has_other_names(monkeypatch) -> None:
    keys = {compiler.key("walk")}
    version = compiler.version
    for name in ("numba", "llvmlite"):
        monkeypatch.setattr(compiler, "version", lambda n, name=name: version(n) + (".1" if n == name else ""))
        keys.add(compiler.key("walk"))
    assert len(keys) == 3


def test_editing_any_text_of_the_kernels_gives_other_names(tmp_path: Path, monkeypatch) -> None:
    here = Path(compiler.__file__).parent
    copy = shutil.copytree(here, tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compiler, "__file__", str(copy / "compiler.py"))
    monkeypatch.setattr(compiler, "texts", compiler.texts.__wrapped__)  # read each time
    keys, paths = [compiler.key("walk")], sorted(copy.rglob("*.py"))
    for path in paths:
        text = path.read_text()
        path.write_text(text + "\n")
        keys.append(compiler.key("walk"))
        path.write_text(text)
    assert len(set(keys)) == 1 + len(paths) > 10
    assert compiler.key("walk") == keys[0]


def test_an_edited_step_gives_other_results() -> None:
    """Though name, gates and shapes are the same."""
    x, w = torch.randn(6, 3), Weights(torch.randn(15, 3), torch.randn(15, 5), None, None, None)

    def run(cell: Cell, engine) -> list[torch.Tensor]:
        layout = Layout(3, 2)
        rows, finals, kept = engine.forward(cell, x, None, [w], layout)
        d_rows, needs = torch.ones_like(rows), Needs.all(cell, [w])
        d_x, _, (d_w,) = engine.backward(cell, x, [w], kept, d_rows, [None], layout, needs=needs)
        return [rows, *finals, d_x, *d_w]

    engine, reference = FusedEngine(), engines.get("numpy")
    for cell in (GRU(), Edited()):
        assert worst(run(cell, engine), run(cell, reference)) <= 1e-5
    assert worst(run(Edited(), engine)[:1], run(GRU(), engine)[:1]) > 0.1
