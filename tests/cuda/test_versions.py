"""The CUDA engines without a device: versions 1 to 3 in numba's simulator, version 4 in Triton's interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assembler import needs_numba, needs_triton
from plait.cells import CELLS

pytestmark = pytest.mark.cuda
JOBS = Path(__file__).parents[1] / "cuda_jobs.py"
PATIENCE = 300  # seconds


def results(*job: str) -> list[dict[str, Any]]:
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(JOBS), *job], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(lines: list[dict[str, Any]], count: int, bound: float) -> None:
    assert len(lines) == count
    assert {line["what"]: line["off"] for line in lines if not line["off"] <= bound} == {}


@needs_numba
@pytest.mark.parametrize("version", ["cuda:v1", "cuda:v2", "cuda:v3"])
class TestSamples:
    def test_layers_equal_engine_python(self, version):
        check(results("small", version), 7, 1e-5)

    def test_five_samples_of_six_steps(self, version):
        check(results("largest", version), 14, 1e-5)

    def test_longer_steps_in_float64(self, version):
        check(results("float64", version), 7, 1e-10)

    def test_sources_and_given_states(self, version):
        check(results("sweeps", version), 14, 1e-5)


@needs_numba
def test_whole_training_steps_and_what_they_copy():
    lines = results("steps")
    check(lines, 30, 1e-5)
    for line in lines:
        assert line["counted"] == {"there": line["there"], "back": line["back"]}, line["what"]
    moved = {(line["cell"], line["ragged"], line["version"]): line["there"] + line["back"] for line in lines}
    for line in lines:
        cell, ragged = line["cell"], line["ragged"]
        fourth = line["batch"] + 4  # the mini-batch there, the loss back: the rest stays on the device
        assert moved[cell, ragged, 2] > moved[cell, ragged, 3] > fourth


@needs_numba
@needs_triton
def test_the_rungs_of_the_ladder_train_alike():
    check(results("rungs"), 4, 1e-4)


@needs_triton
class TestBlocks:
    def test_layers_equal_engine_python(self):
        check(results("small", "cuda:v4"), 7, 1e-5)

    def test_five_samples_of_six_steps(self):
        check(results("largest", "cuda:v4"), 14, 1e-5)

    def test_sources_and_given_states(self):
        check(results("sweeps", "cuda:v4"), 14, 1e-5)

    def test_several_blocks_and_tiles(self):
        check(results("tiles", "cuda:v4"), 7, 1e-5)

    @pytest.mark.parametrize("cell", CELLS)
    def test_a_large_batch(self, cell):
        check(results("large", "cuda:v4", cell), 1, 1e-4)
