"""`plait train` in several processes: on this host, or on hosts that are made of network namespaces."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import IO

from jobs import PATIENCE, until
from processes import hear

PLAIT = (sys.executable, "-m", "plait")
SMALL = (
    *("--data", "small.txt", "--steps", "10", "--batch", "4", "--patience", "0", "--threads", "1"),
    *("--layers", "2", "--hidden", "16", "--dropout", "0.2"),
)
ATTEMPT = {"PLAIT_STORE": "PLAIT_ATTEMPT", "TORCHELASTIC_RUN_ID": "TORCHELASTIC_RESTART_COUNT"}
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_", "PLAIT_", "PMI_", "TORCHELASTIC_", "GLOO_")  # what a launcher sets


def write_text(folder: Path) -> None:
    """A text to learn from, which is the same each time."""
    rng, words = Random(0), [f"w{k}" for k in range(40)]
    lines = [" ".join(rng.choices(words, k=8)) for _ in range(300)]
    (folder / "small.txt").write_text("\n".join(lines) + "\n")


# --- processes -------------------------------------------------------------------------------------------------------
class Lines:
    """What a process prints, with the times at which it did."""

    def __init__(self, stream: IO[str]) -> None:
        self.seen: list[tuple[float, str]] = []
        self.thread = threading.Thread(target=self.read, args=(stream,), daemon=True)
        self.thread.start()

    def read(self, stream: IO[str]) -> None:
        for line in stream:
            self.seen.append((time.monotonic(), line.rstrip("\n")))

    def count(self, pattern: str) -> int:
        return sum(re.search(pattern, line) is not None for _, line in self.seen)

    def when(self, pattern: str, number: int = 1) -> float:
        """The time of the first line with a pattern in it; of the second one, ..."""
        return [moment for moment, line in self.seen if re.search(pattern, line)][number - 1]

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.seen)


class Job:
    """A command that was started, and the processes that it has started by itself."""

    def __init__(self, command: Iterable[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHED)}
        self.process = subprocess.Popen(
            list(command),
            cwd=folder,
            env={**clean, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out, self.err = Lines(self.process.stdout), Lines(self.process.stderr)
        self.known: dict[int, int] = {}  # processes, and when they were born: their numbers are given away again

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def workers(self, attempt: int = 0) -> dict[int, int]:
        """-> rank: process, of those that have been started by now in an attempt"""
        found = {}
        for pid in descendants(self.pid):
            environment = environment_of(pid)
            name = next((of for launcher, of in ATTEMPT.items() if launcher in environment), "")
            if environment.get(name) == str(attempt) and (born := birth(pid)):
                found[int(environment["RANK"])] = pid
                self.known[pid] = born
        return found

    def lives(self, pid: int) -> bool:
        return birth(pid) == self.known[pid]

    def signal(self, pid: int, number: int) -> None:
        """To a worker, if it is there."""
        if self.lives(pid):
            os.kill(pid, number)

    def all_workers(self, ranks: int, attempt: int = 0) -> dict[int, int]:
        """All of an attempt, as soon as they are there."""
        found: dict[int, int] = {}

        def there() -> bool:
            nonlocal found
            found = self.workers(attempt)
            return len(found) == ranks or self.is_over

        until(there)
        assert len(found) == ranks, self.said()
        return found

    def trains(self, number: int = 1) -> float:
        """Waits until it trains, for the first time, or once more -> since when"""
        until(lambda: self.out.count(r"^run ") >= number or self.is_over)
        assert self.out.count(r"^run ") >= number, self.said()
        return self.out.when(r"^run ", number)

    def ended(self, patience: float = PATIENCE) -> int:
        """-> the exit code"""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it hung for {patience} s, having said: {self.said()}") from None
        for lines in (self.out, self.err):
            lines.thread.join(10)
        return code

    def leaves_none(self, seconds: float = 3.0) -> None:
        """None of the processes that were seen outlives it by so long."""
        until(lambda: not any(map(self.lives, self.known)), seconds)

    def said(self) -> tuple[int | None, str, str]:
        return self.process.poll(), self.out.text, self.err.text

    def close(self) -> None:
        """Ends what is left of it."""
        if not self.is_over:
            self.known |= {pid: born for pid in descendants(self.pid) if (born := birth(pid))}
            self.process.kill()
            self.process.wait()
        for pid in self.known:
            self.signal(pid, signal.SIGKILL)


def birth(pid: int) -> int | None:
    """When a process was started, in ticks; None if it has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(rest[18])


def children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except OSError:
        pass  # it has ended
    return found


def descendants(pid: int) -> list[int]:
    return [d for child in children(pid) for d in (child, *descendants(child))]


def environment_of(pid: int) -> dict[str, str]:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}  # it has ended
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


# --- hosts -----------------------------------------------------------------------------------------------------------
def why_no_hosts() -> str | None:
    """What keeps network namespaces from being made here."""
    for tool in ("ip", "unshare", "hostname", "mount"):
        if shutil.which(tool) is None:
            return f"there is no {tool} here"
    name = f"plait-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return f"no network namespaces here: {made.stderr.strip()}" if made.returncode else None


class Hosts:
    """Hosts host0, host1, ...: network namespaces, each with a cable to a switch, which is in a namespace as well.

    Nothing of them can be reached from outside, nor can they reach anything else.
    """

    def __init__(self, count: int, folder: Path) -> None:
        self.spaces = [f"plait-{os.getpid()}-{k}" for k in range(count)]
        self.switch = f"plait-{os.getpid()}-switch"
        self.names = folder / "names-of-hosts"
        self.names.write_text("".join(f"{self.address(k)} host{k}\n" for k in range(count)) + "127.0.0.1 localhost\n")
        self.jobs: list[Job] = []

    def __enter__(self) -> "Hosts":
        try:
            ip("netns", "add", self.switch)
            ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self.switch, "link", "set", "bridge", "up")
            for k, space in enumerate(self.spaces):
                ip("netns", "add", space)
                ip("-n", space, "link", "set", "lo", "up")
                ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", f"port{k}", "netns", self.switch)
                ip("-n", space, "address", "add", f"{self.address(k)}/24", "dev", "eth0")
                ip("-n", space, "link", "set", "eth0", "up")
                ip("-n", self.switch, "link", "set", f"port{k}", "master", "bridge", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for job in self.jobs:
            job.close()
        for space in (*self.spaces, self.switch):  # and with them what is in them
            subprocess.run(["ip", "netns", "del", space], capture_output=True)

    def address(self, k: int) -> str:
        return f"10.83.0.{k + 1}"

    def plug(self, k: int) -> None:
        ip("-n", self.switch, "link", "set", f"port{k}", "up")

    def unplug(self, k: int) -> None:
        ip("-n", self.switch, "link", "set", f"port{k}", "down")

    def start(self, k: int, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Job:
        """On host k, which knows the names of all."""
        setup = f'hostname host{k} && mount --bind "$0" /etc/hosts && exec "$@"'
        within = ["ip", "netns", "exec", self.spaces[k], "unshare", "--uts", "--mount"]
        job = Job([*within, "sh", "-c", setup, str(self.names.absolute()), *command], folder, environment)
        self.jobs.append(job)
        return job


def ip(*args: str) -> None:
    made = subprocess.run(["ip", *args], capture_output=True, text=True)
    assert made.returncode == 0, (args, made.stderr)
