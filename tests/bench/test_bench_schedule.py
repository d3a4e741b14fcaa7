"""`plait bench schedule`: what its contenders compute. What it refuses is in tests/cli."""

import pytest
import torch

from plait import engines
from plait.bench.schedule.measure import BASELINE, BY_STEP, ON, Network, schedules
from plait.engines.fused import FusedEngine
from plait.kernels.launch.schedule import DEFAULT
from plait.ladder.compare import worst


@pytest.mark.parametrize("cell", ["rnn", "lstm", "implicit_gru"])
def test_a_step_is_the_same_in_any_number_of_calls(cell: str) -> None:
    network, numpy = Network(cell, 3, 6, 5, 0), engines.get("numpy")
    whole = [torch.cat(some) for some in network.step(numpy)]
    assert [tuple(t.shape) for t in whole[:2]] == [(18, 5), (18, 5)]
    assert len(whole) == 2 + 4
    for calls in (2, 6):
        found = network.step(numpy, calls)
        assert len(found[0]) == len(found[1]) == calls
        assert worst([torch.cat(some) for some in found], whole) < 1e-5
    assert worst([torch.cat(some) for some in network.step(FusedEngine(ON), 6)], whole) < 1e-5


def test_schedules_are_each_off_and_on_and_then_one_at_a_time() -> None:
    found = schedules()
    assert len(found) == 8 + 6
    assert len({repr(schedule) for name, schedule in found.items() if name != BY_STEP}) == 8 + 5
    assert next(iter(found)) == BASELINE
    assert found["all on, and torch.mm: the engine"] == DEFAULT
    assert found[BY_STEP] == ON
