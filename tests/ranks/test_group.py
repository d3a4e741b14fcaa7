"""Ranks that were not started by plait: how they meet, what they say if they do not, and how they lose each other."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from jobs import Pids, finished, free_port, listening
from plait.errors import PlaitError
from plait.ranks import store as stores
from plait.ranks.group import Lost, broken, join
from plait.ranks.heartbeat import LOST
from plait.ranks.world import World

HOST = socket.gethostname()


def world(rank: int, size: int, port: int, hosts_store: bool = True) -> World:
    return World(rank, size, rank, "mpi", "127.0.0.1", port, 0, "", hosts_store)


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PlaitError) as e:
            join(world(0, 2, port))
    assert str(e.value) == f"port {port} on 127.0.0.1 is in use: set MASTER_PORT to a free one."


def test_an_address_that_is_not_ours_or_not_known() -> None:
    with pytest.raises(PlaitError, match=r"^192.0.2.1 is no address of .*: set MASTER_ADDR to"):
        stores.listen("192.0.2.1", free_port())
    with pytest.raises(PlaitError, match=r"^MASTER_ADDR is 'no.such.host.invalid', which is not known here: "):
        stores.listen("no.such.host.invalid", free_port())


def test_a_first_rank_that_is_not_there() -> None:
    port = free_port()
    with pytest.raises(PlaitError) as e:
        join(world(2, 4, port), patience=0.3)
    words = f"rank 2 on {HOST} cannot reach the first rank at 127.0.0.1:{port} (Connection refused): see that "
    assert str(e.value).startswith(words)


def test_a_launcher_that_is_not_there_any_more() -> None:
    began, port = time.monotonic(), free_port()
    with pytest.raises(Lost) as e:
        join(World(1, 2, 1, "plait", "127.0.0.1", port, 0, "", hosts_store=False))
    where = f"rank 1 on {HOST} cannot reach its launcher at 127.0.0.1:{port}"
    assert str(e.value) == f"{where} (Connection refused): start again."
    assert time.monotonic() - began < 10


def test_a_stranger_on_the_port() -> None:
    expected = pytest.raises(PlaitError, match=r"\(what listens there is no store of torch's\)")
    with socket.create_server(("127.0.0.1", 0)) as stranger, expected:
        join(world(1, 2, stranger.getsockname()[1]), patience=0.3)


def test_ranks_that_do_not_come() -> None:
    with pytest.raises(PlaitError, match=r"^ranks 1, 2 of 3 did not join within 0.3 s: see what became of them"):
        join(world(0, 3, free_port()), patience=0.3)
    with pytest.raises(PlaitError, match=r"^rank 1 of 2 did not join within 0.3 s: see what became of it"):
        join(world(0, 2, free_port()), patience=0.3)


def test_two_jobs_at_one_port() -> None:
    port = free_port()
    other = stores.host("127.0.0.1", port, 5)
    stores.prefixed(other, "", 0).add("joined/1", 1)
    with pytest.raises(PlaitError, match=rf"^rank 1 is there twice: another job meets at 127.0.0.1:{port}; set "):
        join(world(1, 2, port), patience=0.3)


def test_the_interface_that_leads_to_an_address() -> None:
    assert stores.interface("127.0.0.1") == "lo"
    assert stores.interface("localhost") == "lo"
    found = subprocess.run(["ip", "-json", "-4", "address"], capture_output=True, check=False, text=True)
    for link in json.loads(found.stdout) if found.returncode == 0 else []:
        if link["ifname"] != "lo" and "UP" in link["flags"]:
            assert stores.interface(link["addr_info"][0]["local"]) == link["ifname"]


# --- processes -------------------------------------------------------------------------------------------------------
def started(variables: Sequence[Mapping[str, str]], folder: Path, *options: str) -> list[subprocess.Popen[str]]:
    """One process for each environment."""
    folder.mkdir()
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    known = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    command = [sys.executable, "-m", "rank_worker", str(folder), *options]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(command, env={**os.environ, **known, **some}, **pipe) for some in variables]


def mpich(size: int) -> list[dict[str, str]]:
    common = {"PMI_SIZE": str(size), "MPI_LOCALNRANKS": str(size), "MASTER_PORT": str(free_port())}
    return [{**common, "PMI_RANK": str(r)} for r in range(size)]


def slurm(size: int) -> list[dict[str, str]]:
    common = {"SLURM_NTASKS": str(size), "SLURM_NNODES": "1", "MASTER_PORT": str(free_port())}
    return [{**common, "SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)} for r in range(size)]


def agent(size: int, port: int, attempt: int) -> list[dict[str, str]]:
    """As torchrun does it: its own store lasts over all attempts."""
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(attempt)}
    return [{**common, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(size)]


@pytest.mark.slow
def test_started_by_mpiexec_or_srun(tmp_path: Path) -> None:
    by_mpi = started(mpich(3), tmp_path / "mpi", "steps=200")
    by_slurm = started(slurm(2), tmp_path / "slurm", "steps=20")
    pids = Pids(tmp_path / "mpi").wait(0, 3)
    addresses = {address for pid in pids for address in listening(pid)}
    assert addresses == {"127.0.0.1"}
    for processes in (by_mpi, by_slurm):
        said = [finished(p) for p in processes]
        assert said[0] == (0, f"{len(processes)} ranks, begins, no terminal\nrank 0 is here\ndone, attempt 0\n", "")
        assert all(s == (0, "", f"rank {r} is here\n") for r, s in enumerate(said) if r)


@pytest.mark.slow
def test_started_again_by_torchrun(tmp_path: Path) -> None:
    port = free_port()
    store = stores.host("127.0.0.1", port, 60)
    first = started(agent(2, port, 0), tmp_path / "0", "fail=1:kill:0", "steps=20")
    code, _, err = finished(first[0])
    assert (code, err) == (LOST, f"plait: rank 1 on {HOST} (process {first[1].pid}) {SILENT}")
    finished(first[1])
    again = started(agent(2, port, 1), tmp_path / "1", "fail=1:kill:0", "steps=20")
    assert finished(again[0]) == (0, "2 ranks, goes on, no terminal\nrank 0 is here\ndone, attempt 1\n", "")
    assert finished(again[1])[0] == 0
    del store


SILENT = "does not answer any more: it was killed, stopped, or its link was cut.\n"


@pytest.mark.slow
def test_a_first_rank_that_is_killed_or_stopped(tmp_path: Path) -> None:
    jobs = {how: started(mpich(2), tmp_path / how, f"fail=0:{how}", "timeout=1") for how in ("kill", "freeze")}
    for how, (first, other) in jobs.items():
        Pids(tmp_path / how).wait(0, 2)
        began = time.monotonic()
        code, _, err = finished(other)
        assert code == LOST
        assert f"plait: the first rank at 127.0.0.1 ({HOST}, process {first.pid}) {SILENT}" in err
        assert time.monotonic() - began < 10
        first.kill()
        first.communicate()


def test_a_rank_that_refuses_is_quoted_by_the_others(tmp_path: Path) -> None:
    processes = started(slurm(2), tmp_path / "run", "fail=1:refuse")
    said = [finished(p) for p in processes]
    sentence = "the batch is too small: give a larger --batch."
    assert said[0][0] == LOST
    assert said[0][2] == f"plait: rank 1 on {HOST}: {sentence}\n"
    assert said[1] == (2, "", f"rank 1 is here\nplait: {sentence}\n")


@pytest.mark.parametrize(
    "words",
    [
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 10000ms for recv operation",
        "Application timeout caused pair closure",
        "Connection reset by peer",
    ],
)
def test_what_gloo_says_when_a_link_is_lost(words: str) -> None:
    assert broken(RuntimeError(words))
    assert not broken(RuntimeError("expected scalar type Float but found Double"))
