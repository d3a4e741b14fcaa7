"""How many threads a launch gets beside busy processes, and on the CPUs that this process may use."""

import os
import time

import pytest
import torch

import plait
from plait import system
from plait.kernels.launch import choices, pace, threads
from plait.kernels.launch.pace import AMORTISED, CREDIT, LONGEST, LOSS, Estimate, Pace
from processes import python

needs_threads = pytest.mark.skipif(threads.why_alone() is not None, reason="torch's OpenMP threads were not found")
needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="os.sched_setaffinity is not there")
needs_two_cpus = pytest.mark.skipif(system.cpus() < 2, reason="there is no second CPU for this process")


class Clock:
    def __init__(self, monkeypatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(pace, "perf_counter", lambda: self.now)
        monkeypatch.setattr(system, "cpus", lambda: 8)

    def launch(self, found: Pace, estimate: Estimate, alone: float, team: float) -> int:
        """One launch of two threads -> how many it had."""
        count = found.threads(2, self.now)
        seconds = alone if count == 1 else team
        self.now += seconds
        found.took(estimate, 10, count, seconds)
        return count


def test_a_team_that_gains_stays(monkeypatch) -> None:
    clock, found, estimate = Clock(monkeypatch), Pace(), Estimate(1e-4)
    assert {clock.launch(found, estimate, 1e-3, 6e-4) for _ in range(1000)} == {2}


def test_one_disturbance_changes_nothing_after_gains(monkeypatch) -> None:
    clock, found, estimate = Clock(monkeypatch), Pace(), Estimate(1e-4)
    for _ in range(200):
        clock.launch(found, estimate, 1e-3, 6e-4)
    assert clock.launch(found, estimate, 1e-3, CREDIT * 0.9) == 2
    assert clock.launch(found, estimate, 1e-3, 6e-4) == 2


def test_a_team_that_loses_has_pauses_that_grow(monkeypatch) -> None:
    """All tries together cost a few percent of the time, however long the machine is busy."""
    clock, found, estimate = Clock(monkeypatch), Pace(), Estimate(1e-5)
    lost, start, longest = 0.0, clock.now, 0.0
    while clock.now < start + 60:
        before = clock.now
        if clock.launch(found, estimate, 1e-3, 0.02) == 2:
            lost += clock.now - before - 1e-3
            longest = max(longest, found.pause)
    assert lost < 0.06 * 60
    assert longest == LONGEST


def test_a_team_is_tried_again_and_kept_when_the_machine_is_quiet(monkeypatch) -> None:
    clock, found, estimate = Clock(monkeypatch), Pace(), Estimate(1e-5)
    for _ in range(1000):
        clock.launch(found, estimate, 1e-3, 0.02)
    start = clock.now
    while clock.launch(found, estimate, 1e-3, 6e-4) == 1:
        assert clock.now < start + LONGEST + 0.1
    assert {clock.launch(found, estimate, 1e-3, 6e-4) for _ in range(5000)} == {2}


def test_the_first_pause_follows_from_the_loss(monkeypatch) -> None:
    clock, found, estimate = Clock(monkeypatch), Pace(), Estimate(1e-5)
    alone = estimate.seconds * 10
    assert clock.launch(found, estimate, alone, alone + LOSS * 2) == 2
    assert found.pause == pytest.approx(AMORTISED * LOSS * 2)
    assert found.threads(2, clock.now + found.pause * 0.9) == 1
    assert found.threads(2, clock.now + found.pause * 1.1) == 2


def test_what_one_thread_takes_is_learnt_for_each_row(monkeypatch) -> None:
    clock, found, estimate = Clock(monkeypatch), Pace(), Estimate(1.0)
    for rows in [10, 1000] * 50:
        found.took(estimate, rows, 1, rows * 2e-6)
    assert estimate.seconds == pytest.approx(2e-6, rel=0.01)
    found.took(estimate, 1000, 4, 1e-4)  # a team of four cannot be more than four times as fast
    assert estimate.seconds == pytest.approx(4e-7)
    assert clock.now == 100.0


@needs_threads
def test_slow_teams_lead_to_one_thread_and_the_same_bits(monkeypatch) -> None:
    """The launches of a team are made slow. After the first of them the others have one thread each."""
    monkeypatch.setattr(choices, "WORTH_A_TEAM", 0)
    monkeypatch.setattr(system, "cpus", lambda: 2)
    monkeypatch.setattr("plait.kernels.launch.program.pace", Pace())
    counts, run, before = [], threads.run, torch.get_num_threads()

    def slow(*args) -> bool:
        counts.append(args[-1])
        time.sleep(0.05 if args[-1] > 1 else 0)
        return run(*args)

    layer, x = plait.LSTM(8, 40, bidirectional=True, engine="fused"), torch.randn(6, 20, 8)

    def results() -> list[torch.Tensor]:
        y, _ = layer(x)
        return [y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))]

    torch.set_num_threads(2)
    try:
        expected = results()
        monkeypatch.setattr(threads, "run", slow)
        monkeypatch.setattr("plait.kernels.launch.program.pace", Pace())
        found = [results() for _ in range(5)]
    finally:
        torch.set_num_threads(before)
    assert counts == [2] + [1] * 9
    for each in found:
        assert all(torch.equal(a, b) for a, b in zip(each, expected, strict=True))


@needs_threads
@needs_affinity
@needs_two_cpus
def test_no_more_threads_than_the_affinity_allows() -> None:
    """torch still says two."""
    output, _ = python("""
import os, torch, plait
from plait.kernels.launch import choices, threads
choices.WORTH_A_TEAM = 0
torch.set_num_threads(2)
run, counts = threads.run, []
threads.run = lambda *args: (counts.append(args[-1]), run(*args))[1]
layer, x = plait.GRU(4, 40), torch.randn(3, 8, 4)
layer(x)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from plait.kernels.launch.pace import pace
pace.checked = pace.until = 0.0
layer(x)
print(counts, torch.get_num_threads())
""")
    assert output.split() == ["[2,", "1]", "2"]
