"""A run folder: whole or not there, checked to the last bit, and what becomes of the files that a user names."""

import fcntl
import json
import math
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import save_file

from plait import PlaitError
from plait.data import series
from plait.tasks import pictures
from plait.tasks.forecast import Forecast
from plait.tasks.language import Corpus, Language
from plait.tasks.settings import ForecastSettings, LanguageSettings
from plait.training.files import check_target, write_whole
from plait.training.loop import train
from plait.training.run import Run
from plait.training.tensors import packed, unpacked

QUICK = ("--epochs", "2", "--hidden", "4")
TEXT = "one two three four five six seven\n" * 60


# --- a run is there whole, or not at all -----------------------------------------------------------------------------
def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_run_gets_its_name_when_all_is_there_to_go_on(tmp_path: Path) -> None:
    settings = ForecastSettings(epochs=1, hidden=4)
    run = Run.create(str(tmp_path / "a" / "run"), "forecast", {"settings": settings.as_dict()}, {"series.csv": b"1"})
    assert names(tmp_path) == []
    seen: list[list[str]] = []
    begin = run.begin

    def watched() -> None:
        seen.append(names(tmp_path / "a"))
        begin()
        seen.append(names(tmp_path / "a"))
        seen.append(names(tmp_path / "a" / "run"))

    run.begin = watched
    train(Forecast(settings, series.airline()), settings, run)
    (hidden,), after, files = seen
    assert re.fullmatch(r"\.plait\..*\.partial", hidden)
    assert after == ["run"]
    assert files == ["config.json", "history.json", "model.safetensors", "series.csv", "state.safetensors"]


def test_the_lock_is_held_from_before_the_name_to_the_end(tmp_path: Path) -> None:
    run = Run.create(str(tmp_path / "run"), "forecast", {})
    with run.locked():
        with pytest.raises(PlaitError, match="is being trained by another process"), Run(run.folder).locked():
            pass
        run.begin()
        with pytest.raises(PlaitError, match="is being trained by another process"), Run(tmp_path / "run").locked():
            pass
    with Run(tmp_path / "run").locked():
        pass


@pytest.mark.parametrize("out", ["run", "a/b/run", "empty", None])
@pytest.mark.parametrize("why", [PlaitError, OSError, MemoryError, KeyboardInterrupt])
def test_a_start_that_fails_leaves_nothing(out: str | None, why: type[BaseException], empty_folder: Path) -> None:
    Path("empty").mkdir()
    run = Run.create(out, "forecast", {}, {"series.csv": b"1"})

    def fail() -> None:
        with run.locked():
            assert run.folder.is_dir()
            raise why

    with pytest.raises(why):
        fail()
    assert names(empty_folder) == ["empty"]
    assert names(Path("empty")) == []


def test_a_folder_above_is_left_if_it_was_there(empty_folder: Path) -> None:
    Path("a").mkdir()
    run = Run.create("a/b/run", "forecast", {})
    with pytest.raises(KeyboardInterrupt), run.locked():
        raise KeyboardInterrupt
    assert names(Path("a")) == []


def test_left_overs_of_the_killed_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".plait.1.0.partial", tmp_path / ".plait.2.0.partial"
    for folder in (dead, alive):
        folder.mkdir()
        (folder / "state.safetensors").write_text("x")
    handle = os.open(alive, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    run = Run.create(str(tmp_path / "run"), "forecast", {})
    with run.locked():
        run.begin()
    os.close(handle)
    assert names(tmp_path) == [alive.name, "run"]


def test_each_gets_a_number_of_its_own(empty_folder: Path) -> None:
    """All look for one at the same moment, many times."""
    together, got = threading.Barrier(8), []

    def begin() -> None:
        for _ in range(5):
            run = Run.create(None, "forecast", {})
            together.wait()
            with run.locked():
                together.wait()
                run.begin()
            got.append(run.path.name)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got)) == 40
    assert names(Path("runs")) == sorted(got)


def test_an_empty_folder_keeps_its_permissions_and_a_link_stays(empty_folder: Path) -> None:
    Path("mine").mkdir(mode=0o700)
    Path("link").symlink_to("mine")
    run = Run.create("link", "forecast", {})
    with run.locked():
        run.begin()
    assert Path("link").is_symlink()
    assert stat.S_IMODE(Path("mine").stat().st_mode) == 0o700
    assert names(Path("mine")) == ["config.json"]


def test_a_place_that_cannot_be_taken(empty_folder: Path) -> None:
    with pytest.raises(PlaitError, match=r"the folder that you are in, or a disk.* such as --out run"):
        Run.create(".", "forecast", {})
    with pytest.raises(PlaitError, match="cannot be written: File name too long"):
        Run.create("x" * 300, "forecast", {})
    Path("loop").symlink_to("loop")
    with pytest.raises(PlaitError, match="loop exists already"):
        Run.create("loop", "forecast", {})
    run = Run.create("run", "forecast", {})
    Path("run").mkdir()
    Path("run/file").write_text("of another process")
    with pytest.raises(PlaitError, match="run exists already"), run.locked():
        run.begin()
    assert names(Path("run")) == ["file"]
    assert names(empty_folder) == ["loop", "run"]
    with pytest.raises(PlaitError, match="cannot be read: File name too long"):
        Run.open("x" * 300)


def test_a_run_can_be_started_again_after_a_start_that_failed(plait, empty_folder: Path) -> None:
    assert plait("train", "forecast", *QUICK, "--data", "nowhere", "--out", "a/r")[0] == 2
    assert names(empty_folder) == []
    assert plait("train", "forecast", *QUICK, "--out", "a/r")[0] == 0
    assert names(Path("a")) == ["r"]


# --- killed, and stopped, at any moment ------------------------------------------------------------------------------
COMMANDS = {
    "forecast": ("train", "forecast", "--epochs", "6", "--hidden", "4"),
    "language": ("train", "language", "--data", "book.txt", "--epochs", "2", "--hidden", "8", "--layers", "1"),
}
ALWAYS = ("--threads", "1", "--save-every", "0", "--patience", "0")


def started(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from plait.cli import main; main()", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The last ones, and the best."""
    state, best = (Run(folder).read_tensors(f"{name}.safetensors")[0] for name in ("state", "model"))
    return {**{k: v for k, v in state.items() if k.startswith("model.")}, **best}


def undisturbed(task: str) -> tuple[dict[str, torch.Tensor], float]:
    """-> the weights that it ends with, and the seconds that it takes once everything is compiled"""
    for out in ("warm", "whole"):
        began = time.monotonic()
        process = started(*COMMANDS[task], *ALWAYS, "--out", f"{out}-{task}")
        said = process.communicate(timeout=600)
        assert process.returncode == 0, said
    return weights(Path(f"whole-{task}")), time.monotonic() - began


def wait_a_little(process: subprocess.Popen[str], folder: Path, seconds: float, rng: Random) -> None:
    """From 1 ms to longer than a whole life; a third of the lives end while their first files are made."""
    if not folder.exists() and rng.random() < 0.33:
        while process.poll() is None and not folder.exists() and not any(folder.parent.glob(".plait.*")):
            time.sleep(0.0005)
        time.sleep(rng.uniform(0, 0.05))
    else:
        low, high = rng.choice([(0.001 / seconds, 0.02), (0, 0.7), (0.5, 1.0), (0.7, 1.2)])
        time.sleep(seconds * rng.uniform(low, high))


@pytest.mark.slow
def test_kill_9_from_the_first_millisecond_on(empty_folder: Path, capsys) -> None:
    """100 times. A run goes on, or was never begun; in the end it has bitwise the weights of one left in peace."""
    Path("book.txt").write_text(TEXT)
    whole = {task: undisturbed(task) for task in COMMANDS}
    rng, counts, kills, runs = Random(0), {"never begun": 0, "to be resumed": 0, "finished": 0}, 0, 0
    while kills < 100:
        runs += 1
        task = list(COMMANDS)[runs % 2]
        expected, seconds = whole[task]
        folder, code, lives = Path(f"runs/{task}-{runs}"), -9, 0
        while code != 0:
            again = ("train", task, "--resume", str(folder))
            process = started(*(again if folder.exists() else (*COMMANDS[task], *ALWAYS, "--out", str(folder))))
            lives += 1
            if kills < 100 and lives < 5:
                wait_a_little(process, folder, seconds, rng)
                process.kill()
                kills += 1
                said = process.communicate()
                code = process.returncode
                counts["finished" if code == 0 else "to be resumed" if folder.exists() else "never begun"] += 1
            else:
                said = process.communicate(timeout=600)
                code = process.returncode
                assert code == 0, said
            assert code in (0, -9), said
            if folder.exists():
                assert {"config.json", "state.safetensors", "model.safetensors"} <= set(names(folder))
        found = weights(folder)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert sum(counts.values()) == 100
    assert min(counts["never begun"], counts["to be resumed"]) >= 10
    with capsys.disabled():
        print(f"\n100 kills of {runs} runs: {counts}")


# --- pictures --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "rows", [[(6.1234567, 6.2)], [(900, 177)], [(1e300, 1e200)], [(300 / k + 60, 200 / k + 90) for k in range(1, 14)]]
)
def test_a_perplexity_picture_has_a_few_round_ticks(rows: list[tuple[float, float]], monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr(pictures, "png", lambda figure: drawn.append(figure) or b"")
    history = [{"epoch": k, "loss": math.log(a), "validation": math.log(b)} for k, (a, b) in enumerate(rows, 1)]
    pictures.perplexity_picture("name", history, rows[-1][1])
    drawn[0].canvas.draw()
    (axes,) = drawn[0].axes
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        at = [t for t in axis.get_majorticklocs() if limits[0] <= t <= limits[1]]
        shown = [label.get_text() for label in axis.get_ticklabels() if label.get_text()]
        assert 1 <= len(at) <= 9
        assert len(set(shown)) == len(shown)
        assert all(len(text) <= 10 for text in shown)
        assert [t for t in axis.get_minorticklocs() if limits[0] <= t <= limits[1]] == []
    assert all(t == int(t) for t in axes.get_xticks())


def test_a_forecast_picture_shows_the_forecast_that_is_hard_to_beat(monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr(pictures, "png", lambda figure: drawn.append(figure) or b"")
    task = Forecast(ForecastSettings(hidden=4), series.airline())
    metrics = task.evaluate()
    task.pictures(metrics, [])
    lines = {line.get_label(): line.get_ydata() for line in drawn[0].axes[0].lines}
    assert list(lines) == ["history", "truth", "seasonal naive", "seasonal naive + drift", "lstm, 12 steps at a time"]
    found = series.errors(lines["seasonal naive + drift"][1:], task.data.values[-24:])
    assert found == metrics["seasonal naive + drift"]


# --- files that a user names -----------------------------------------------------------------------------------------
def device(path: Path, kind: int, number: int) -> None:
    try:
        os.mknod(path, kind | 0o666, number)
        path.open("rb").close() if kind == stat.S_IFCHR else None
    except PermissionError:
        pytest.skip("mknod is not permitted here")


def test_a_plain_file_is_replaced_whole_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)  # with hardly any room for a longer name beside it
    write_whole(path, b"first")
    path.chmod(0o640)
    before = path.stat().st_ino
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_ino != before  # a reader of the old one still has it
    assert len(list(tmp_path.iterdir())) == 1


def test_links_stay(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name, exists in (("old", True), ("new", False)):
        target, link = tmp_path / "there" / name, tmp_path / f"link-{name}"
        if exists:
            target.write_bytes(b"old")
        link.symlink_to(target)
        (tmp_path / f"link-{link.name}").symlink_to(link.name)
        write_whole(tmp_path / f"link-{link.name}", b"content")
        assert link.is_symlink()
        assert target.read_bytes() == b"content"
        assert not target.is_symlink()
    assert names(tmp_path / "there") == ["new", "old"]


def test_a_device_is_written_through(plait, empty_folder: Path) -> None:
    device(empty_folder / "null.png", stat.S_IFCHR, os.makedev(1, 3))
    device(empty_folder / "full", stat.S_IFCHR, os.makedev(1, 7))
    Path("link").symlink_to("null.png")
    for name in ("null.png", "link"):
        assert plait("equations", "gru", "--json", name)[0] == 0
    code, _, err = plait("equations", "gru", "--json", "full")
    assert code == 2
    assert "full cannot be written: No space left on device" in err
    assert plait("train", "forecast", *QUICK, "--out", "run")[0] == 0
    assert plait("forecast", "run", "--picture", "null.png")[0] == 0
    for name, number in (("null.png", os.makedev(1, 3)), ("full", os.makedev(1, 7))):
        assert stat.S_ISCHR(Path(name).lstat().st_mode)
        assert Path(name).stat().st_rdev == number
    assert Path("link").is_symlink()
    assert names(empty_folder) == ["full", "link", "null.png", "run"]


def test_a_pipe_is_written_through_if_somebody_reads_it(plait, refused, empty_folder: Path) -> None:
    os.mkfifo("pipe")
    said = refused("equations", "gru", "--json", "pipe")
    assert "--json pipe cannot be written: it is a pipe that nobody reads; start its reader." in said
    reader = subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE)
    while True:  # until it waits for a writer
        try:
            check_target(Path("pipe"), "pipe")
            break
        except PlaitError:
            time.sleep(0.01)
    assert plait("equations", "gru", "--json", "pipe")[0] == 0
    assert json.loads(reader.communicate(timeout=60)[0])["cell"] == "gru"
    assert stat.S_ISFIFO(Path("pipe").lstat().st_mode)


def test_what_cannot_be_written_is_refused_before_the_work(refused, empty_folder: Path) -> None:
    Path("folder.png").mkdir()
    Path("loop.png").symlink_to("loop.png")
    Path("away.png").symlink_to("nowhere/file.png")
    device(empty_folder / "disk.png", stat.S_IFBLK, os.makedev(7, 99))
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket.png")
    long = "x" * 296 + ".png"
    for name, why in {
        "folder.png": "it is a folder; expected a file.",
        "loop.png": "Too many levels of symbolic links; expected a file.",
        "away.png": "expected a file in a folder that exists.",
        "disk.png": "it is a block device; expected a file.",
        "socket.png": "it is a socket; expected a file.",
        long: "File name too long; expected a file.",
        "": "it is a folder; expected a file.",
    }.items():
        name_said = f"{name[:100]}... (300 characters)" if name == long else name
        assert f"plait: --json {name_said} cannot be written: {why}\n" == refused("train", "forecast", "--json", name)
        if name:
            assert f"--picture {name_said} cannot be written: {why}\n" in refused("forecast", "run", "--picture", name)
    server.close()


# --- files that are not what they were -------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "book.txt").write_text(TEXT)
    language = LanguageSettings(epochs=2, hidden=4, layers=1, data=str(folder / "book.txt"))
    for kind, settings in ((Forecast, ForecastSettings(epochs=2, hidden=4)), (Language, language)):
        task = kind.read(settings)
        config = {"settings": settings.as_dict(), "threads": torch.get_num_threads()}
        train(task, settings, Run.create(str(folder / kind.name), kind.name, config, task.files()))
    return folder


@pytest.fixture
def two_runs(finished: Path, empty_folder: Path) -> None:
    shutil.copytree(finished, empty_folder, dirs_exist_ok=True)


USES = {
    "forecast": [("evaluate", "forecast"), ("forecast", "forecast", "--picture", "p.png")],
    "language": [("evaluate", "language"), ("generate", "language", "--length", "9")],
}


def numbers(plait, task: str, path: Path, content: bytes) -> list[object]:
    """What each use of the run gives, or that it was refused; the file is put back before each."""
    found: list[object] = []
    for args in (*USES[task], ("train", task, "--resume", task)):
        path.write_bytes(content)
        code, _, err = plait(*args, "--json", "result.json")
        if code == 0:
            result = json.loads(Path("result.json").read_text())
            found.append(result["test"] if "test" in result and "run" in result else result)
        else:
            assert code == 2, err
            assert re.fullmatch(r"plait: [^\n]+\n", err)
            found.append("refused")
    return found


def test_no_bit_of_a_file_of_tensors_can_flip_unnoticed(tmp_path: Path) -> None:
    path, tensors = tmp_path / "file", {"a": torch.randn(3, 2), "b": torch.arange(5), "c": torch.ones(())}
    whole, told = packed(tensors, {"text": [1, 2.5, "x"]}), []
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found, meta = unpacked(path)
        except PlaitError as e:
            told.append(str(e))
        else:  # a blank at the end of the header, say
            assert meta == {"text": [1, 2.5, "x"]}
            assert found.keys() == tensors.keys()
            assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert len(told) > 0.95 * len(whole)
    assert all(sentence.startswith(f"{path} is ") for sentence in told)


@pytest.mark.slow
def test_a_flipped_bit_is_noticed_or_changes_nothing(plait, two_runs) -> None:
    rng, refusals = Random(0), {}
    for task in USES:
        folder = Path(task)
        for path in sorted(folder.iterdir()):
            whole = path.read_bytes()
            expected = numbers(plait, task, path, whole)
            assert "refused" not in expected
            size = len(whole)
            places = [0, 3, 9, 30, size // 2, size - 1, *(rng.randrange(size) for _ in range(3))]
            for place in places if path.suffix != ".png" else places[:1]:
                damaged = bytearray(whole)
                damaged[place] ^= 1 << rng.randrange(8)
                found = numbers(plait, task, path, bytes(damaged))
                assert all(f in (e, "refused") for f, e in zip(found, expected, strict=True)), (path, place)
                refusals[path.name] = refusals.get(path.name, 0) + found.count("refused")
            path.write_bytes(whole)
    needed = {"config.json", "model.safetensors", "state.safetensors", "series.csv", "tokens.safetensors"}
    assert {name for name, count in refusals.items() if count} == needed | {"vocabulary.json"}


def test_every_use_of_a_run_checks_its_data(refused, two_runs) -> None:
    changes = {
        "forecast/series.csv": lambda text: text.replace("417", "418"),
        "language/vocabulary.json": lambda text: text.replace("three", "there"),
    }
    for name, change in changes.items():
        path = Path(name)
        whole = path.read_text()
        path.write_text(change(whole))
        assert path.read_text() != whole
        task = path.parent.name
        for args in (*USES[task], ("train", task, "--resume", task)):
            assert f"{name} has other data: put back what the run began with." in refused(*args)
        path.write_text(whole)
    tensors, meta = unpacked(Path("language/tokens.safetensors"))
    tensors["test.ids"][0] = 0
    Path("language/tokens.safetensors").write_bytes(packed(tensors, meta))
    assert "tokens.safetensors has other data" in refused("evaluate", "language")


def test_files_of_a_run_that_are_no_files(refused, two_runs) -> None:
    for name in ("config.json", "model.safetensors", "series.csv"):
        path = Path("forecast") / name
        path.rename("kept")
        os.mkfifo(path)
        assert f"{path} is a pipe or a socket: expected a plain file" in refused("evaluate", "forecast")
        path.unlink()
        path.mkdir()
        assert f"{path} is a directory: expected a plain file" in refused("evaluate", "forecast")
        path.rmdir()
        Path("kept").rename(path)


def test_a_config_of_another_shape(plait, refused, two_runs) -> None:
    path = Path("forecast/config.json")
    good = json.loads(path.read_text())

    def said(config: object) -> str:
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        sentences = {
            refused(*args) for args in (("evaluate", "forecast"), ("train", "forecast", "--resume", "forecast"))
        }
        assert len(sentences) == 1
        return sentences.pop()

    for config in ("[" * 100_000, "", "[]", "3", '{"a":' * 50_000, "\x00", {"settings": {}}):
        assert "config.json cannot be read as a run's settings" in said(config)
    for task in (["forecast"], 3, None, {}):
        path.write_text(json.dumps({**good, "task": task}))
        assert "has a task that is no name" in refused("evaluate", "forecast")
    path.write_text(json.dumps({**good, "task": "weave"}))
    assert "task 'weave' is not known" in refused("evaluate", "forecast")
    for threads in ("2", 0, -1, 10**30, True, 2.5, None, [1]):
        assert "expected a whole number from 1 to 4096" in said({**good, "threads": threads})
    for settings in ([], "x", 3, None):
        assert "has settings that are no JSON object" in said({**good, "settings": settings})
    for name, value in (("lr", "1e400"), ("hidden", "1e400"), ("epochs", "-3"), ("batch", '"' + "9" * 5000 + '"')):
        text = json.dumps({**good, "settings": {**good["settings"], name: "?"}}).replace('"?"', value)
        assert "config.json has settings that" in said(text)
    for wrong in ({**good, "data": {}}, {**good, "settings": {**good["settings"], "window": 11}}, {**good, "x": 1}):
        assert "config.json does not fit its checksum: put back what the run began with" in said(wrong)
    path.write_text(json.dumps(good))
    assert plait("evaluate", "forecast")[0] == 0


def test_a_checkpoint_of_another_shape(plait, two_runs) -> None:
    run = Run(Path("forecast"))

    def said() -> str:
        code, _, err = plait("train", "forecast", "--resume", "forecast")
        assert code == 2
        assert re.fullmatch(r"plait: [^\n]+\n", err)
        return err

    tensors, good = run.read_tensors("state.safetensors")
    progress = good["progress"]
    for meta in (
        {},
        {**good, "belongs_to": []},
        {**good, "progress": [1]},
        {**good, "progress": {**progress, "epoch": "2"}},
        {**good, "progress": {**progress, "epoch": -1}},
        {**good, "progress": {**progress, "position": 10**9, "count": 5}},
        {**good, "progress": {**progress, "position": 1, "count": 0}},
        {**good, "progress": {**progress, "best": math.inf}},
        {**good, "progress": {**progress, "history": [1, 2]}},
        {**good, "progress": {**progress, "history": {}}},
        {**good, "progress": {**progress, "history": [{"epoch": 1}, {"epoch": 2}]}},
        {**good, "groups": {}},
        {**good, "schedule": 3},
        {**good, "random": []},
        {**good, "random": [[3, ["x"], None], good["random"][1]]},
    ):
        run.write_tensors("state.safetensors", tensors, meta)
        assert "lacks what a checkpoint of this run has" in said()
    run.write_tensors("state.safetensors", {**tensors, "carried.0": torch.zeros(1)}, good)
    assert "lacks what a checkpoint of this run has" in said()
    run.write_tensors("state.safetensors", {**tensors, "optimizer.0.exp_avg": torch.zeros(7)}, good)
    assert "parameter 0 have another shape" in said()
    deep = packed({}, {}).replace(b" {}", b" " + b"[" * 2)
    Path("forecast/state.safetensors").write_bytes(deep)
    assert "is truncated or damaged" in said()


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("ids", lambda t: t + 100, r"ids from 10\d to 1\d\d, with a vocabulary of \d+,"),
        ("ids", lambda t: t - 100, "ids from -100 to"),
        ("ids", lambda t: t.reshape(1, -1), r"ids of shape \(1, \d+\) and torch.int32, not a row of int32"),
        ("ids", lambda t: t[:0], r"ids of shape \(0,\)"),
        ("ids", lambda t: t.long(), "torch.int64, not a row of int32"),
        ("ids", lambda t: t.float(), "torch.float32, not a row of int32"),
        ("starts", lambda t: t.int(), "starts of shape .* not a row of int64"),
        ("starts", lambda t: t[:1], r"starts of shape \(1,\)"),
        ("starts", lambda t: t.flip(0), r"starts that do not rise from 0 to \d+"),
        ("starts", lambda t: t + 1, "starts that do not rise from 0"),
        ("starts", lambda t: t[1:], "starts that do not rise from 0"),
        ("starts", lambda t: t[:-1], "starts that do not rise from 0"),
        ("starts", lambda t: torch.cat([t[:1], t]), "starts that do not rise from 0"),
    ],
)
def test_tokens_that_are_no_text(tmp_path: Path, name: str, change, sentence: str) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    corpus = Corpus.read(LanguageSettings(data=str(tmp_path / "book.txt")))
    for file, content in corpus.files().items():
        (tmp_path / file).write_bytes(content)
    assert Corpus.reopen(tmp_path, "book").digest == corpus.digest
    tensors, unknown = unpacked(tmp_path / "tokens.safetensors")
    tensors[f"valid.{name}"] = change(tensors[f"valid.{name}"])
    (tmp_path / "tokens.safetensors").write_bytes(packed(tensors, unknown))
    with pytest.raises(PlaitError, match=f"{sentence}.* in part valid: restore it from a copy"):
        Corpus.reopen(tmp_path, "book")


def test_unknown_tokens_are_counted_in_numbers(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    corpus = Corpus.read(LanguageSettings(data=str(tmp_path / "book.txt")))
    for file, content in corpus.files().items():
        (tmp_path / file).write_bytes(content)
    tensors, unknown = unpacked(tmp_path / "tokens.safetensors")
    for count in ("3", -1, True, 10**9, [1]):
        (tmp_path / "tokens.safetensors").write_bytes(packed(tensors, {**unknown, "test": count}))
        with pytest.raises(PlaitError, match=r"unknown ones of \d+ in part test"):
            Corpus.reopen(tmp_path, "book")


def test_a_file_without_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(3)}, path, {"plait-1": "{}"})
    with pytest.raises(PlaitError, match=r"model.safetensors is truncated or damaged \(its checksum does not fit\)"):
        unpacked(path)
    path.write_bytes(packed({"weight": torch.zeros(3), "scalar": torch.ones(()), "none": torch.ones(0, 2)}, {"a": 1}))
    assert unpacked(path)[1] == {"a": 1}


# --- Ctrl-C and SIGTERM ----------------------------------------------------------------------------------------------
AT = """
import os, signal, sys
from plait.tasks.forecast import Forecast
name, times, number = sys.argv.pop(1), int(sys.argv.pop(1)), int(sys.argv.pop(1))
old = getattr(Forecast, name)
def sends(*args, **options):
    for _ in range(times):
        os.kill(os.getpid(), number)
    return old(*args, **options)
setattr(Forecast, name, sends)
from plait.__main__ import main
main()
"""


def hear() -> None:
    """Before a process begins: a shell's background jobs ignore Ctrl-C, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def stopped_at(name: str, times: int, number: int, *args: str) -> tuple[str, str]:
    """A process that gets so many signals where a method of the task is called -> what it prints"""
    command = [sys.executable, "-c", AT, name, str(times), str(int(number)), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, preexec_fn=hear)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    return done.stdout, done.stderr


def test_a_signal_in_the_final_evaluation(plait, empty_folder: Path) -> None:
    _, err = stopped_at("evaluate", 1, signal.SIGINT, "train", "forecast", *QUICK, "--out", "run")
    assert err == "plait: stopped; go on with plait train forecast --resume run.\n"
    code, out, _ = plait("train", "forecast", "--resume", "run")
    assert code == 0
    assert "nothing is left to do: all its epochs (2) are done" in out


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_stage(number: int, plait, empty_folder: Path) -> None:
    start = ("train", "forecast", *QUICK, "--out", "run")
    assert stopped_at("files", 1, number, *start) == ("", "plait: stopped.\n")  # the data is read
    assert names(empty_folder) == []
    out, _ = stopped_at("loss", 1, number, *start)
    assert re.search(r"^stopped in epoch 1 of 2$", out, re.M)
    assert re.search(r"^go on     plait train forecast --resume run$", out, re.M)
    for name, times in (("loss", 2), ("pictures", 1)):
        _, err = stopped_at(name, times, number, "train", "forecast", "--resume", "run")
        assert err == "plait: stopped; go on with plait train forecast --resume run.\n"
    assert not any(name.startswith(".") for name in names(Path("run")))
    assert plait("evaluate", "run")[0] == 0


def listens(process: subprocess.Popen[str]) -> bool:
    """Whether it has a handler for SIGTERM by now: Python itself brings none."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s*(\w+)$", text, re.M)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def as_module(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "plait", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc here")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_libraries_are_imported(number: int, empty_folder: Path) -> None:
    process = as_module("train", "forecast")
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(number)
    assert process.communicate(timeout=300) == ("", "plait: stopped.\n")
    assert process.returncode == 130
    assert names(empty_folder) == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc here")
def test_ctrl_c_at_40_moments(empty_folder: Path, capsys) -> None:
    _, seconds = undisturbed("forecast")
    counts = {"before ours": 0, "never begun": 0, "resumed": 0, "over": 0}
    for k in range(40):
        folder = Path(f"runs/run-{k}")
        process = as_module(*COMMANDS["forecast"], *ALWAYS, "--out", str(folder))
        time.sleep(seconds * (k + 0.5) / 40)
        ours = process.poll() is None and listens(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        if not ours and process.returncode != 0:
            counts["before ours"] += 1  # Python itself was not ready
            assert not folder.exists()
            continue
        assert "Traceback" not in out + err
        if process.returncode == 0:  # it had said all there is to say
            assert "forecast  plait forecast" in out
            counts["over"] += 1
        else:
            assert process.returncode == 130, err
            assert "stopped" in out + err
            counts["resumed" if folder.exists() else "never begun"] += 1
        assert not any(Path("runs").glob(".plait.*"))
        if folder.exists():
            again = as_module("train", "forecast", "--resume", str(folder))
            said = again.communicate(timeout=300)
            assert again.returncode == 0, said
            expected, found = weights(Path("whole-forecast")), weights(folder)
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert counts["never begun"] >= 5
    assert counts["resumed"] >= 1
    with capsys.disabled():
        print(f"\n40 times Ctrl-C: {counts}")
