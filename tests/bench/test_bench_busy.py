"""`plait bench busy`: the layers beside processes that compute all the time."""

import time
from pathlib import Path

import pytest
import torch

from plait import PlaitError, bench
from plait.bench.busy import measure
from processes import start

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="/proc/self/stat is not there")


def test_every_case_is_measured_beside_each_number_of_processes(monkeypatch) -> None:
    monkeypatch.setattr(measure, "LEAST", 0.0)
    begun, threads = list[int](), torch.get_num_threads()
    real = measure.busy_processes
    monkeypatch.setattr(measure, "busy_processes", lambda count: (begun.append(count), real(count))[1])
    torch.set_num_threads(2)
    try:
        report = bench.measure("busy", busy="0,2", shapes="2,3,4,5,1", cells="rnn,gru")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert begun == [0, 0, 2, 2]
    assert [(row["busy"], row["cell"]) for row in report.rows] == [(0, "rnn"), (0, "gru"), (2, "rnn"), (2, "gru")]
    for row in report.rows:
        others = [row[f"{name} ms"] for name in ("torch 1", "torch 2", "plait 1")]
        assert row["of best"] == pytest.approx(row["plait 2 ms"] / min(others))
        assert row.keys() >= set(report.tables[0])


@pytest.mark.parametrize("busy", ["", "-1", "two", "1,,2", "100"])
def test_numbers_of_processes(busy) -> None:
    with pytest.raises(PlaitError, match="expected numbers of processes"):
        bench.measure("busy", busy=busy)


@needs_proc
def test_busy_processes_end_with_a_killed_bench() -> None:
    code = """
import subprocess, sys, time
from plait.bench.busy import measure
made, real = [], subprocess.Popen
measure.subprocess.Popen = lambda *a, **k: made.append(real(*a, **k)) or made[-1]
with measure.busy_processes(2):
    print(*(p.pid for p in made), flush=True)
    time.sleep(60)
"""
    process = start(code)
    pids = [int(text) for text in process.stdout.readline().split()]
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
