"""Runs command lines, each in a process of its own, and says what is wrong with how they end.

A server has imported everything and forks a child for each case: a process costs milliseconds then, not seconds.
"""

import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 10  # a case may take
MEMORY = 2 * 2**20  # kB that it may be resident with
RUN = {"config.json", "state.safetensors", "model.safetensors"}  # what every run has
SPECIAL = {f"{kind:o}" for kind in (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFLNK)}
SERVER = """
import json, os, resource, signal, sys, time, traceback
import matplotlib.backends.backend_agg, matplotlib.figure, torch._dynamo
from contextlib import redirect_stderr, suppress
from importlib import import_module
from plait import cli
from plait.cli import diagnose, train, use
from plait.engines import fused
for name in ("batch", "bucketing", "functions", "language", "layers", "loop", "phases", "ragged", "schedule"):
    import_module(f"plait.bench.{name}.measure")
sys.argv = ["plait", "train", "forecast", "--hidden", "0"]
with suppress(SystemExit), redirect_stderr(open(os.devnull, "w")):
    cli.main()  # what typer imports at its first use; nothing that starts a thread

def child(args, folder):
    os.setsid()
    os.chdir(folder)
    for number, name in ((0, os.devnull), (1, f"{folder}.out"), (2, f"{folder}.err")):
        os.dup2(os.open(name, os.O_RDWR | (os.O_CREAT if number else 0), 0o644), number)
    sys.argv = ["plait", *args]
    try:
        cli.main()
        code = 99  # main always exits
    except SystemExit as e:
        code = e.code or 0
    except BaseException:
        traceback.print_exc()
        code = 98
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    case = json.loads(line)
    pid, began = os.fork(), time.monotonic()
    if pid == 0:
        child(case["args"], case["folder"])
    done = 0
    while not done and time.monotonic() - began < case["seconds"]:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        time.sleep(0 if done else 0.002)
    if not done:
        os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status) if done else None
    print(json.dumps({"code": code, "memory": usage.ru_maxrss, "seconds": time.monotonic() - began}), flush=True)
"""


@dataclass
class Case:
    args: list[str]
    folder: Path  # it is run there, and finds there what it needs
    writes: list[str] = field(default_factory=list)  # what it names as its output, and all below it

    @property
    def kind(self) -> str:
        return " ".join(self.args[: 2 if self.args[:1] in (["train"], ["bench"]) else 1])


@dataclass
class Ended:
    code: int | None  # None: it hung
    memory: int
    seconds: float
    out: str
    err: str


class Server:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # on a busy machine, threads that wait for each other take long
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)

    def run(self, args: Sequence[str], folder: Path, seconds: float = SECONDS) -> Ended:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"args": list(args), "folder": str(folder), "seconds": seconds}) + "\n")
        stdin.flush()
        ended = json.loads(stdout.readline())
        texts = [Path(f"{folder}.{name}").read_bytes().decode(errors="replace") for name in ("out", "err")]
        return Ended(ended["code"], ended["memory"], ended["seconds"], *texts)

    def judge(self, case: Case) -> tuple[Ended, list[str]]:
        """How it ended, and everything that should not be so."""
        before = snapshot(case.folder)
        ended = self.run(case.args, case.folder)
        return ended, [*spoken(ended), *changed(before, case)]


def spoken(ended: Ended) -> list[str]:
    found = []
    if ended.code is None:
        return [f"hung for {ended.seconds:.0f} s"]
    if "Traceback" in ended.out + ended.err:
        return ["traceback: " + ended.err.strip().splitlines()[-1][:200]]
    if ended.code not in (0, 2):
        found.append(f"exit code {ended.code}: {ended.err[-300:]}")
    said = [line for line in ended.err.splitlines() if not line.startswith(("plait: compiling", "plait: measuring"))]
    if ended.code == 2 and (len(said) > 1 or not all(line.startswith("plait: ") for line in said)):
        found.append(f"not one sentence: {ended.err[:300]}")
    if ended.code == 2 and not said and "Usage: " not in ended.out:
        found.append("refused without a word")
    if ended.memory > MEMORY:
        found.append(f"{ended.memory // 1024} MB resident")
    return found


def snapshot(folder: Path) -> dict[str, str]:
    """What is there, to the last bit; links are not followed."""
    found = {}
    for top, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(top) / name
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                what = hashlib.sha256(path.read_bytes()).hexdigest() if path.lstat().st_size < 2**28 else "huge"
            else:
                what = str(path.readlink()) if stat.S_ISLNK(mode) else ""
            found[str(path.relative_to(folder))] = f"{stat.S_IFMT(mode):o} {what}"
    return found


def changed(before: dict[str, str], case: Case) -> list[str]:
    """Files that were lost or that nobody asked for, and what is half written."""
    after = snapshot(case.folder)

    def named(name: str) -> bool:
        return any(w in (".", name) or name.startswith(f"{w}/") for w in case.writes)

    lost = [name for name, what in before.items() if after.get(name) != what and not named(name)]
    lost += [  # what is named to be written, and is a device, a pipe or a link, stays one
        name
        for name, what in before.items()
        if name in case.writes and what.split()[0] in SPECIAL
        if after.get(name, "gone").split()[0] != what.split()[0]
    ]
    new = [name for name in after if name not in before]
    stray = [name for name in new if not named(name) and name.split("/")[0] != "runs"]
    partial = [name for name in new if name.endswith(".partial")]
    for name in new:
        path = case.folder / name
        if path.is_dir() and not path.is_symlink():
            inside = {p.name for p in path.iterdir()}
            if not inside or (any(p.is_file() for p in path.iterdir()) and not inside >= RUN):
                partial.append(f"{name} with {sorted(inside)}")
    return [f"{what}: {names}" for what, names in (("lost", lost), ("stray", stray), ("partial", partial)) if names]
