"""Compiled code is kept: found by the next process, never loaded when it is another's or damaged, never in the way."""

import errno
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import pytest
import torch

from plait import engines
from plait.cells import CELLS, Cell
from plait.cells.gru import GRU
from plait.engines import Layout, Needs, Weights
from plait.engines.fused import FusedEngine
from plait.kernels.emit.target import Form, Target
from plait.kernels.launch import cache, compiler
from plait.kernels.launch.schedule import DEFAULT
from plait.ladder.compare import worst
from processes import PATIENCE, finish, in_child, needs_fork, python, start

TINY = Target(double=False, lanes=1, rows=1, vectors=1)  # quickly compiled

# Waits for the others, if there are any, and prints how far a layer is from the engine `numpy`, and whether numba came.
USE = """
import sys
import time
from pathlib import Path
import torch
import plait
from plait.ladder.compare import deviation, outputs_and_gradients, with_engine

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


def read(path: Path) -> bytes | None:
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        return cache.Cache(path.parent, handle, None).read(path.name)
    finally:
        os.close(handle)


def with_digest(code: bytes) -> bytes:
    return code + hashlib.sha256(code).digest()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != cache.LOCK and path.suffix != ".json")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what all cells share, which takes long to compile."""
    folder, target = tmp_path_factory.mktemp("shared"), DEFAULT.target(double=False)
    compiler.shared()
    compiler.products(target)
    for name in (compiler.key("shared"), compiler.key(repr(target))):
        shutil.copy(cache.folder() / f"{name}.o", folder)
    return folder


@pytest.fixture(scope="module")
def first(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A folder that one process has used, which found there what cells share; and what that one printed."""
    folder = tmp_path_factory.mktemp("first") / "cache"
    shutil.copytree(shared, folder)
    return folder, *python(USE, PLAIT_CACHE=folder)


@pytest.fixture
def shared_only(shared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shared, tmp_path / "cache"))


@pytest.fixture
def leaf(first: tuple[Path, str, str], shared: Path) -> str:
    """The name of what the first process compiled."""
    (name,) = set(names(first[0])) - set(names(shared))
    return name


def test_the_first_use_says_what_it_compiles(first, leaf: str) -> None:
    _, out, err = first
    assert compiled(err) == ["rnn in float32"]
    assert "(stored)" in err
    assert is_right(out)
    assert leaf.endswith(".o")


@pytest.mark.slow
def test_the_very_first_use_says_what_it_compiles(first, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    out, err = python(USE, PLAIT_CACHE=folder)
    assert compiled(err) == ["the shared loops", "products in float32", "rnn in float32"]
    assert err.count("(stored)") == 3
    assert is_right(out)
    assert names(folder) == names(first[0])
    assert python(USE, PLAIT_CACHE=folder)[1] == ""


def test_the_second_is_silent_and_does_without_numba(first) -> None:
    out, err = python(USE, PLAIT_CACHE=first[0])
    assert err == ""
    assert is_right(out)
    assert out.split()[1] == "False"
    assert first[1].split()[1] == "True"  # as it does when it compiles


@pytest.mark.slow
def test_two_processes_at_the_same_moment(first, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    each_once = ["products in float32", "rnn in float32", "the shared loops"]
    assert used_by_two(folder, tmp_path) == each_once
    assert names(folder) == names(first[0])


def used_by_two(folder: Path, places: Path) -> list[str]:
    """Two processes need the code at the same moment -> what they compiled, both together."""
    gate, ready = places / "gate", [places / "one", places / "two"]
    running = [start(USE, gate, path, PLAIT_CACHE=folder) for path in ready]
    try:
        until(lambda: all(path.exists() for path in ready))
        gate.touch()
        said = []
        for out, err in map(finish, running):
            assert is_right(out)
            assert "not stored" not in err
            said += compiled(err)
    finally:
        for process in running:
            process.kill()
    return sorted(said)


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
    # whole, as far as the digest tells
    "no object file": lambda data: with_digest(b"<html>404</html>" * 99),
    "nothing": lambda data: with_digest(b""),
    "half an object file": lambda data: with_digest(data[: len(data) // 2]),
    "an object file without the functions": lambda data: with_digest(object_file("other")),
}


def object_file(name: str) -> bytes:
    """With one function that returns 1."""
    text = f'define i32 @"{name}"() {{ ret i32 1 }}'
    machine = llvm.Target.from_default_triple().create_target_machine()
    return machine.emit_object(llvm.parse_assembly(text))


def test_a_damaged_file_is_compiled_again_once_by_two_processes_also_after_a_kill(
    first, shared_only: Path, leaf: str, tmp_path: Path
) -> None:
    """The file is the size that it should be, with code that would crash. Nobody puts it right but who compiles it."""
    data = bytearray((first[0] / leaf).read_bytes())
    data[1000:5000] = bytes(4000)
    (shared_only / leaf).write_bytes(data)
    killed, says = start(USE, PLAIT_CACHE=shared_only), "plait: compiling rnn in float32"
    assert killed.stderr.read(len(says)) == says
    killed.kill()
    killed.communicate()
    assert (shared_only / leaf).read_bytes() == data
    assert names(shared_only) == names(first[0])
    assert used_by_two(shared_only, tmp_path) == ["rnn in float32"]
    assert names(shared_only) == names(first[0])
    assert read(shared_only / leaf) is not None


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_goes_unnoticed(damage: str, first, leaf: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path))
    data = (first[0] / leaf).read_bytes()
    code = read(first[0] / leaf)
    (tmp_path / "kept.o").write_bytes(DAMAGES[damage](data))
    built = []

    def build() -> bytes:
        built.append(damage)
        return code

    for _ in range(2):
        assert all(compiler.load("a test", "kept", build, "plait_forward").values())
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
    before, code = names(tmp_path), read(first[0] / leaf)
    for _ in range(2):
        assert all(compiler.load("a test", "kept", lambda: code, "plait_forward").values())
        err = capfd.readouterr().err
        assert compiled(err) == ["a test"]
        assert "(not stored: [Errno " in err
    assert names(tmp_path) == before


# --- other people's files --------------------------------------------------------------------------------------------
def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, 4711, 4711)


STRANGERS = {
    "belongs to user 4711": give_away,
    "can be written to by others": lambda path: path.chmod(path.stat().st_mode | 0o020),
    "can be written to by others ": lambda path: path.chmod(path.stat().st_mode | 0o002),
}


@pytest.fixture
def planted(first, leaf: str, tmp_path: Path, monkeypatch) -> Path:
    """Code that would be loaded, if this user alone could have written it."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    shutil.copy(first[0] / leaf, folder / "kept.o")
    monkeypatch.setenv("PLAIT_CACHE", str(folder))
    return folder / "kept.o"


def is_loaded(path: Path) -> bool:
    """Whether that code is taken, and none is compiled instead."""
    built, code = [], path.read_bytes()[:-32]

    def build() -> bytes:
        built.append(path)
        return code

    assert all(compiler.load("a test", path.stem, build, "plait_forward").values())
    return not built


@pytest.mark.parametrize("what", STRANGERS)
def test_a_folder_that_others_can_write_to_is_not_used(what: str, planted: Path, capfd) -> None:
    assert is_loaded(planted)
    before = planted.read_bytes()
    STRANGERS[what](planted.parent)
    assert not is_loaded(planted)
    err = capfd.readouterr().err
    assert f"(not stored: {planted.parent} {what.strip()}" in err
    assert "set PLAIT_CACHE to a folder of your own" in err
    assert planted.read_bytes() == before
    assert names(planted.parent) == ["kept.o"]


@pytest.mark.parametrize("what", STRANGERS)
def test_a_file_that_others_can_write_to_is_replaced(what: str, planted: Path, capfd) -> None:
    STRANGERS[what](planted)
    assert not is_loaded(planted)
    err = capfd.readouterr().err
    assert err.count(f"plait: {planted} {what.strip()}") == 1
    assert err.count("it is not used") == 1
    assert planted.stat().st_mode & 0o777 == 0o600
    assert planted.stat().st_uid == os.geteuid()
    assert is_loaded(planted)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_not_read(kind: str, planted: Path) -> None:
    code = planted.rename(planted.parent / "elsewhere")
    {"link": lambda: planted.symlink_to(code), "pipe": lambda: os.mkfifo(planted), "folder": planted.mkdir}[kind]()
    built = []
    compiler.load("a test", "kept", lambda: built.append(kind) or code.read_bytes()[:-32], "plait_forward")
    assert built == [kind]


def test_the_folder_is_made_for_this_user_alone(first, leaf: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path / "new"))
    before = os.umask(0o000)
    try:
        compiler.load("a test", "kept", lambda: read(first[0] / leaf), "plait_forward")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "kept.o").stat().st_mode & 0o777 == 0o600


def test_a_user_without_a_home_compiles_in_memory(planted: Path, monkeypatch, capfd) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache, "folder", nowhere)
    assert not is_loaded(planted)
    assert "(not stored: Could not determine home directory." in capfd.readouterr().err


# --- other processes, other days -------------------------------------------------------------------------------------
def test_a_process_that_hangs_while_it_compiles_does_not_hold_up_others(planted: Path, monkeypatch) -> None:
    monkeypatch.setattr(cache, "PATIENCE", 0.1)
    monkeypatch.setattr(cache, "_in_vain", False)
    planted.unlink()
    with cache.opened() as theirs, theirs.locked():
        started = time.monotonic()
        assert all(compiler.load("a test", "kept", lambda: object_file("f"), "f").values())
        assert time.monotonic() - started >= 0.1  # it did wait
        monkeypatch.setattr(cache, "PATIENCE", 1e9)  # but once is enough
        assert all(compiler.load("a test", "more", lambda: object_file("f"), "f").values())
    assert names(planted.parent) == ["kept.o", "more.o"]
    assert (planted.parent / cache.LOCK).stat().st_mode & 0o777 == 0o600


def test_whoever_waited_takes_what_the_other_compiled(planted: Path) -> None:
    code, waiting = planted.read_bytes(), threading.Event()
    planted.unlink()

    def build() -> bytes:
        raise AssertionError("it was there")

    def load() -> None:
        waiting.set()
        found.append(compiler.load("a test", "kept", build, "plait_forward"))

    found: list[dict[str, int]] = []
    thread = threading.Thread(target=load)
    with cache.opened() as theirs, theirs.locked():
        thread.start()
        assert waiting.wait(PATIENCE)
        time.sleep(0.1)
        assert not found
        planted.write_bytes(code)
    thread.join(PATIENCE)
    assert all(found[0].values())


def test_what_was_not_used_for_long_is_cleared_away(planted: Path) -> None:
    folder, day = planted.parent, 86400
    old, used, fresh = (f"{c * 32}.o" for c in "012")
    left, new = (f"{c * 16}.partial" for c in "34")
    (folder / f"{'5' * 16}.partial").mkdir()  # and what is no file stays
    os.utime(folder / f"{'5' * 16}.partial", (0, 0))
    for name, days in ((old, 91), (used, 89), (fresh, 0), (left, 2), (new, 0), ("mine.o", 500), ("mine.partial", 500)):
        shutil.copy(planted, folder / name)
        os.utime(folder / name, (time.time() - days * day,) * 2)
    compiler.load("a test", "other", lambda: read(planted), "plait_forward")
    assert names(folder) == sorted(
        [used, fresh, new, "mine.o", "mine.partial", "kept.o", "other.o", f"{'5' * 16}.partial"]
    )
    assert is_loaded(folder / used)
    assert time.time() - (folder / used).stat().st_mtime < day  # and so it will stay


@pytest.mark.slow
def test_a_layer_where_nothing_can_be_kept() -> None:
    out, err = python(USE, PLAIT_CACHE="/dev/null/x")
    assert compiled(err) == ["the shared loops", "rnn in float32", "products in float32"]
    assert err.count("(not stored: ") == 3
    assert is_right(out)


@needs_fork
def test_a_fork_while_another_thread_compiles(tmp_path: Path, monkeypatch) -> None:
    """The child has no such thread, and nobody who would let go of its locks."""
    compiler.products(TINY)
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path))
    compiler.functions(Form(CELLS["rnn"], 1, TINY))
    (kept,) = tmp_path.glob("*.o")
    forked, compiling = threading.Event(), threading.Event()

    def build() -> bytes:
        compiling.set()
        forked.wait()
        return read(kept)

    thread = threading.Thread(target=compiler.load, args=("a test", "other", build, "plait_forward"))
    thread.start()
    try:
        assert compiling.wait(PATIENCE)
        assert in_child(lambda: all(compiler.functions(Form(CELLS["rnn"], 1, TINY)).values()), patience=10)
    finally:
        forked.set()
        thread.join()


# --- what a name stands for ------------------------------------------------------------------------------------------
class Edited(GRU):
    """The GRU with an edited step, and nothing else."""

    name = "gru"

    def step(wx, rh, state, dt, ops):
        return 0.5 * GRU.step(wx, rh, state, dt, ops)


@pytest.fixture
def new_files(tmp_path: Path, monkeypatch) -> Callable[[Form], int]:
    """How many files it takes to have a cell's code, beside those that are there."""
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "products", compiler.products.__wrapped__)

    def count(form: Form) -> int:
        before = names(tmp_path)
        compiler.functions(form)
        return len(set(names(tmp_path)) - set(before))

    return count


def test_code_is_kept_per_cell_and_shape(new_files) -> None:
    forms = [
        lambda: Form(GRU, 1, TINY),
        lambda: Form(Edited, 1, TINY),
        lambda: Form(GRU, 2, TINY),
        lambda: Form(GRU, 1, replace(TINY, double=True)),
        lambda: Form(GRU, 1, replace(TINY, rows=2)),
        lambda: Form(CELLS["lstm"], 1, TINY),
        lambda: Form(CELLS["lstm"], 1, TINY, projected=True),
    ]
    assert [new_files(make()) for make in forms] == [2, 1, 1, 2, 2, 1, 1]  # cells share the products of a target
    assert [new_files(make()) for make in forms] == [0] * len(forms)


def test_code_is_kept_per_processor(new_files, monkeypatch) -> None:
    host = compiler.host()
    more, fewer = (*host.features, "wings"), host.features[1:]
    others = [
        replace(host, name="other"),
        replace(host, machine="other"),
        *(replace(host, features=f) for f in (more, fewer)),
    ]
    assert new_files(Form(CELLS["rnn"], 1, TINY)) == 2
    for other in others:
        monkeypatch.setattr(compiler, "host", lambda other=other: other)
        assert new_files(Form(CELLS["rnn"], 1, TINY)) == 2
    monkeypatch.undo()


def test_another_version_has_other_names(monkeypatch) -> None:
    keys = {compiler.key("shared")}
    version = compiler.version
    for name in ("numba", "llvmlite"):
        monkeypatch.setattr(compiler, "version", lambda n, name=name: version(n) + (".1" if n == name else ""))
        keys.add(compiler.key("shared"))
    assert len(keys) == 3


def test_a_folder_that_cannot_be_written_to_is_read(planted: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    os.utime(planted, (0, 0))  # used long ago: now would be noted
    monkeypatch.setattr(os, "utime", refuse)
    assert is_loaded(planted)


def test_settings_of_numba_are_part_of_the_name(monkeypatch, empty_folder: Path) -> None:
    keys = [compiler.key("shared")]
    for value in ("0", "1"):
        monkeypatch.setenv("NUMBA_OPT", value)
        keys.append(compiler.key("shared"))
    settings = empty_folder / ".numba_config.yaml"
    os.mkfifo(settings)  # nobody writes: it is not waited for
    assert compiler.key("shared") == keys[-1]
    settings.unlink()
    settings.write_text("opt: 2")
    keys.append(compiler.key("shared"))
    assert len(set(keys)) == 4
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")  # changes nothing in the code
    assert compiler.key("shared") == keys[-1]


def test_editing_any_text_of_the_kernels_gives_other_names(tmp_path: Path, monkeypatch) -> None:
    """Of those that generate code. The others only call it."""
    here = Path(compiler.__file__).parents[1]
    copy = shutil.copytree(here, tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compiler, "__file__", str(copy / "launch" / "compiler.py"))
    monkeypatch.setattr(compiler, "texts", compiler.texts.__wrapped__)  # read each time
    keys, paths = [compiler.key("shared")], [copy / "records.py", *copy.glob("emit/*.py"), *copy.glob("loops/*.py")]
    for path in paths:
        text = path.read_text()
        path.write_text(text + "\n")
        keys.append(compiler.key("shared"))
        path.write_text(text)
    assert len(set(keys)) == 1 + len(paths) > 10
    assert compiler.key("shared") == keys[0]


def test_an_edited_step_gives_other_results() -> None:
    """Though name, gates and shapes are the same."""
    x, w = torch.randn(6, 3), Weights(torch.randn(15, 3), torch.randn(15, 5), None, None, None)

    def run(cell: type[Cell], engine) -> list[torch.Tensor]:
        layout = Layout(3, 2)
        ps = [engine.prepare(cell, w)]
        rows, finals, kept = engine.forward(ps, x, None, layout)
        back = engine.backward(ps, x, kept, torch.ones_like(rows), [None], layout, needs=Needs.all(ps))
        return [rows, *finals, back.x, *back.weights[0]]

    engine, reference = FusedEngine(), engines.get("numpy")
    for cell in (GRU, Edited):
        assert worst(run(cell, engine), run(cell, reference)) <= 1e-5
    assert worst(run(Edited, engine)[:1], run(GRU, engine)[:1]) > 0.1
