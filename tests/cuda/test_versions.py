"""CUDA without a device: versions 1 to 3 in numba's simulator, engine cuda in Triton's interpreter."""

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
ENV = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "TRITON_INTERPRET": "1"}


def results(*job: str) -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, str(JOBS), *job], env=ENV, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(lines: list[dict[str, Any]], count: int, bound: float) -> None:
    assert len(lines) == count
    assert {line["what"]: line["off"] for line in lines if not line["off"] <= bound} == {}


@needs_numba
@pytest.mark.parametrize(("kind", "bound"), [("float32", 1e-5), ("float64", 1e-10)])
def test_whole_training_steps_and_what_they_copy(kind, bound):
    lines = results("steps", kind)
    check(lines, 21, bound)
    for line in lines:
        there, back, read = line["there"], line["back"], line["batch"] + line["weights"]
        if line["version"] == 3:  # what is read there, what is added up back
            assert (there, back) == (read, line["weights"] + line["loss"]), line["what"]
        else:
            assert there == back > 2 * line["weights"] + line["batch"] + line["loss"], line["what"]


@needs_numba
@needs_triton
def test_bench_cuda_runs_every_version():
    """With a simulator and an interpreter in place of a device."""
    args = ("-m", "plait", "bench", "cuda", "--shapes", "2,3,2,3,1", "--repeats", "5", "--json", "-")
    done = subprocess.run([sys.executable, *args], env=ENV, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["cell"], row["engine"]) for row in rows] == [
        (cell, f"cuda v{version}") for cell in ("lstm", "gru", "rnn") for version in (1, 2, 3, 4)
    ]
    assert max(row["off"] for row in rows) < 1e-4


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
