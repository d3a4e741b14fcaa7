"""The launcher with real workers: how they end, who is named, and that nobody is left behind."""

import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import Pids, finished, listening, runs, until
from plait.ranks.launch import launch
from processes import hear

HOST = socket.gethostname()
GO_ON = "go on with plait train language --resume here"
LAUNCH = """
import sys
from plait.ranks.launch import launch
say = lambda line: print("plait:", line, file=sys.stderr, flush=True)
ranks, restarts = map(int, sys.argv[1:3])
sys.exit(launch(sys.argv[3:], ranks, threads=1, max_restarts=restarts, say=say, module="rank_worker"))
"""


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)


class Here:
    """The launcher in this process."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capfd = folder, capfd

    def __call__(self, *options: str, restarts: int = 0) -> tuple[int, list[str], str, str]:
        """-> exit code, what the launcher said, what was printed"""
        said: list[str] = []
        argv = [str(self.folder), *options]
        code = launch(argv, 2, threads=1, max_restarts=restarts, say=said.append, module="rank_worker")
        assert not any(runs(int(p.read_text())) for p in self.folder.iterdir())
        return code, said, *self.capfd.readouterr()


@pytest.fixture
def here(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    (temporary := tmp_path / "temporary").mkdir()
    (workers := tmp_path / "workers").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    yield Here(workers, capfd)
    assert list(temporary.iterdir()) == []
    assert handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]


class Job:
    """The launcher in a process of its own, which can be hurt."""

    def __init__(self, folder: Path, restarts: int, *options: str, stdout: int = subprocess.PIPE) -> None:
        self.pids = Pids(folder)
        folder.mkdir()
        command = [sys.executable, "-c", LAUNCH, "2", str(restarts), str(folder), *options]
        self.process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, preexec_fn=hear)

    def wait(self, attempt: int = 0) -> list[int]:
        return self.pids.wait(attempt, 2)

    def said(self) -> str:
        """The next line of the launcher."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def children(self) -> list[int]:
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]

    def leaves_none(self, pids: list[int], seconds: float) -> None:
        until(lambda: not any(map(runs, pids)), seconds)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Job]]:
    """Makes a job, and kills what a failed test leaves of it."""
    made: list[Job] = []
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    class Made(Job):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(tmp_path / "workers", *args, **kwargs)
            made.append(self)

    yield Made
    for some in made:
        some.process.kill()
        some.process.communicate()
        for path in some.pids.folder.iterdir():
            if runs(pid := int(path.read_text())):
                os.kill(pid, signal.SIGKILL)


# --- ends ------------------------------------------------------------------------------------------------------------
def test_a_clean_end(here: Here) -> None:
    code, said, out, err = here("steps=20")
    assert (code, said, err) == (0, [], "")
    assert out == "2 ranks, begins, no terminal\nrank 0 is here\ndone, attempt 0\n"


def test_a_crash_is_tried_again_and_a_refusal_is_not(here: Here) -> None:
    code, said, out, err = here("fail=1:crash:0,1:refuse:1", restarts=2)
    assert code == 2
    assert said == [
        f"rank 1 on {HOST} ended with code 1: ZeroDivisionError: no reason; starting again (1 of 2).",
        f"rank 1 on {HOST}: the batch is too small: give a larger --batch; {GO_ON}.",
    ]
    assert out == "2 ranks, begins, no terminal\nrank 0 is here\n2 ranks, goes on, no terminal\nrank 0 is here\n"
    assert err == ""


def test_the_first_rank_speaks_for_itself(here: Here) -> None:
    code, said, _, err = here("fail=0:refuse,1:refuse")
    assert (code, said, err) == (2, [], "plait: the batch is too small: give a larger --batch.\n")


def test_a_refusal_before_all_have_joined(here: Here) -> None:
    code, said, out, err = here("fail=1:early")
    assert (code, said) == (2, [f"rank 1 on {HOST}: the data is not there: give --data."])
    assert (out, err) == ("", "")


@pytest.mark.slow
# --- violence --------------------------------------------------------------------------------------------------------
def test_any_rank_killed(job: type[Job]) -> None:
    one = job(1)
    for rank, rest in ((0, "; starting again (1 of 1)."), (1, f"; {GO_ON}.")):
        pids = one.wait(attempt=rank)
        os.kill(pids[rank], signal.SIGKILL)
        began = time.monotonic()
        assert one.said() == f"plait: rank {rank} on {HOST} was killed (SIGKILL){rest}\n"
        assert time.monotonic() - began < 3
        one.leaves_none(pids, 3)
        if rank == 0:
            one.wait(attempt=1)
            assert time.monotonic() - began < 10
    code, out, err = finished(one.process)
    assert (code, err) == (1, "")
    assert "begins" in out
    assert "goes on" in out


@pytest.mark.slow
def test_a_rank_that_stalls(job: type[Job]) -> None:
    one = job(0, "timeout=1")
    pids = one.wait()
    os.kill(pids[1], signal.SIGSTOP)
    began = time.monotonic()
    words = "does not answer any more: it was killed, stopped, or its link was cut"
    assert one.said() == f"plait: rank 1 on {HOST} (process {pids[1]}) {words}; {GO_ON}.\n"
    assert time.monotonic() - began < 10
    assert finished(one.process)[0] == 1
    one.leaves_none(pids, 3)


@pytest.mark.slow
def test_a_rank_that_is_too_slow(here: Here) -> None:
    code, said, _, _ = here("fail=1:doze", "timeout=1")
    assert code == 1
    words = "the ranks lost contact, although all of them run (Timed out waiting 1000ms for recv operation to complete)"
    assert said == [f"{words}: one was slower than the timeout of 1 s, or the network between them failed; {GO_ON}."]


def test_a_launcher_that_is_killed(job: type[Job]) -> None:
    one = job(0)
    pids = one.wait()
    one.process.kill()
    one.leaves_none(pids, 3)


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_stops_all(number: int, job: type[Job]) -> None:
    """The first rank has a terminal, and says itself that it stopped. Until then all listen on loopback only."""
    terminal, theirs = pty.openpty()
    one = job(3, stdout=theirs)
    os.close(theirs)
    pids = one.wait()
    for pid in (one.process.pid, *pids):
        assert set(listening(pid)) == {"127.0.0.1"}
    one.process.send_signal(number)
    code, _, err = finished(one.process)
    assert (code, err) == (130, "")
    one.leaves_none(pids, 0.1)
    assert os.read(terminal, 1000).decode().split("\r\n")[:3] == [
        "2 ranks, begins, a terminal",
        "rank 0 is here",
        "saved",
    ]
    os.close(terminal)


def test_a_second_signal_does_not_wait(job: type[Job]) -> None:
    one = job(3, "stubborn=yes")
    pids = one.wait()
    one.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert all(map(runs, pids))
    one.process.send_signal(signal.SIGINT)
    code, _, err = finished(one.process, 10)
    assert (code, err) == (130, f"plait: stopped; {GO_ON}.\n")
    one.leaves_none(pids, 0.1)


def test_a_signal_before_the_workers_listen(job: type[Job]) -> None:
    one = job(3)
    until(lambda: len(one.children()) == 2)
    pids = one.children()
    one.process.send_signal(signal.SIGINT)
    assert finished(one.process) == (130, "", "plait: stopped.\n")
    one.leaves_none(pids, 0.1)
