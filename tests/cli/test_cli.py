"""The commands as a person meets them: what they print, what they leave behind, and what they say to a mistake."""

import json
import os
import pty
import re
import resource
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plait import cli
from plait.bench import QUESTIONS
from plait.tasks import memory
from plait.training.run import Run
from processes import hear

PLAIT = [sys.executable, "-m", "plait"]
QUICK = ("--epochs", "2", "--hidden", "4")


# --- what works ----------------------------------------------------------------------------------------------------
def test_train_forecast_and_evaluate(plait, empty_folder: Path) -> None:
    code, out, _ = plait("train", "forecast", *QUICK, "--json", "result.json")
    assert code == 0
    assert "airline: 144 values, 108 to train, 12 to validate, 24 to test; column 'passengers'\n" in out
    assert re.search(r"^epoch 2/2  loss [\d.]+  validation [\d.]+  [\d,]+ samples/s  0 s left$", out, re.M)
    assert re.search(r"^seasonal naive +49\.99 +47\.58 +10\.52 %$", out, re.M)
    run = empty_folder / "runs" / "forecast-1"
    expected = ["config.json", "forecast.png", "history.json", "model.safetensors", "series.csv", "state.safetensors"]
    assert sorted(p.name for p in run.iterdir()) == expected
    assert (run / "forecast.png").read_bytes().startswith(b"\x89PNG")
    history = json.loads((run / "history.json").read_text())
    assert [row["epoch"] for row in history["epochs"]] == [1, 2]
    result = json.loads((empty_folder / "result.json").read_text())
    assert result["test"] == history["test"]

    code, out, _ = plait("evaluate", "runs/forecast-1", "--json", "-")
    assert json.loads(out)["model"] == history["test"]["model"]

    code, out, _ = plait("forecast", "runs/forecast-1", "--steps", "3")
    assert code == 0
    last = r"data     airline, column 'passengers'\npicture  runs/forecast-1/future\.png\n"
    assert re.fullmatch(rf"(1961-0[123]  [\d.]+\n){{3}}{last}", out)
    assert (run / "future.png").read_bytes().startswith(b"\x89PNG")


def test_a_csv_of_ones_own(plait, empty_folder: Path) -> None:
    rows = [f"2020-01-{d:02d},{10 + d % 7},{d}" for d in range(1, 32)] + [
        f"2020-02-{d:02d},9,{d}" for d in range(1, 29)
    ]
    Path("sales.csv").write_text("day,sales,other\n" + "\n".join(rows) + "\n")
    options = ("--column", "sales", "--horizon", "3", "--window", "5", "--season", "7", "--out", "mine")
    code, out, _ = plait("train", "forecast", "--data", "sales.csv", *options, *QUICK)
    assert code == 0
    assert re.search(r"^sales\.csv: 59 values, .*; column 'sales'$", out, re.M)
    Path("sales.csv").unlink()  # a run has its own copy
    assert "2020-02-29" in plait("forecast", "mine")[1]
    Path("newer.csv").write_text("day,sales\n" + "\n".join(f"2021-03-{d:02d},{d}" for d in range(1, 20)) + "\n")
    code, out, _ = plait("forecast", "mine", "--data", "newer.csv", "--steps", "1", "--picture", "p.png")
    assert code == 0
    assert out.startswith("2021-03-20  ")
    assert "\ndata     newer.csv, column 'sales'\n" in out
    resumed = plait("train", "forecast", "--resume", "mine")[1]
    assert re.search(r"^sales\.csv: 59 values, .*; column 'sales'$", resumed, re.M)  # of the run's own copy
    assert Path("p.png").exists()


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["train", "forecast", "--help"],
        ["train", "rotate", "--help"],
        ["bench", "--help"],
        ["bench", "layers", "--help"],
        ["check", "--help"],
    ],
)
def test_help_is_quick_because_it_does_without_torch(args: list[str]) -> None:
    code = f"import sys; sys.argv = ['plait', *{args!r}]; from plait.cli import app; app(standalone_mode=False)"
    code += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: plait" in done.stdout


@pytest.mark.parametrize("name", QUESTIONS)
def test_help_of_a_benchmark_fits_a_narrow_terminal(plait, name: str) -> None:
    code, out, _ = plait("bench", name, "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    options = ("threads", "json", *QUESTIONS[name].__annotations__)
    assert all(f"--{option} " in out for option in options if "_" not in option)


def test_an_option_of_a_benchmark_is_a_field(plait) -> None:
    """Name, type, sentence and default, all from the fields of `Options`."""
    out = plait("bench", "layers", "--help")[1]
    assert re.search(r"--random +N +Measure this many random shapes, and print ", out)
    assert re.search(r"--input-gradient +<bool> +The gradient of the input, too\.|--input-gradient +The gradient", out)
    assert "--no-input-gradient" not in out
    assert re.search(r"--cells .*Of lstm, gru and rnn, with commas\.(.|\n)*?\[default: lstm,gru,rnn\]", out)


def test_version_engines_equations(plait) -> None:
    import plait as package

    assert plait("--version")[1] == package.__version__ + "\n"
    out = plait("engines")[1]
    about = ["auto", "threads", "vectors", "bf16"]
    assert [line.split()[0] for line in out.splitlines()] == [*package.engines.names(), *about]
    runtime = json.loads(plait("engines", "--json", "-")[1])["openmp"]
    assert runtime in out if runtime else "runs on one thread" in out
    out = plait("equations", "gru")[1]
    assert out.startswith("r, z = sigmoid(W x + b + R h + c)")
    assert "def gru_vjp(r, z, n, rh_n, h, h_new, d_h_new):" in out
    compile(out[out.index("def ") :], "equations", "exec")
    assert "2.0 * " in plait("equations", "implicit_gru", "--dt", "2")[1]


def test_bench_loop_has_the_shape_of_every_benchmark(plait) -> None:
    result = json.loads(plait("bench", "loop", "--steps", "6", "--repeats", "5", "--json", "-")[1])
    assert set(result) >= {"environment", "question", "rows"}
    assert result["environment"]["threads"] >= 1
    assert [row["task"] for row in result["rows"]] == ["one weight", "airline, lstm 32"]
    assert all(0 < row["loop ms"] < row["step ms"] for row in result["rows"])


def test_the_best_epoch_is_named_where_there_is_a_validation(plait, monkeypatch) -> None:
    assert re.search(
        r"^2 epochs in [\d.]+ s; validation was best in [12]$", plait("train", "forecast", *QUICK)[1], re.M
    )
    assert re.search(r"^1 epoch in [\d.]+ s; ", plait("train", "forecast", "--epochs", "1", "--hidden", "4")[1], re.M)
    monkeypatch.setattr("plait.tasks.forecast.Forecast.validate", lambda _: None)
    assert re.search(r"^2 epochs in [\d.]+ s$", plait("train", "forecast", *QUICK)[1], re.M)


def test_resume_from_the_command_line(plait, empty_folder: Path) -> None:
    plait("train", "forecast", "--epochs", "4", "--hidden", "4", "--out", "whole")
    plait("train", "forecast", "--epochs", "2", "--hidden", "4", "--out", "parts")
    code, out, _ = plait("train", "forecast", "--resume", "parts", "--epochs", "4")
    assert code == 0
    assert "epoch 4/4" in out
    weights = [(empty_folder / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]
    assert "4 epochs" in plait("train", "forecast", "--resume", "parts", "--epochs", "4")[1]  # nothing left to do


# --- a terminal, a signal, a full disk -----------------------------------------------------------------------------
def in_terminal(
    args: list[str], folder: Path, until: bytes | None = None, then: int = signal.SIGINT
) -> tuple[int, str]:
    """Runs a command on a real pseudo-terminal of 80 columns, sends a signal once `until` was printed."""
    pid, terminal = pty.fork()
    if pid == 0:
        hear()
        os.chdir(folder)
        os.environ.update(COLUMNS="80", LINES="24", TERM="xterm")
        os.execv(sys.executable, [*PLAIT, *args])
    seen, sent, deadline = b"", False, time.monotonic() + 120
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 1)
        if not ready:
            continue
        try:
            seen += os.read(terminal, 65536)
        except OSError:  # the other side has closed it
            break
        if until is not None and not sent and until in seen:
            time.sleep(0.5)  # some epochs more
            os.kill(pid, then)
            sent = True
    else:
        os.kill(pid, signal.SIGKILL)  # time is up
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen.decode()


def test_ctrl_c_and_sigterm_save_evaluate_and_say_how_to_go_on(tmp_path: Path, plait) -> None:
    def epochs() -> list[dict]:
        return json.loads((tmp_path / "run" / "history.json").read_text())["epochs"]

    assert plait("train", "forecast", "--epochs", "3", "--patience", "0", "--out", "run")[0] == 0
    code, seen = in_terminal(["train", "forecast", "--resume", "run", "--epochs", "99999"], tmp_path, b"/99999")
    assert code == 130
    assert re.search(r"stopped in epoch \d+ of 99999", seen)
    assert "seasonal naive" in seen
    assert "Traceback" not in seen
    done = epochs()
    assert len(done) > 3
    (command,) = re.findall(r"go on     plait (.*?)\r\n", seen)
    code, seen = in_terminal(command.split(), tmp_path, b"/99999", signal.SIGTERM)  # exactly as it says, and stopped
    assert code == 130
    assert "samples/s" in seen  # the bar
    assert re.search(r"stopped in epoch \d+ of 99999", seen)
    assert "go on     plait train forecast --resume run" in seen
    more = epochs()
    assert len(more) > len(done)
    assert more[: len(done)] == done


def test_a_full_disk(tmp_path: Path) -> None:
    """First a disk that is full: a small one of our own. Where none may be mounted, a limit on the size of files."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0

    def limited() -> None:
        if not mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, 16_000))

    try:
        args = [*PLAIT, "train", "forecast", "--epochs", "2", "--out", str(disk / "run")]
        done = subprocess.run(args, capture_output=True, text=True, check=False, preexec_fn=limited)
        left = sorted(p.name for p in disk.iterdir())
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)
    assert done.returncode == 2
    reason = "No space left on device" if mounted else "File too large"
    assert re.fullmatch(rf"plait: {disk}/run/\w+\.safetensors cannot be written: {reason}\.\n", done.stderr)
    assert left == []  # a run that could not begin


def test_a_reader_that_leaves_does_not_end_the_run(tmp_path: Path) -> None:
    command = " ".join(
        map(shlex.quote, [*PLAIT, "train", "forecast", "--epochs", "8", "--patience", "0", "--out", "run"])
    )
    subprocess.run(f"{command} | head -1", shell=True, cwd=tmp_path, check=True, capture_output=True)
    assert len(json.loads((tmp_path / "run" / "history.json").read_text())["epochs"]) == 8


@pytest.mark.slow
def test_looking_at_a_run_does_not_disturb_its_training(tmp_path: Path) -> None:
    args = [*PLAIT, "train", "forecast", "--epochs", "30", "--patience", "0", "--save-every", "0", "--out", "run"]
    process = subprocess.Popen(args, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    looks = 0
    while process.poll() is None:
        if (tmp_path / "run" / "config.json").exists():
            Run.open(str(tmp_path / "run"))
            looks += 1
    assert looks > 0
    assert process.stderr is not None
    said = [line for line in process.stderr.read().splitlines() if not line.startswith(b"plait: compiling")]
    assert said == []
    assert process.returncode == 0


# --- mistakes --------------------------------------------------------------------------------------------------------
def test_bad_data(refused, empty_folder: Path) -> None:
    Path("text.csv").write_text("d,v\na,1\nb,2\nc,three\n")
    Path("short.csv").write_text("v\n" + "\n".join(map(str, range(20))) + "\n")
    Path("nan.csv").write_text("v\n1\n2\nnan\n")
    Path("empty.csv").write_text("")
    Path("folder").mkdir()

    def of(*args: str) -> str:
        return refused("train", "forecast", "--data", *args)

    assert "nowhere.csv does not exist" in of("nowhere.csv")
    assert "folder is a directory" in of("folder")
    assert "empty.csv is empty" in of("empty.csv")
    assert "text.csv, row 4, column 'v': 'three' is not a number" in of("text.csv")
    assert "nan.csv, row 4, column 'v': 'nan' is not a finite number" in of("nan.csv")
    assert "text.csv has no column 'w'" in of("text.csv", "--column", "w")
    assert "short.csv has 20 values, too few" in of("short.csv")
    assert "column 'v' goes with --data" in refused("train", "forecast", "--column", "v")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--hidden", "0"], "hidden 0: must be at least 1."),
        (["--layers", "-2"], "layers -2: must be at least 1."),
        (["--threads", "0"], "threads 0: must be at least 1."),
        (["--cell", "lsm"], "cell 'lsm' is not known: did you mean 'lstm'?"),
        (["--engine", "nunpy"], "engine 'nunpy' is not known: did you mean 'numpy'?"),
        (["--threads", "100000000000"], "threads 100000000000: must be at most 4096."),
        (["--hidden", "1000000000000"], "hidden 1000000000000: must be at most 100000."),
        (["--hidden", "100000"], " needs about "),
        (["--json", "no/such/folder.json"], "--json no/such/folder.json cannot be written"),
        (["--batch", "-1"], "batch '-1': must be a whole number of at least 1, or 'full'."),
        (["--lr", "1e6", "--clip", "0", "--optimizer", "sgd"], None),
    ],
)
def test_bad_numbers_and_names(plait, refused, args: list[str], sentence: str | None) -> None:
    if sentence is None:
        code, _, err = plait("train", "forecast", *QUICK, *args)
        assert code == 2
        assert re.match(r"plait: the (loss|gradient|validation) became (nan|inf) in epoch [12], .*: lower --lr", err)
    else:
        assert sentence in refused("train", "forecast", *QUICK, *args)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("train forecast --hidden many", "--hidden 'many': expected a whole number. See plait train forecast --help."),
        ("train forecast --hidden=", "--hidden '': expected a whole number. See plait train forecast --help."),
        ("train forecast --lr x --epochs 1", "--lr 'x': expected a number. See plait train forecast --help."),
        ("train forecast --hiden 3", "option --hiden is not known: did you mean --hidden? See plait train forecast"),
        ("bench loop --xyzzy", "option --xyzzy is not known: leave it out. See plait bench loop --help."),
        ("train forecast --hidden", "--hidden: expected a value after it. See plait train forecast --help."),
        ("train language --tied=3", "--tied takes no value: leave out what follows it. See plait train language"),
        ("train forecst", "command 'forecst' is not known: did you mean 'forecast'? Expected one of classify, fore"),
        ("trian", "command 'trian' is not known: did you mean 'train'? Expected one of bench, check, classify, "),
        ("forecast", "RUN is missing: expected it after the command. See plait forecast --help."),
        ("equations", "CELL is missing: expected it after the command. See plait equations --help."),
        ("forecast a b", "'b' was not expected: leave it out. See plait forecast --help."),
    ],
)
def test_a_command_line_that_is_wrong_gets_a_sentence(refused, args: str, sentence: str) -> None:
    assert f"plait: {sentence}" in refused(*args.split())


LIMITS = [  # the command, its option, a number that is too large or too small, and the limit
    *(
        ("train forecast", *limit)
        for limit in (
            ("--layers", "1000000000", "at most 1000"),
            ("--hidden", "9223372036854775807", "at most 100000"),
            ("--batch", "9223372036854775808", "at most 999999999"),
            ("--batch", "9" * 5000, "at most 999999999"),
            ("--window", "9223372036854775807", "at most 100000000"),
            ("--horizon", "100000001", "at most 100000000"),
            ("--season", "100000001", "at most 100000000"),
            ("--test", "100000001", "at most 100000000"),
            ("--validation", "100000001", "at most 100000000"),
            ("--lr", "1e308", "at most 1000000.0"),
            ("--lr", "0", "at least 1e-12"),
            ("--lr", "nan", "from 1e-12 to 1000000.0"),
            ("--clip", "1e308", "at most 1000000000.0"),
            ("--weight-decay", "inf", "at most 1000000.0"),
            ("--save-every", "1e30", "at most 1000000000.0"),
            ("--epochs", "1000000001", "at most 1000000000"),
            ("--patience", "1000000001", "at most 1000000000"),
            ("--decay-after", "1000000001", "at most 1000000000"),
            ("--seed", "9223372036854775808", "below 2**63"),
        )
    ),
    *(
        ("train language --data x.txt", *limit)
        for limit in (
            ("--steps", "1000001", "at most 1000000"),
            ("--embedding", "100001", "at most 100000"),
            ("--init", "1e300", "at most 100"),
            ("--init", "0", "at least 1e-12"),
            ("--min-count", "1000000001", "at most 1000000000"),
        )
    ),
    ("train rotate", "--features", "100001", "at most 100000"),
    ("train rotate", "--steps", "1001", "at most 1000"),
    ("train rotate", "--degrees", "361", "at most 360"),
    ("equations implicit_gru", "--dt", "1e308", "at most 1000000.0"),
    ("equations implicit_gru", "--dt", "1e-300", "at least 1e-06"),
    ("check", "--seed", "9223372036854775808", "below 2**63"),
    ("bench loop", "--steps", "1000001", "at most 1000000"),
    ("bench loop", "--repeats", "10001", "at most 10000"),
    ("bench loop", "--seed", "-1", "below 2**63"),
    ("bench layers", "--random", "10001", "at most 10000"),
    ("bench batch", "--size", "100001", "at most 100000"),
    ("bench schedule", "--batch", "100001", "at most 100000"),
    ("bench schedule", "--size", "100001", "at most 100000"),
    ("bench schedule", "--steps", "100001", "at most 100000"),
    ("bench functions", "--bound", "1e-300", "at least 1e-30"),
    ("bench functions", "--step", "0", "at least 1"),
    ("bench functions", "--step", "9223372036854775807", "at most 1000000000"),
    ("bench ragged", "--draws", "10001", "at most 10000"),
    ("bench ragged", "--batch", "1000001", "at most 1000000"),
    ("bench ragged", "--hidden", "100001", "at most 100000"),
    ("bench bucketing", "--layers", "99999", "from 1 to 1000"),
    ("bench bucketing", "--sentences", "9223372036854775807", "at most 1000000000"),
    ("bench language", "--count", "1000001", "at most 1000000"),
]


@pytest.mark.parametrize(("command", "option", "value", "limit"), LIMITS)
def test_every_number_has_a_least_and_a_most(refused, command: str, option: str, value: str, limit: str) -> None:
    sentence = refused(*command.split(), option, value)
    assert re.match(rf"plait: {option[2:].replace('-', '_')} .*(must be|expected) .*{re.escape(limit)}", sentence)


@pytest.mark.parametrize(
    "args",
    [
        "train forecast --hidden 20000",
        "train language --data book.txt --hidden 20000 --layers 1",
        "train language --data book.txt --hidden 1 --embedding 100000 --layers 1",
        "bench layers --shapes 1,1,1,20000,1 --cells rnn",
        "bench phases --shapes 9999,9999,9,9,1",
        "bench phases --task rotate --shapes 99,99,9999,9,1",
        "bench batch --size 20000",
        "bench schedule --batch 99999 --size 999 --steps 99",
        "bench ragged --data book.txt --batch 4 --hidden 20000",
        "bench bucketing --data book.txt --batch 4 --hidden 20000 --layers 1",
        "bench language --data book.txt --hidden 20000",
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_built(refused, monkeypatch, args: str) -> None:
    monkeypatch.setattr("plait.tasks.memory.available", lambda: 2**20)
    Path("book.txt").write_text("the cat sat on the mat and sat there all day\n" * 40)
    sentence = refused(*args.split())
    assert re.search(r" needs about [\d,.]+ [MG]B, and 1 MB of memory is free: lower ", sentence)


def test_the_memory_of_this_machine_is_known() -> None:
    found = memory.available()
    assert found is None or 2**20 < found < 2**50
    memory.check_fits(2**20, "nothing", "nothing")


def test_a_sentence_is_one_line_whatever_is_in_it(refused) -> None:
    sentence = refused("train", "forecast", "--data", "no\nsuch\x1b[31mfile.csv")
    assert "no\\nsuch\\x1b[31mfile.csv does not exist" in sentence
    assert len(refused("train", "forecast", "--cell", "x" * 5000)) < 400
    assert len(refused("train", "forecast", "--hidden", "9" * 4000)) < 400


def test_no_arguments_print_the_help(plait) -> None:
    for args in ((), ("train",), ("bench",)):
        code, out, err = plait(*args)
        assert (code, err) == (2, "")
        assert f"Usage: {' '.join(('plait', *args))}" in out


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        (MemoryError(), "this does not fit into memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "this does not fit into memory"),
        (RuntimeError("Storage size calculation overflowed with sizes=[9]"), "this does not fit into memory"),
        (OverflowError("int too large to convert to float"), "a number is too large to compute with (int too large"),
        (RecursionError("maximum recursion depth exceeded"), "the input is nested too deeply"),
        (OSError(40, "Too many levels of symbolic links", "a.json"), "a.json cannot be used: Too many levels of sym"),
        (OSError(24, "Too many open files"), "the system refused: Too many open files."),
    ],
)
def test_what_nobody_foresaw_still_ends_with_a_sentence(refused, monkeypatch, raised: Exception, sentence: str) -> None:
    def broken(*_: object) -> None:
        raise raised

    monkeypatch.setattr("plait.cli.diagnose.list_engines", broken)
    assert f"plait: {sentence}" in refused("engines")


@pytest.mark.parametrize("raised", [RuntimeError("the size of tensor a must match"), KeyError("x"), ValueError("y")])
def test_a_bug_of_ours_keeps_its_traceback(monkeypatch, raised: Exception) -> None:
    def broken(*_: object) -> None:
        raise raised

    monkeypatch.setattr("plait.cli.diagnose.list_engines", broken)
    monkeypatch.setattr(sys, "argv", ["plait", "engines"])
    with pytest.raises(type(raised)) as e:
        cli.main()
    assert e.value is raised


def test_bad_runs(plait, refused, empty_folder: Path) -> None:
    plait("train", "forecast", *QUICK, "--out", "run")
    assert "nowhere does not exist" in refused("forecast", "nowhere")
    assert "steps 0: must be at least 1" in refused("forecast", "run", "--steps", "0")
    assert "run exists already" in refused("train", "forecast", "--out", "run")
    sentence = refused("train", "forecast", "--resume", "run", "--hidden", "8")
    assert "--hidden 8: the run has 4, and --resume goes on with what run began with" in sentence
    assert "--cell gru: the run has lstm" in refused("train", "forecast", "--resume", "run", "--cell", "gru")
    assert "--out other: the run has a folder" in refused("train", "forecast", "--resume", "run", "--out", "other")
    before = Path("run/config.json").read_bytes()
    with Run.open("run").locked():
        assert "is being trained by another process" in refused("train", "forecast", "--resume", "run", "--epochs", "9")
    assert Path("run/config.json").read_bytes() == before
    Path("below.csv").write_text("v\n" + "\n".join(map(str, range(-20, 20))) + "\n")
    assert "learned logarithms" in refused("forecast", "run", "--data", "below.csv")
    Path("few.csv").write_text("v\n1\n2\n3\n")
    assert "3 values are too few to forecast from: season + window need 24" in refused(
        "forecast", "run", "--data", "few.csv"
    )
    assert "in a folder that exists" in refused("forecast", "run", "--picture", "no/such/folder.png")
    assert "--picture /: expected the name of a PNG file" in refused("forecast", "run", "--picture", "/")
    assert "expected the name of a PNG file" in refused("forecast", "run", "--picture", "x.jpg")
    sentence = refused("train", "forecast", "--resume", "run", "--threads", "77")
    assert re.search(r"--threads 77: the run has \d+, and --resume", sentence)
    model = empty_folder / "run" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-9])
    assert "model.safetensors is truncated or damaged" in refused("evaluate", "run")
    model.unlink()
    assert "model.safetensors does not exist: restore it from a copy" in refused("evaluate", "run")
    Path("run/config.json").write_text(json.dumps({"task": "forecast", "settings": {"wings": 2}}))
    assert "settings that this version does not know" in refused("evaluate", "run")


def test_equations_of_nothing(refused) -> None:
    assert "cell 'gruu' is not known: did you mean 'gru'?" in refused("equations", "gruu")
    assert "dt 0.5: this cell's step can be lengthened by whole numbers only" in refused(
        "equations", "gru", "--dt", "0.5"
    )
    assert "repeats 3: must be at least 5" in refused("bench", "loop", "--repeats", "3")


def test_an_option_that_is_the_value_of_another(refused) -> None:
    said = refused("train", "forecast", "--hidden", "x", "--column", "--hidden")
    assert said == "plait: --hidden 'x': expected a whole number. See plait train forecast --help.\n"


def test_the_column_that_was_taken_is_always_printed(plait) -> None:
    assert plait("train", "forecast", *QUICK, "--out", "run")[0] == 0
    for command in ("forecast", "evaluate"):
        assert re.search(r"^(data +)?airline.*[,;] column 'passengers'$", plait(command, "run")[1], re.M)
        assert json.loads(plait(command, "run", "--json", "-")[1])
