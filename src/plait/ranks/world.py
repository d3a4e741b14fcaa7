"""Who started this process, and as which of how many: read from the environment, before torch is imported."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from ..errors import PlaitError

LOOPBACK = "127.0.0.1"
PORT = 29500  # torch's own, where no MASTER_PORT is given


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    local_rank: int  # among those on this host
    launcher: str  # "plait", "torchrun", "mpi", "slurm"
    address: str  # where the store is
    port: int
    attempt: int  # how often all of them were started before
    secret: str
    hosts_store: bool  # whether the first rank must host the store; otherwise the launcher does


@dataclass(frozen=True)
class Names:
    """The variables of one launcher; of several, the first that is set counts."""

    launcher: str
    command: str
    rank: str
    size: tuple[str, ...]
    local_rank: tuple[str, ...]
    one_host: tuple[tuple[str, ...], str]  # equal where all ranks are on one host


OPEN_MPI = Names(
    "mpi",
    "mpiexec",
    "OMPI_COMM_WORLD_RANK",
    ("OMPI_COMM_WORLD_SIZE",),
    ("OMPI_COMM_WORLD_LOCAL_RANK",),
    (("OMPI_COMM_WORLD_LOCAL_SIZE",), "OMPI_COMM_WORLD_SIZE"),
)
MPICH = Names(
    "mpi",
    "mpiexec",
    "PMI_RANK",
    ("PMI_SIZE",),
    ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
    (("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"), "PMI_SIZE"),
)
SLURM = Names(
    "slurm",
    "srun",
    "SLURM_PROCID",
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),  # of this step; of all that was asked for
    ("SLURM_LOCALID",),
    (("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "1"),
)


def find(environment: Mapping[str, str]) -> World | None:
    if "PLAIT_STORE" in environment:
        return of_plait(environment)
    if "RANK" in environment or "WORLD_SIZE" in environment:
        return of_torchrun(environment)
    for names in (OPEN_MPI, MPICH, SLURM):
        if names.rank in environment:
            return of_others(environment, names)
    return None


def is_one_of_several(environment: Mapping[str, str]) -> bool:
    return any(name in environment for name in ("WORLD_SIZE", *(names.rank for names in (OPEN_MPI, MPICH, SLURM))))


def quieten(environment: MutableMapping[str, str]) -> None:
    """torch would print a page for each broken connection."""
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


def of_plait(environment: Mapping[str, str]) -> World:
    address, _, port = environment["PLAIT_STORE"].rpartition(":")
    if not address or not port.isdecimal():
        raise PlaitError(
            f"PLAIT_STORE is '{environment['PLAIT_STORE']}': expected HOST:PORT, as plait sets it for its workers; "
            "unset it to start anew."
        )
    rank, size = rank_and_size(environment, "RANK", "WORLD_SIZE", "plait")
    local = number(environment, "LOCAL_RANK", default=rank)
    attempt = number(environment, "PLAIT_ATTEMPT", default=0)
    secret = environment.get("PLAIT_SECRET", "")
    return World(rank, size, local, "plait", address, int(port), attempt, secret, hosts_store=False)


def of_torchrun(environment: Mapping[str, str]) -> World:
    rank, size = rank_and_size(environment, "RANK", "WORLD_SIZE", "torchrun")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise PlaitError(f"RANK is set, but {name} is not: start plait with torchrun, or set {name}.")
    local = number(environment, "LOCAL_RANK", default=0)
    attempt = number(environment, "TORCHELASTIC_RESTART_COUNT", default=0)
    where = environment["MASTER_ADDR"], port_of(environment)
    hosts = environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return World(rank, size, local, "torchrun", *where, attempt, secret_of(environment), hosts)


def of_others(environment: Mapping[str, str], names: Names) -> World | None:
    if names is SLURM and "SLURM_JOB_ID" in environment and not {"SLURM_STEP_ID", "SLURM_STEPID"} & environment.keys():
        return None  # the script of a batch job, not started with srun
    size_name = first(environment, names.size) or names.size[-1]
    rank, size = rank_and_size(environment, names.rank, size_name, names.command)
    if size == 1:
        return None
    found = first(environment, names.local_rank)
    local = rank if found is None else number(environment, found)
    where = address_of(environment, names), port_of(environment)
    return World(rank, size, local, names.launcher, *where, 0, secret_of(environment), hosts_store=True)


def address_of(environment: Mapping[str, str], names: Names) -> str:
    if environment.get("MASTER_ADDR"):
        return environment["MASTER_ADDR"]
    counts, whole = names.one_host
    count = first(environment, counts)
    if count is not None and environment[count] == environment.get(whole, whole):
        return LOOPBACK
    found = f"{count} is {environment[count]}" if count is not None else f"{counts[0]} is not set"
    raise PlaitError(
        f"{found}, so the ranks may be on several hosts, and {names.command} does not say where the first one is: "
        "set MASTER_ADDR to the address of its host."
    )


def rank_and_size(environment: Mapping[str, str], rank_name: str, size_name: str, command: str) -> tuple[int, int]:
    for name, other in ((rank_name, size_name), (size_name, rank_name)):
        if name not in environment:
            raise PlaitError(
                f"{other} is set, but {name} is not: start plait with {command}, or unset {other} to run by itself."
            )
    rank, size = number(environment, rank_name), number(environment, size_name, least=1)
    if rank >= size:
        raise PlaitError(f"{rank_name} is {rank}, and {size_name} is {size}: expected a rank from 0 to {size - 1}.")
    return rank, size


def port_of(environment: Mapping[str, str]) -> int:
    port = number(environment, "MASTER_PORT", least=1, default=PORT)
    if port > 65535:
        raise PlaitError(f"MASTER_PORT is {port}: expected a port from 1 to 65535.")
    return port


def secret_of(environment: Mapping[str, str]) -> str:
    return environment.get("PLAIT_SECRET") or environment.get("TORCHELASTIC_RUN_ID") or ""


def number(environment: Mapping[str, str], name: str, least: int = 0, default: int | None = None) -> int:
    if name not in environment and default is not None:
        return default
    text = environment.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= least):
        raise PlaitError(f"{name} is '{text}': expected a whole number from {least} on; set it right, or unset it.")
    return int(text)


def first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in environment), None)
