"""The launcher: starts the workers of this machine, hears Ctrl-C for them, and says in one line what went wrong.

torch's elastic library starts the processes and ends them. Its agent above that is not used: it listens on all
addresses, and gives workers 30 seconds to obey a SIGTERM that one which was stopped never gets.
"""

import logging
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, SubprocessContext, start_processes

from . import store as stores
from .exits import REFUSED, STOPPED, WorkerExit, cause, last_line, says_itself, sentence
from .store import PrefixStore, TCPStore
from .world import LOOPBACK

LOOK = 0.05  # seconds between two looks at the workers
GRACE = 1.0  # seconds that the others have, after one has failed, to end by themselves
STOP_GRACE = 3.0  # the same after the second Ctrl-C, or if one fails while all are to stop
LAST_GRACE = 10.0  # the same if one has stopped as it was asked to
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}  # glibc keeps its memory
SHOW_CURSOR = b"\x1b[?25h\n"  # the first rank may have been killed while it drew a bar, which hides it


def launch(
    argv: Sequence[str],
    ranks: int,
    *,
    threads: int,
    max_restarts: int,
    say: Callable[[str], None],
    module: str = "plait",
) -> int:
    """Runs `python -m MODULE *argv` so many times -> the exit code"""
    secret = secrets.token_hex(16)
    store = stores.host(LOOPBACK, 0, timeout=60)
    lasting = stores.prefixed(store, secret, None)
    with SignalCounter() as ears:
        for attempt in range(max_restarts + 1):
            with tempfile.TemporaryDirectory(prefix="plait-") as folder:
                environment = make_environment(store, secret, attempt, ranks, threads)
                command, notes = [*safe_path(), "-m", module, *argv], stores.prefixed(store, secret, attempt)
                workers = Workers(command, environment, Path(folder), notes)
                try:
                    workers.watch(ears)
                finally:
                    workers.kill()
                exits = workers.exits()
            first = next((e.code for e in exits if e.rank == 0), None)  # None: we killed it
            if os.isatty(2) and (first is None or first < 0):
                os.write(2, SHOW_CURSOR)
            if len(exits) == ranks and all(e.code == 0 for e in exits):
                return 0
            root = cause(exits)
            if ears.heard or root is None:
                if first != STOPPED:
                    say(f"stopped{resume_command(lasting)}.")
                return STOPPED
            text = sentence(root, socket.gethostname(), read(notes, "lost"))
            if root.code == REFUSED:
                if not says_itself(exits):
                    say(f"{text}{resume_command(lasting)}.")
                return REFUSED
            if attempt < max_restarts:
                say(f"{text}; starting again ({attempt + 1} of {max_restarts}).")
            else:
                say(f"{text}{resume_command(lasting)}.")
    return 1


def make_environment(store: TCPStore, secret: str, attempt: int, ranks: int, threads: int) -> list[dict[str, str]]:
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "PLAIT_STORE": f"{LOOPBACK}:{store.port}",
        "PLAIT_SECRET": secret,
        "PLAIT_ATTEMPT": str(attempt),
        "OMP_NUM_THREADS": str(threads),
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    }
    unless_set = {**KEEP, "TORCH_CPP_LOG_LEVEL": "FATAL"}
    common |= {name: value for name, value in unless_set.items() if name not in os.environ}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def safe_path() -> list[str]:
    """Without the current folder in sys.path, unless this process has it."""
    return [] if {"", str(Path.cwd())} & set(sys.path) else ["-P"]


def read(store: PrefixStore, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def resume_command(lasting: PrefixStore) -> str:
    command = read(lasting, "resume_command")
    return f"; go on with {command}" if command else ""


class SignalCounter:
    def __init__(self) -> None:
        self.heard = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "SignalCounter":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # ignored by a function, for workers would inherit SIG_IGN
                ignored = signal.getsignal(number) is signal.SIG_IGN
                self.before[number] = signal.signal(number, ignore if ignored else self.hear)
        return self

    def hear(self, number: int, frame: FrameType | None) -> None:
        self.heard += 1

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def ignore(number: int, frame: FrameType | None) -> None:
    pass


class Workers:
    """The processes of one attempt. The first one has the terminal."""

    def __init__(
        self, argv: Sequence[str], environment: Sequence[dict[str, str]], folder: Path, notes: PrefixStore
    ) -> None:
        # it warns that a thread cannot have signal handlers: they are ours
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
        ranks = range(len(environment))
        quiet = {rank: Std.ALL for rank in ranks if rank > 0}
        with ThreadPoolExecutor(1) as thread:
            context = thread.submit(
                start_processes,
                name="plait",
                entrypoint=sys.executable,
                args={rank: tuple(argv) for rank in ranks},
                envs=dict(enumerate(environment)),
                logs_specs=DefaultLogsSpecs(str(folder), redirects=quiet),
            ).result()
        assert isinstance(context, SubprocessContext)  # what a command gets
        self.context, self.notes = context, notes
        self.processes = {rank: handler.proc for rank, handler in context.subprocess_handlers.items()}
        self.codes: dict[int, int] = {}  # of those that ended by themselves, in order

    def watch(self, ears: SignalCounter) -> None:
        """Until all have ended, or those that have not must be killed."""
        asked: set[int] = set()
        pressed = False
        deadline = float("inf")
        while self.look() and time.monotonic() < deadline:
            if ears.heard:
                for rank in self.running() - asked:
                    self.ask_to_stop(rank)
                    asked.add(rank)
            if ears.heard > 1 and not pressed:
                pressed = True
                deadline = time.monotonic() + STOP_GRACE
                for rank in self.running():
                    self.processes[rank].send_signal(signal.SIGTERM)
            if deadline == float("inf"):
                failed = [code for code in self.codes.values() if code not in (0, STOPPED)]
                if failed:
                    grace = STOP_GRACE if ears.heard else 0 if min(failed) < 0 else GRACE
                    deadline = time.monotonic() + grace
                elif ears.heard and self.codes:  # the others follow soon, or hang inside torch
                    deadline = time.monotonic() + LAST_GRACE
            time.sleep(LOOK)

    def look(self) -> bool:
        for rank in sorted(self.running()):
            code = self.processes[rank].poll()
            if code is not None:
                self.codes[rank] = code
        return bool(self.running())

    def running(self) -> set[int]:
        return self.processes.keys() - self.codes.keys()

    def ask_to_stop(self, rank: int) -> None:
        """With SIGINT; without a handler it would print a traceback, and is ended."""
        if not self.notes.check([f"left/{rank}"]):  # otherwise it ends anyway
            process = self.processes[rank]
            process.send_signal(signal.SIGINT if listens(process.pid) else signal.SIGTERM)

    def kill(self) -> None:
        self.look()
        self.context.close(signal.SIGKILL, 5)

    def exits(self) -> list[WorkerExit]:
        """In order, without those that were killed here."""
        return [
            WorkerExit(r, code, read(self.notes, f"error/{r}"), self.last_line(r)) for r, code in self.codes.items()
        ]

    def last_line(self, rank: int) -> str:
        path = self.context.stderrs[rank]
        return last_line(Path(path).read_text(errors="replace")) if path else ""


def listens(pid: int) -> bool:
    """Whether a process handles SIGTERM, and so SIGINT, by now."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True  # no Linux, or it has ended
    caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.M)
    return caught is None or bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)
