"""A run folder: whole or not there, and checked to the last bit."""

import fcntl
import json
import math
import os
import re
import shutil
import stat
import subprocess
import threading
import time
from pathlib import Path
from random import Random

import pytest
import safetensors.torch
import torch
from safetensors.torch import save_file

from plait import PlaitError
from plait.data import series
from plait.tasks.corpus import Corpus
from plait.tasks.forecast import Forecast
from plait.tasks.language import Language
from plait.tasks.settings import ForecastSettings, LanguageSettings
from plait.training import run as run_module
from plait.training.loop import train
from plait.training.run import Run, config_file
from plait.training.tensors import dumps, loads
from processes import ALWAYS, COMMANDS, QUICK, names, started, undisturbed, weights

TEXT = "one two three four five six seven\n" * 60


# --- a run is there whole, or not at all -----------------------------------------------------------------------------
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
    dead, alive, young = (tmp_path / f".plait.{k}.partial" for k in (1, 2, 3))  # the last may be another host's
    for folder, age in ((dead, 3700), (alive, 3700), (young, 3500)):
        folder.mkdir()
        (folder / "state.safetensors").write_text("x")
        os.utime(folder, (time.time() - age,) * 2)
    handle = os.open(alive, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    run = Run.create(str(tmp_path / "run"), "forecast", {})
    with run.locked():
        run.begin()
    os.close(handle)
    assert names(tmp_path) == [alive.name, young.name, "run"]


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


def test_an_empty_folder_whose_place_cannot_be_taken(empty_folder: Path, monkeypatch) -> None:
    """The current one, or one that is a disk of its own, or in a folder that cannot be written: none is replaced."""
    before = empty_folder.stat().st_ino
    run = Run.create(".", "forecast", {}, {"series.csv": b"1"})
    seen, rename = [], Path.rename

    def watched(self: Path, target: Path) -> Path:
        seen.append(target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", watched)
    with run.locked():
        (hidden,) = names(empty_folder)
        assert re.fullmatch(r"\.plait\..*\.partial", hidden)
        with pytest.raises(PlaitError, match="is being trained by another process"), Run(empty_folder).locked():
            pass
        run.begin()
        assert run.folder == Path()
    assert seen == [Path("series.csv"), Path("config.json")]
    assert names(empty_folder) == ["config.json", "series.csv"]
    assert empty_folder.stat().st_ino == before
    with pytest.raises(PlaitError, match="exists already"):
        Run.create(".", "forecast", {})


def test_files_that_cannot_all_be_moved_up_go(empty_folder: Path, monkeypatch) -> None:
    run, rename = Run.create(".", "forecast", {}, {"series.csv": b"1"}), Path.rename

    def fails(self: Path, target: Path) -> Path:
        if target.name == "config.json":
            assert names(empty_folder)[1:] == ["series.csv"]
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(PlaitError, match="cannot be written: No space left on device"), run.locked():
        run.begin()
    assert names(empty_folder) == []


def test_what_a_killed_start_left_in_the_folder_is_no_run(empty_folder: Path) -> None:
    def killed(moved: list[str]) -> None:
        shutil.rmtree("run", ignore_errors=True)
        Path("run").mkdir()
        run = Run.create("run", "forecast", {}, {"series.csv": b"1"})
        run.undo = lambda: None  # a killed process does nothing more
        with run.locked():
            for name in moved:
                (run.folder / name).rename(run.path / name)

    for moved in ([], ["series.csv"]):
        killed(moved)
        assert len(names(Path("run"))) == 1 + len(moved)
        run = Run.create("run", "forecast", {}, {"series.csv": b"2"})
        with run.locked():
            run.begin()
        assert names(Path("run")) == ["config.json", "series.csv"]
        assert Path("run/series.csv").read_text() == "2"
    for name in ("series.csv", "notes.txt", "config.json"):  # the user's: it was never moved up
        killed([])
        Path("run", name).write_text("mine")
        with pytest.raises(PlaitError, match="run exists already"):
            Run.create("run", "forecast", {})
        assert Path("run", name).read_text() == "mine"


def test_a_place_that_cannot_be_taken(empty_folder: Path) -> None:
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


# --- killed at any moment ---------------------------------------------------------------------------------------------
def wait_a_little(process: subprocess.Popen[str], folder: Path, seconds: float, rng: Random) -> None:
    """From 1 ms to longer than a whole life; a third of the lives end while their first files are made."""
    before = set(folder.parent.glob(".plait.*"))
    if not folder.exists() and rng.random() < 0.33:
        while process.poll() is None and not folder.exists() and set(folder.parent.glob(".plait.*")) <= before:
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
    whole, told = dumps(tensors, {"text": [1, 2.5, "x"]}), []
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found, meta = loads(path)
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
            assert f"{name} was changed: put back what the run began with." in refused(*args)
        path.write_text(whole)
    tensors, meta = loads(Path("language/tokens.safetensors"))
    tensors["test.ids"][0] = 0
    Path("language/tokens.safetensors").write_bytes(dumps(tensors, meta))
    assert "tokens.safetensors was changed" in refused("evaluate", "language")


def test_the_data_that_was_checked_is_the_data_that_is_used(plait, two_runs, monkeypatch) -> None:
    """A file that is replaced right after it was read and checked: it is not read a second time."""
    read = run_module.read_plain
    replaced = []

    def read_then_replace(path: Path) -> bytes:
        content = read(path)
        if path.name in ("series.csv", "vocabulary.json", "tokens.safetensors"):
            path.write_bytes(b"x\n1\n")
            replaced.append(path.name)
        return content

    monkeypatch.setattr(run_module, "read_plain", read_then_replace)
    assert plait("evaluate", "forecast")[0] == 0
    assert plait("evaluate", "language")[0] == 0
    assert sorted(replaced) == ["series.csv", "tokens.safetensors", "vocabulary.json"]


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
    earlier = {name: value for name, value in good.items() if name not in ("checksum", "data")}
    assert "forecast was made by an earlier version of plait, without a checksum: train again." in said(earlier)
    path.write_bytes(config_file(earlier))  # no data to check
    assert plait("evaluate", "forecast")[0] == 0
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
        {**good, "progress": {**progress, "epoch": 0, "best_epoch": 0, "history": {}}},
        {**good, "progress": {**progress, "seconds": 10**400}},
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
    group, schedule = good["groups"][0], good["schedule"]
    for name, value in (
        *(("lr", value) for value in ("fast", None, True, -1.0, math.inf, math.nan, 10**400, [0.1])),
        *(("betas", value) for value in (3, [0.9], ["a", "b"], [0.5, 0.999])),
        ("eps", "small"),
        ("weight_decay", 0.5),
        ("initial_lr", 7),
        ("params", [0]),
    ):
        run.write_tensors("state.safetensors", tensors, {**good, "groups": [{**group, name: value}]})
        assert f"lacks what a checkpoint of this run has (ValueError: its optimizer has {name} " in said()
    for name, value in (("last_epoch", "one"), ("_step_count", None), ("_last_lr", 0.1), ("base_lrs", [])):
        run.write_tensors("state.safetensors", tensors, {**good, "schedule": {**schedule, name: value}})
        assert f"lacks what a checkpoint of this run has (ValueError: its schedule has {name} " in said()
    for name, value in (
        ("optimizer.0.exp_avg", None),
        ("optimizer.0.step", torch.tensor(1)),
        ("optimizer.0.exp_avg", tensors["optimizer.0.exp_avg"].long()),
        ("optimizer.0.other", torch.zeros(())),
        ("optimizer.99.step", torch.zeros(())),
    ):
        changed = {**tensors, name: value}
        run.write_tensors("state.safetensors", {k: v for k, v in changed.items() if v is not None}, good)
        assert "lacks what a checkpoint of this run has" in said()
    run.write_tensors("state.safetensors", {**tensors, "optimizer.0.exp_avg": torch.zeros(7)}, good)
    assert "parameter 0 have another shape" in said()
    deep = dumps({}, {}).replace(b" {}", b" " + b"[" * 2)
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
    assert Corpus.reopen(Run(tmp_path), "book").digest == corpus.digest
    tensors, unknown = loads(tmp_path / "tokens.safetensors")
    tensors[f"valid.{name}"] = change(tensors[f"valid.{name}"])
    (tmp_path / "tokens.safetensors").write_bytes(dumps(tensors, unknown))
    with pytest.raises(PlaitError, match=f"{sentence}.* in part valid: restore it from a copy"):
        Corpus.reopen(Run(tmp_path), "book")


def test_unknown_tokens_are_counted_in_numbers(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    corpus = Corpus.read(LanguageSettings(data=str(tmp_path / "book.txt")))
    for file, content in corpus.files().items():
        (tmp_path / file).write_bytes(content)
    tensors, unknown = loads(tmp_path / "tokens.safetensors")
    for count in ("3", -1, True, 10**9, [1]):
        (tmp_path / "tokens.safetensors").write_bytes(dumps(tensors, {**unknown, "test": count}))
        with pytest.raises(PlaitError, match=r"unknown ones of \d+ in part test"):
            Corpus.reopen(Run(tmp_path), "book")


def test_a_dtype_that_this_version_does_not_know(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(dumps({"weight": torch.zeros(3)}, {}))
    monkeypatch.delitem(safetensors.torch._TYPES, "F32")
    with pytest.raises(PlaitError, match=r"is truncated or damaged \(dtype 'F32' is not known\)"):
        loads(path)


def test_a_file_without_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(3)}, path, {"plait-1": "{}"})
    with pytest.raises(PlaitError, match=r"model.safetensors is truncated or damaged \(its checksum does not fit\)"):
        loads(path)
    path.write_bytes(dumps({"weight": torch.zeros(3), "scalar": torch.ones(()), "none": torch.ones(0, 2)}, {"a": 1}))
    assert loads(path)[1] == {"a": 1}


def test_a_folder_needs_a_name(refused) -> None:
    assert "--out is empty: expected the name of a folder" in refused("train", "forecast", *QUICK, "--out", "")
