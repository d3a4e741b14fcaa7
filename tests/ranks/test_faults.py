"""`plait train` in several processes, hurt in every way: who is to blame is said, and the run ends in the same bits."""

import fcntl
import json
import os
import re
import resource
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from hosts import PLAIT, SMALL, Job, write_text
from jobs import free_port, listening, until
from processes import weights

HOST = socket.gethostname()
NAMED = 3  # seconds until it is said who was killed
LONELY = 3  # seconds that workers outlive their launcher, at most
AGAIN = 10  # seconds until it trains again; on a machine that is busy, twice what the first start took
MESHES = {
    "data=2": 2,
    "data=2:network": 2,
    "data=2:server": 2,
    "layers=2:chunks=2": 2,  # as many as that, not what was measured, so that two runs have the same order of sums
    "data=2,layers=2:chunks=2": 4,
}
TRAIN = ("train", "language", *SMALL, "--epochs", "4", "--save-every", "0.05")
SILENT = "does not answer any more: it was killed, stopped, or its link was cut"
STARTED = r"^run "  # the line with which the first rank says that it trains
Start = Callable[..., Job]


@pytest.fixture
def start(empty_folder: Path) -> Iterator[Start]:
    """Starts a command in an empty folder with a text, and ends what a failed test leaves of it."""
    write_text(empty_folder)
    made: list[Job] = []

    def begin(*command: str, **environment: str) -> Job:
        made.append(Job(command, empty_folder, environment))
        return made[-1]

    yield begin
    for job in made:
        job.close()


class Peace:
    """How a run ends that is left in peace, and how many seconds it takes to train once its processes are there."""

    def __init__(self, folder: Path) -> None:
        self.weights = weights(folder / "run")
        self.seconds, self.begins = json.loads((folder / "seconds.json").read_text())

    def equals(self, run: str) -> None:
        """To the last bit, the last weights and the best."""
        found = weights(Path(run))
        assert found.keys() == self.weights.keys()
        assert [name for name, tensor in self.weights.items() if not torch.equal(tensor, found[name])] == []

    @property
    def patience(self) -> float:
        return max(AGAIN, 2 * self.begins)


@pytest.fixture(scope="session")
def peace(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Peace]:
    """-> of a mesh. Made once, whatever the number of pytest's own processes."""
    common = tmp_path_factory.getbasetemp()
    common = common.parent if "PYTEST_XDIST_WORKER" in os.environ else common

    def find(mesh: str) -> Peace:
        folder = common / re.sub(r"\W", "-", f"peace-{mesh}")
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "seconds.json").exists():
                shutil.rmtree(folder / "run", ignore_errors=True)  # of one that failed
                write_text(folder)
                job = Job([*PLAIT, *TRAIN[:-2], "--parallel", mesh, "--out", "run"], folder)
                try:
                    job.all_workers(MESHES[mesh])
                    began = time.monotonic()
                    assert job.ended() == 0, job.said()
                finally:
                    job.close()
                assert job.err.text == ""
                seconds = [time.monotonic() - began, job.out.when(STARTED) - began]
                (folder / "seconds.json").write_text(json.dumps(seconds))
        return Peace(folder)

    return find


def again(said: str) -> list[str]:
    """The command that goes on, as a line says it."""
    found = re.search(r"go on (?:with)? *plait (.*?)\.?$", said, re.M)
    assert found, said
    return [*PLAIT, *shlex.split(found[1])]


def kill(job: Job, rank: int, pid: int, rest: str) -> float | None:
    """-> when it was dead; None if all was done before. It is said by one line more, soon."""
    lines = len(job.err.seen)
    job.signal(pid, signal.SIGKILL)
    until(lambda: not job.lives(pid))  # one that waits for the disk dies a little later
    moment = time.monotonic()
    until(lambda: len(job.err.seen) > lines or job.is_over, 30)
    if job.is_over and job.ended() == 0 and len(job.err.seen) == lines:
        return None
    ((said, line),) = job.err.seen[lines:]
    assert re.fullmatch(rf"plait: rank {rank} on {HOST} was killed \(SIGKILL\); {rest}\.", line), job.said()
    assert said - moment < NAMED
    return moment


def is_one_console(job: Job) -> bool:
    """Nothing but what one process prints: once, and neither a traceback nor a line of torch's log."""
    text = job.out.text + job.err.text
    return not re.search(r"Traceback|^\[?[WEIF]\d{4} |^\[rank|Error\b", text, re.M) and job.out.count(STARTED) <= 1


# --- killed ----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_kills_and_restarts(start: Start, peace: Callable[[str], Peace], plait) -> None:
    """While the workers import torch; at the moment at which the run gets its name; and in the middle."""
    rng, whole = Random(), peace("data=2")
    job = start(*PLAIT, *TRAIN, "--parallel", "data=2", "--out", "run", "--max-restarts", "3")

    workers, rank = job.all_workers(2), rng.randrange(2)
    time.sleep(rng.uniform(0, 0.5))
    kill(job, rank, workers[rank], r"starting again \(1 of 3\)")

    workers = job.all_workers(2, attempt=1)
    while not Path("run").exists():
        assert job.lives(workers[0]), job.said()
        time.sleep(0.0005)
    kill(job, 0, workers[0], r"starting again \(2 of 3\)")

    workers, rank = job.all_workers(2, attempt=2), rng.randrange(2)
    job.trains(lines := job.out.count(STARTED) + 1)
    time.sleep(rng.uniform(0, 0.3))
    moment = kill(job, rank, workers[rank], r"starting again \(3 of 3\)")
    assert moment is not None
    assert job.trains(lines + 1) - moment < whole.patience
    assert job.ended() == 0, job.said()
    job.leaves_none()
    whole.equals("run")
    assert sorted(p.name for p in Path().iterdir() if p.name != "small.txt" and not p.match(".plait.*")) == ["run"]
    assert plait("evaluate", "run")[0] == 0


@pytest.mark.slow
def test_kill_and_ctrl_c_without_restarts(start: Start, peace: Callable[[str], Peace]) -> None:
    """The line that names the killed one ends with the command that goes on; and so does Ctrl-C."""
    rng, mesh = Random(), "layers=2:chunks=2"
    job = start(*PLAIT, *TRAIN, "--parallel", mesh, "--out", "run")
    workers, rank = job.all_workers(2), rng.randrange(2)
    job.trains()
    time.sleep(rng.uniform(0, 0.3))
    kill(job, rank, workers[rank], "go on with plait train language --resume run")
    assert job.ended() == 1
    assert is_one_console(job)
    job.leaves_none()

    job = start(*again(job.err.text))
    job.all_workers(2)
    job.trains()
    time.sleep(rng.uniform(0, 0.3))
    job.process.send_signal(signal.SIGINT)
    assert job.ended() == 130, job.said()
    job.leaves_none(0.2)
    assert job.err.text == ""
    assert job.out.count(r"^stopped in epoch \d of 4$") == 1
    assert is_one_console(job)

    job = start(*again(job.out.text))
    assert job.ended() == 0, job.said()
    assert is_one_console(job)
    peace(mesh).equals("run")


# --- stalled, left alone, refused ------------------------------------------------------------------------------------
@pytest.mark.slow  # test_launch.py has both, without a training
def test_a_stall_and_a_launcher_that_is_killed(start: Start, peace: Callable[[str], Peace]) -> None:
    rng, more = Random(), [*PLAIT, "train", "language", "--resume", "run"]
    job = start(*PLAIT, *TRAIN, "--parallel", "data=2", "--out", "run", "--timeout", "8")
    workers, rank = job.all_workers(2), rng.randrange(2)
    job.trains()
    for pid in (job.pid, *workers.values()):
        assert set(listening(pid)) == {"127.0.0.1"}
    time.sleep(rng.uniform(0, 0.3))
    check_stall(job, rank, workers[rank], timeout=8)

    job = start(*more)
    workers = job.all_workers(2)
    job.trains()
    for pid in workers.values():
        job.signal(pid, signal.SIGSTOP)  # so that it is not done too soon
    second = start(*more)
    assert second.ended() == 2, second.said()
    assert second.err.text == "plait: run is being trained by another process: wait, or stop it."
    for pid in workers.values():
        job.signal(pid, signal.SIGCONT)
    job.process.kill()
    job.leaves_none(LONELY)
    job.ended()
    assert is_one_console(job)

    job = start(*more)
    assert job.ended() == 0, job.said()
    peace("data=2").equals("run")


def check_stall(job: Job, rank: int, pid: int, timeout: float) -> None:
    """A rank that does nothing any more is named after the timeout."""
    job.signal(pid, signal.SIGSTOP)
    moment = time.monotonic()
    assert job.ended() == 1, job.said()
    who = f"rank {rank} on {HOST} (process {pid})"
    assert job.err.text == f"plait: {who} {SILENT}; go on with plait train language --resume run."
    assert timeout - 1 < job.err.seen[0][0] - moment < timeout + 15
    job.leaves_none(0.2)


# --- started by others -----------------------------------------------------------------------------------------------
def torchrun(*options: str) -> tuple[str, ...]:
    program = str(Path(sys.executable).with_name("torchrun"))
    return program, "--master-port", str(free_port()), "--nproc-per-node", "2", *options, "-m", "plait"


@pytest.mark.slow
def test_torchrun_starts_all_again(start: Start, peace: Callable[[str], Peace]) -> None:
    """The survivor names the killed one, and the next attempt goes on with the same run."""
    job = start(*torchrun("--max-restarts", "1"), *TRAIN, "--parallel", "data=2")
    workers, rank = job.all_workers(2), Random().randrange(2)
    job.trains()
    job.signal(workers[rank], signal.SIGKILL)
    moment = time.monotonic()
    assert job.ended() == 0, job.said()
    who = rf"plait: rank {rank} on {HOST} \(process {workers[rank]}\) {SILENT}\."
    assert job.err.when(who) - moment < NAMED + 1
    assert job.out.count(STARTED) == 2
    assert job.out.count(r"^run /.*/runs/language-1$") == 1
    job.leaves_none()
    assert [p.name for p in Path("runs").iterdir() if p.name.startswith("language")] == ["language-1"]
    peace("data=2").equals("runs/language-1")


def by_hand(start: Start, *command: str) -> list[Job]:
    """Two ranks, as mpiexec of MPICH starts them."""
    port = str(free_port())
    about = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "MASTER_PORT": port}
    return [start(*PLAIT, *command, PMI_RANK=str(r), MPI_LOCALRANKID=str(r), **about) for r in range(2)]


@pytest.mark.slow
def test_a_rank_of_mpiexec_that_is_killed(start: Start) -> None:
    jobs = by_hand(start, *TRAIN, "--parallel", "data=2", "--out", "run")
    jobs[0].trains()
    for job in jobs:
        assert set(listening(job.pid)) == {"127.0.0.1"}
    jobs[1].process.kill()
    moment = time.monotonic()
    assert jobs[0].ended() == 75, jobs[0].said()
    assert jobs[0].err.text == f"plait: rank 1 on {HOST} (process {jobs[1].pid}) {SILENT}."
    assert jobs[0].err.seen[0][0] - moment < NAMED


# --- all of it, many times -------------------------------------------------------------------------------------------
def wait_a_little(job: Job, rng: Random, seconds: float, run: Path) -> None:
    """From the first millisecond to the end of a life that takes so many seconds, or while the first files are made."""
    lines, started = len(job.err.seen), job.out.count(STARTED)
    kind, end = rng.choice(["at once", "any", "files", "run"]), time.monotonic() + 2 * seconds

    def until_it(holds: Callable[[], bool]) -> None:
        while not (holds() or job.is_over or len(job.err.seen) > lines or time.monotonic() > end):
            time.sleep(0.001)

    if kind == "at once":
        time.sleep(rng.uniform(0, 0.02 * seconds))
    elif kind == "any":
        time.sleep(rng.uniform(0, seconds))
    elif kind == "files" and not run.exists():
        until_it(lambda: any(run.parent.glob(".plait.*")))
        time.sleep(rng.uniform(0, 0.1))
    else:
        until_it(lambda: job.out.count(STARTED) > started)
        time.sleep(rng.uniform(0, 0.5 * seconds))


@pytest.mark.slow
def test_kill_9_of_any_rank_at_any_moment(start: Start, peace: Callable[[str], Peace], plait, capsys) -> None:
    """30 times. All start again, and end in the bits of a run that was left in peace."""
    rng, kills, number, named, trained = Random(), 0, 0, [], []
    while kills < 30:
        mesh = list(MESHES)[number % len(MESHES)]
        number += 1
        whole, run = peace(mesh), f"run-{number}"
        job = start(*PLAIT, *TRAIN, "--parallel", mesh, "--out", run, "--max-restarts", "9")
        for attempt in range(4):
            workers, rank = job.all_workers(MESHES[mesh], attempt), rng.randrange(MESHES[mesh])
            wait_a_little(job, rng, whole.seconds, Path(run))
            moment = kill(job, rank, workers[rank], rf"starting again \({attempt + 1} of 9\)")
            if moment is None:
                break  # it was done before
            kills += 1
            named.append(job.err.seen[-1][0] - moment)
            time.sleep(0.2)  # what it printed before is here now
            started = job.out.count(STARTED)
            if rng.random() < 0.5:  # else the next attempt may end before it trains
                trained.append(job.trains(started + 1) - moment)
                assert trained[-1] < whole.patience
        assert job.ended() == 0, job.said()
        job.leaves_none()
        assert len(job.err.seen) == job.err.count("starting again")
        whole.equals(run)
        assert plait("evaluate", run)[0] == 0
        code, out, _ = plait("train", "language", "--resume", run, "--parallel", "data=1")
        assert (code, "nothing is left to do" in out) == (0, True)
    with capsys.disabled():
        print(f"\n{kills} kills in {number} runs: named within {max(named):.2f} s, trained within {max(trained):.1f} s")
    assert max(named) < NAMED


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_signals_at_any_moment(mesh: str, start: Start, peace: Callable[[str], Peace]) -> None:
    """Each run is stopped until it is done: from the first millisecond of the launcher on."""
    rng, whole, stopped = Random(), peace(mesh), 0
    for number in range(2):
        run, code = f"run-{number}", 130
        for life in range(8):
            if Path(run).exists():
                job = start(*PLAIT, "train", "language", "--resume", run)
            else:
                job = start(*PLAIT, *TRAIN, "--parallel", mesh, "--out", run)
            if life < 7:
                if rng.random() < 0.7:
                    until(lambda job=job: job.workers() or job.is_over)
                    wait_a_little(job, rng, whole.seconds, Path(run))
                else:
                    time.sleep(rng.uniform(0, 3))  # the launcher itself imports torch
                if not job.is_over:
                    job.workers()
                    job.process.send_signal(rng.choice([signal.SIGINT, signal.SIGTERM]))
            code = job.ended()
            job.leaves_none(0.2)
            if code == 0:
                break
            stopped += 1
            # killed by the signal itself: Python had not even begun
            assert code in (130, -signal.SIGINT, -signal.SIGTERM), job.said()
            if code < 0:
                continue  # what Python prints then is its own
            assert is_one_console(job), job.said()
            lines = job.err.text.splitlines()
            told = f"; go on with plait train language --resume {run}"
            assert lines in ([], ["plait: stopped."], [f"plait: stopped{told}."]), job.said()
            assert lines or job.out.count("^go on "), job.said()
        assert code == 0
        whole.equals(run)
    assert stopped > 0


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_a_stall_of_any_rank(mesh: str, start: Start, peace: Callable[[str], Peace]) -> None:
    """Each rank in turn."""
    command = [*TRAIN, "--parallel", mesh, "--out", "run"]
    for rank in range(MESHES[mesh]):
        job = start(*PLAIT, *command, "--timeout", "10")
        workers = job.all_workers(MESHES[mesh])
        job.trains()
        time.sleep(Random().uniform(0, 0.2))
        check_stall(job, rank, workers[rank], timeout=10)
        command = ["train", "language", "--resume", "run"]
    assert start(*PLAIT, *command).ended() == 0
    peace(mesh).equals("run")


@pytest.mark.slow
def test_a_launcher_killed_at_any_moment(start: Start, peace: Callable[[str], Peace]) -> None:
    rng, whole, code = Random(), peace("data=2"), -9
    for life in range(8):
        first = [*TRAIN, "--parallel", "data=2", "--out", "run"]
        job = start(*PLAIT, *(["train", "language", "--resume", "run"] if Path("run").exists() else first))
        if life < 7:
            job.all_workers(2)
            wait_a_little(job, rng, whole.seconds, Path("run"))
            job.process.kill()
            job.leaves_none(LONELY + whole.begins)  # those that import torch notice it when they have
        code = job.ended()
        if code == 0:
            break
    assert code == 0
    whole.equals("run")


@pytest.mark.slow
@pytest.mark.parametrize("restarts", ["0", "3"])
def test_a_disk_that_takes_nothing_more(restarts: str, start: Start, peace: Callable[[str], Peace]) -> None:
    """To start again would not help."""
    job = start(*PLAIT, *TRAIN, "--parallel", "data=2", "--out", "run", "--max-restarts", restarts)
    workers = job.all_workers(2)
    job.trains()
    resource.prlimit(workers[0], resource.RLIMIT_FSIZE, (0, 0))  # it can write to no file
    assert job.ended() == 2, job.said()
    said = r"plait: run/\S+ cannot be written: File too large\.( What was there before is unharmed\.)?"
    assert re.fullmatch(said, job.err.text), job.said()
    job.leaves_none(0.2)
    assert start(*PLAIT, "train", "language", "--resume", "run").ended() == 0
    peace("data=2").equals("run")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_a_run_that_is_taken_away(mesh: str, start: Start, peace: Callable[[str], Peace]) -> None:
    job = start(*PLAIT, *TRAIN, "--parallel", mesh, "--out", "run")
    job.all_workers(MESHES[mesh])
    job.trains()
    Path("run").rename("elsewhere")
    assert job.ended() == 2, job.said()
    assert re.fullmatch(r"plait: run/\S+ cannot be written: No such file or directory\.", job.err.text), job.said()
    assert not Path("run").exists()
    assert start(*PLAIT, "train", "language", "--resume", "elsewhere").ended() == 0
    peace(mesh).equals("elsewhere")


# --- by others, many times -------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_without_restarts(rank: int, start: Start, peace: Callable[[str], Peace]) -> None:
    job = start(*torchrun(), *TRAIN, "--parallel", "data=2", "--out", "run")
    workers = job.all_workers(2)
    job.trains()
    time.sleep(Random().uniform(0, 0.3))
    job.signal(workers[rank], signal.SIGKILL)
    moment = time.monotonic()
    assert job.ended() == 1, job.said()
    assert job.err.when(rf"plait: rank {rank} on {HOST} \(process {workers[rank]}\) {SILENT}\.") - moment < NAMED + 1
    assert time.monotonic() - moment < 20
    job.leaves_none()
    assert start(*torchrun("--standalone"), "train", "language", "--resume", "run").ended() == 0
    peace("data=2").equals("run")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_torchrun_is_stopped(number: int, start: Start, peace: Callable[[str], Peace]) -> None:
    job = start(*torchrun(), *TRAIN, "--parallel", "data=2", "--out", "run")
    job.all_workers(2)
    job.trains()
    job.process.send_signal(number)
    assert job.ended() != 0, job.said()
    job.leaves_none()
    assert job.out.count("^stopped in epoch") == 1, job.said()
    assert start(*PLAIT, "train", "language", "--resume", "run").ended() == 0
    peace("data=2").equals("run")


@pytest.mark.slow
def test_mpiexec_goes_on(start: Start, peace: Callable[[str], Peace]) -> None:
    """The first rank is killed, which has the store; then all are started again, by hand."""
    jobs = by_hand(start, *TRAIN, "--parallel", "data=2", "--out", "run")
    jobs[0].trains()
    jobs[0].process.kill()
    moment = time.monotonic()
    assert jobs[1].ended() == 75, jobs[1].said()
    assert jobs[1].err.text == f"plait: the first rank at 127.0.0.1 ({HOST}, process {jobs[0].pid}) {SILENT}."
    assert jobs[1].err.seen[0][0] - moment < NAMED
    jobs = by_hand(start, "train", "language", "--resume", "run")
    assert [job.ended() for job in jobs] == [0, 0], [job.said() for job in jobs]
    assert jobs[1].said() == (0, "", "")
    peace("data=2").equals("run")
