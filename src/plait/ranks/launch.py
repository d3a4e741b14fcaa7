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
from .ends import REFUSED, STOPPED, End, cause, last_line, says_itself, sentence
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
    """Runs `python -m MODULE *argv` in as many processes as there are ranks -> the exit code: 0, 1, 2 or 130.

    max_restarts: how often all are started again after one has failed. say: gets one line for each failure.
    """
    secret = secrets.token_hex(16)
    store = stores.host(LOOPBACK, 0, timeout=60)
    lasting = stores.prefixed(store, secret, None)
    with Ears() as ears:
        for attempt in range(max_restarts + 1):
            with tempfile.TemporaryDirectory(prefix="plait-") as folder:
                environment = make_environment(store, secret, attempt, ranks, threads)
                command, told = [*safe_path(), "-m", module, *argv], stores.prefixed(store, secret, attempt)
                workers = Workers(command, environment, Path(folder), told)
                try:
                    workers.watch(ears)
                finally:
                    workers.kill()
                ends = workers.ends()
            first = next((end.code for end in ends if end.rank == 0), None)  # None: we killed it
            if os.isatty(2) and (first is None or first < 0):
                os.write(2, SHOW_CURSOR)
            if len(ends) == ranks and all(end.code == 0 for end in ends):
                return 0
            root = cause(ends)
            if ears.heard or root is None:
                if first != STOPPED:
                    say(f"stopped{go_on(lasting)}.")
                return STOPPED
            text = sentence(root, socket.gethostname(), read(told, "lost"))
            if root.code == REFUSED:
                if not says_itself(ends):
                    say(f"{text}{go_on(lasting)}.")
                return REFUSED
            if attempt < max_restarts:
                say(f"{text}; starting again ({attempt + 1} of {max_restarts}).")
            else:
                say(f"{text}{go_on(lasting)}.")
    return 1


def make_environment(store: TCPStore, secret: str, attempt: int, ranks: int, threads: int) -> list[dict[str, str]]:
    """What each worker finds in its environment beside what is in ours."""
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
    """The option with which Python does not look for modules in the folder that it is started in, unless we do."""
    return [] if {"", str(Path.cwd())} & set(sys.path) else ["-P"]


def read(store: PrefixStore, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def go_on(lasting: PrefixStore) -> str:
    command = read(lasting, "go_on")
    return f"; go on with {command}" if command else ""


class Ears:
    """Hears Ctrl-C and SIGTERM, and counts them."""

    def __init__(self) -> None:
        self.heard = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Ears":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # A signal that is ignored stays so, but by a function: otherwise the workers would ignore it as well.
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
    """The processes of one attempt. The first one has the terminal; what the others print goes to files.

    told: the keys of this attempt
    """

    def __init__(
        self, argv: Sequence[str], environment: Sequence[dict[str, str]], folder: Path, told: PrefixStore
    ) -> None:
        # It warns that a thread cannot have signal handlers, which is why there is a thread: the handlers are ours.
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
        self.context, self.told = context, told
        self.processes = {rank: handler.proc for rank, handler in context.subprocess_handlers.items()}
        self.codes: dict[int, int] = {}  # of those that ended by themselves, in the order in which they did

    def watch(self, ears: Ears) -> None:
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
                elif ears.heard and self.codes:  # the others follow soon, or wait inside torch for one that is gone
                    deadline = time.monotonic() + LAST_GRACE
            time.sleep(LOOK)

    def look(self) -> bool:
        """Whether one still runs."""
        for rank in sorted(self.running()):
            code = self.processes[rank].poll()
            if code is not None:
                self.codes[rank] = code
        return bool(self.running())

    def running(self) -> set[int]:
        return self.processes.keys() - self.codes.keys()

    def ask_to_stop(self, rank: int) -> None:
        """With SIGINT. Python itself would answer that with a traceback, so one that does not listen yet is ended."""
        if not self.told.check([f"left/{rank}"]):  # otherwise it ends anyway
            process = self.processes[rank]
            process.send_signal(signal.SIGINT if listens(process.pid) else signal.SIGTERM)

    def kill(self) -> None:
        self.look()
        self.context.close(signal.SIGKILL, 5)

    def ends(self) -> list[End]:
        """In order; those that we killed are not among them, for they say nothing about the cause."""
        return [End(r, code, read(self.told, f"error/{r}"), self.last_line(r)) for r, code in self.codes.items()]

    def last_line(self, rank: int) -> str:
        path = self.context.stderrs[rank]
        return last_line(Path(path).read_text(errors="replace")) if path else ""


def listens(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM by now. Python brings none, plait's comes with the one for SIGINT."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True  # no Linux, or it has ended
    caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.M)
    return caught is None or bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)
