"""Who started this process: a table of environments."""

import subprocess
import sys

import pytest

from plait.errors import PlaitError
from plait.ranks.world import World, find, quieten

PLAIT = {"PLAIT_STORE": "127.0.0.1:4001", "PLAIT_SECRET": "s", "PLAIT_ATTEMPT": "2", "WORLD_SIZE": "4", "RANK": "3"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "host-a", "MASTER_PORT": "4002"}
AGENT = {"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_RUN_ID": "id", "TORCHELASTIC_USE_AGENT_STORE": "True"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "0"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NNODES": "1"}
BATCH = {"SLURM_JOB_ID": "17"}
STEP = {**BATCH, "SLURM_STEP_ID": "0"}

FOUND = {
    "plait": (PLAIT, World(3, 4, 3, "plait", "127.0.0.1", 4001, 2, "s", False)),
    "plait before slurm": ({**SLURM, **PLAIT}, World(3, 4, 3, "plait", "127.0.0.1", 4001, 2, "s", False)),
    "torchrun": ({**TORCHRUN, **AGENT}, World(1, 2, 1, "torchrun", "host-a", 4002, 1, "id", False)),
    "by hand, as for torch": (TORCHRUN, World(1, 2, 1, "torchrun", "host-a", 4002, 0, "", True)),
    "one by torchrun": (
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        World(0, 1, 0, "torchrun", "host-a", 4002, 0, "", True),
    ),
    "Open MPI": (OPEN_MPI, World(1, 4, 1, "mpi", "127.0.0.1", 29500, 0, "", True)),
    "Open MPI, two hosts": (
        {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "host-a"},
        World(1, 4, 1, "mpi", "host-a", 29500, 0, "", True),
    ),
    "MPICH": ({**MPICH, "MASTER_PORT": "4003"}, World(0, 2, 0, "mpi", "127.0.0.1", 4003, 0, "", True)),
    "MPICH, bare": (
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "host-a"},
        World(1, 2, 1, "mpi", "host-a", 29500, 0, "", True),
    ),
    "MPICH inside slurm": ({**SLURM, **STEP, **MPICH}, World(0, 2, 0, "mpi", "127.0.0.1", 29500, 0, "", True)),
    "srun": (SLURM, World(5, 8, 1, "slurm", "127.0.0.1", 29500, 0, "", True)),
    "srun, a step of a job": ({**SLURM, **STEP}, World(5, 8, 1, "slurm", "127.0.0.1", 29500, 0, "", True)),
    "srun, two hosts, a secret": (
        {**SLURM, "SLURM_NNODES": "2", "MASTER_ADDR": "host-a", "PLAIT_SECRET": "s"},
        World(5, 8, 1, "slurm", "host-a", 29500, 0, "s", True),
    ),
}
ALONE = {
    "nothing": {},
    "unrelated": {"MASTER_PORT": "4003", "SLURM_NTASKS": "8"},
    "srun -n1": {**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
    "mpiexec -n 1": {**MPICH, "PMI_SIZE": "1", "MPI_LOCALNRANKS": "1"},
    "a shell inside salloc": {**SLURM, **STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    "the script of a batch job": {**SLURM, **BATCH, "SLURM_PROCID": "0"},
}
REFUSED = {
    "RANK is 'x': expected a whole number from 0 on": {**TORCHRUN, "RANK": "x"},
    "WORLD_SIZE is '0': expected a whole number from 1 on": {**TORCHRUN, "WORLD_SIZE": "0"},
    "RANK is 2, and WORLD_SIZE is 2: expected a rank from 0 to 1": {**TORCHRUN, "RANK": "2"},
    "RANK is set, but WORLD_SIZE is not": {"RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
    "WORLD_SIZE is set, but RANK is not": {"WORLD_SIZE": "2"},
    "RANK is set, but MASTER_ADDR is not": {"RANK": "0", "WORLD_SIZE": "2"},
    "RANK is set, but MASTER_PORT is not": {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"},
    "MASTER_PORT is '-1': expected a whole number": {**TORCHRUN, "MASTER_PORT": "-1"},
    "MASTER_PORT is 70000: expected a port from 1 to 65535": {**TORCHRUN, "MASTER_PORT": "70000"},
    "TORCHELASTIC_RESTART_COUNT is '1.5'": {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1.5"},
    "LOCAL_RANK is ''": {**TORCHRUN, "LOCAL_RANK": ""},
    "PLAIT_STORE is 'here': expected HOST:PORT": {**PLAIT, "PLAIT_STORE": "here"},
    "PLAIT_ATTEMPT is '\u0663'": {**PLAIT, "PLAIT_ATTEMPT": "\u0663"},  # a digit, but not one of ours
    "OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not": {"OMPI_COMM_WORLD_RANK": "0"},
    "PMI_SIZE is 'two'": {**MPICH, "PMI_SIZE": "two"},
    "PMI_RANK is 7, and PMI_SIZE is 2": {**MPICH, "PMI_RANK": "7"},
    "MPI_LOCALNRANKS is not set, so the ranks may be on several hosts": {"PMI_RANK": "0", "PMI_SIZE": "2"},
    "OMPI_COMM_WORLD_LOCAL_SIZE is 2, so the ranks may be": {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    "SLURM_NNODES is 2, so the ranks may be on several hosts, and srun does not say": {**SLURM, "SLURM_NNODES": "2"},
    "SLURM_PROCID is 8, and SLURM_NTASKS is 8": {**SLURM, "SLURM_PROCID": "8"},
}


@pytest.mark.parametrize("name", FOUND)
def test_one_of_several(name: str) -> None:
    environment, world = FOUND[name]
    assert find({"HOME": "/", **environment}) == world


@pytest.mark.parametrize("name", ALONE)
def test_a_process_by_itself(name: str) -> None:
    assert find(ALONE[name]) is None


@pytest.mark.parametrize("words", REFUSED)
def test_what_makes_no_sense_is_refused(words: str) -> None:
    with pytest.raises(PlaitError) as e:
        find(REFUSED[words])
    assert str(e.value).startswith(words)
    assert str(e.value).endswith(".")


def test_it_is_known_before_torch_is_imported() -> None:
    code = "import plait.ranks.world, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_torch_is_told_to_be_quiet_unless_it_was_told_otherwise() -> None:
    environment: dict[str, str] = {}
    quieten(environment)
    assert environment == {"TORCH_CPP_LOG_LEVEL": "FATAL"}
    environment = {"TORCH_CPP_LOG_LEVEL": "INFO"}
    quieten(environment)
    assert environment == {"TORCH_CPP_LOG_LEVEL": "INFO"}
