"""The compiled kernels among other threads and processes: forks, workers, ranks, neighbours, too few threads."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import plait
from jobs import free_port
from plait import system
from plait.kernels.launch import choices, threads
from processes import PATIENCE, finish, in_child, needs_fork, python, start

needs_threads = pytest.mark.skipif(threads.why_alone() is not None, reason="torch's OpenMP threads were not found")
needs_tasks = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="/proc/self/task is not there")


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    """However small the work is."""
    monkeypatch.setattr(choices, "WORTH_A_TEAM", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def everything(layer: plait.LSTM, x: Tensor) -> list[Tensor]:
    """Outputs and gradients, as plain tensors."""
    y, states = layer(x)
    outputs = [y, *states]
    gradients = torch.autograd.grad([t.square().sum() for t in outputs], list(layer.parameters()))
    return [t.detach() for t in (*outputs, *gradients)]


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def made() -> plait.LSTM:
    """Several blocks of units, but no product large enough for torch.mm, which hangs in a forked child."""
    return plait.LSTM(8, 40, bidirectional=True, engine="fused")


@needs_fork
def test_a_forked_child_gets_the_same() -> None:
    layer, x = made(), torch.randn(6, 20, 8)
    expected = everything(layer, x)
    assert threads.threads() == 2 or threads.why_alone()
    assert in_child(lambda: same(everything(layer, x), expected))
    assert in_child(lambda: threads.threads() == 1)  # it has no others
    assert in_child(lambda: in_child(lambda: same(everything(layer, x), expected)))
    assert not in_child(lambda: same(everything(layer, x + 1), expected))
    assert same(everything(layer, x), expected)  # and the parent still has its own


@needs_fork
def test_a_graph_made_before_the_fork_is_walked_back_after_it() -> None:
    layer, d = made(), torch.randn(6, 20, 80)
    y, _ = layer(torch.randn(6, 20, 8))
    expected = torch.autograd.grad(y, list(layer.parameters()), d, retain_graph=True)
    assert in_child(lambda: same(torch.autograd.grad(y, list(layer.parameters()), d), expected))


class Encoded(Dataset):
    """Each item is what a layer makes of it, forward and backward."""

    def __init__(self, layer: plait.LSTM, x: Tensor) -> None:
        self.layer, self.x = layer, x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> list[Tensor]:
        return everything(self.layer, self.x[index])


@needs_fork
def test_workers_of_a_data_loader() -> None:
    dataset = Encoded(made(), torch.randn(6, 6, 3, 8))
    expected = [dataset[k] for k in range(6)]
    loader = DataLoader(dataset, batch_size=None, num_workers=2, timeout=PATIENCE, multiprocessing_context="fork")
    for found, item in zip(loader, expected, strict=True):
        assert same(found, item)


@pytest.mark.parametrize("shared", [False, True], ids=["a layer each", "one layer"])
def test_two_python_threads_at_once(shared: bool) -> None:
    layers, inputs = [made() for _ in range(2)], [torch.randn(30, 5, 8) for _ in range(2)]
    if shared:
        layers[1] = layers[0]
    expected = [everything(layer, x) for layer, x in zip(layers, inputs, strict=True)]
    at_once = Barrier(2)

    def repeat(k: int) -> int:
        at_once.wait(PATIENCE)
        return sum(same(everything(layers[k], inputs[k]), expected[k]) for _ in range(100))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(repeat, range(2))) == [100, 100]


# Does what it is told before and after plait is imported, trains a little, and prints the runtime that runs the kernels
# and whether torch uses it, too: what torch is told about threads, that runtime must know.
RUNTIME = """
import sys
exec(sys.argv[1])
import ctypes
import torch
import plait
exec(sys.argv[2])
from plait.kernels.launch import threads

layer = plait.LSTM(8, 80, engine="fused")
layer(torch.randn(9, 20, 8))[0].sum().backward()
omp = threads.openmp()
known = []
for count in (3, 2):
    torch.set_num_threads(count)
    known.append(ctypes.CDLL(omp.path).omp_get_max_threads())
print(omp.path, known == [3, 2])
"""
SKLEARN = "import sklearn.ensemble"
NOTHING = "pass"


def runtime(before: str, after: str, **environment: str | Path) -> str:
    path, is_torchs = python(RUNTIME, before, after, **environment)[0].split()
    assert is_torchs == "True"
    return path


def intel() -> Path:
    """An OpenMP of another kind, which has GNU's entry points as well."""
    found = Path(sys.prefix) / "lib" / "libiomp5.so"
    if not found.is_file():
        pytest.skip("intel-openmp is not installed")
    return found


@needs_threads
@pytest.mark.parametrize("first", [True, False], ids=["before plait", "after plait"])
def test_the_kernels_run_on_torchs_threads_whoever_else_brings_some(first: bool) -> None:
    others = f"{SKLEARN}; import ctypes; ctypes.CDLL({str(intel())!r})"
    assert runtime(*((others, NOTHING) if first else (NOTHING, others))) == threads.openmp().path


@needs_threads
@pytest.mark.parametrize("way", ["preloaded", "open to all"])
def test_where_torch_takes_another_runtime_the_kernels_take_it_too(way: str) -> None:
    preload = {"LD_PRELOAD": intel()} if way == "preloaded" else {}
    opened = f"import ctypes; ctypes.CDLL({str(intel())!r}, ctypes.RTLD_GLOBAL)"
    assert runtime(NOTHING if preload else opened, NOTHING, **preload) == str(intel())


def test_a_runtime_that_torch_does_not_use_is_not_taken(monkeypatch) -> None:
    monkeypatch.setattr(threads.OpenMP, "is_torchs", lambda _: False)
    assert threads.openmp.__wrapped__() is None


# Prints how many threads the kernels were told to take, and the largest deviation from engine numpy. With a third
# argument, another process keeps a core busy meanwhile.
CHECK = """
import subprocess
import sys
import torch
import plait
from plait.ladder.compare import deviation, outputs_and_gradients, with_engine
from plait.engines import get
from plait.kernels.launch import choices

choices.WORTH_A_TEAM = 0
count, times, worst = int(sys.argv[1]), int(sys.argv[2]), 0.0
neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if sys.argv[3:] else None
torch.set_num_threads(count)
torch.manual_seed(0)
reference = plait.GRU(8, 40, bidirectional=True, dtype=torch.float64, engine="numpy")
layer = with_engine(reference, "fused")
for lengths in (torch.tensor([3, 9, 1, 9, 4]), None):
    x = torch.randn(9, 5, 8, dtype=torch.float64)
    expected = outputs_and_gradients(reference, x, None, lengths)
    for way in (False, True):
        choices.by_units = lambda *_: way
        get("fused").plans.clear()
        for _ in range(times):
            worst = max(worst, deviation(outputs_and_gradients(layer, x, None, lengths), expected)[0])
if neighbour is not None:
    assert neighbour.poll() is None
    neighbour.kill()
    neighbour.wait()
segments = [s for plan in get("fused").plans.values() for v in plan.variants.values() for s in v.segments]
print(*{segment.chain.count for segment in segments}, worst)
"""


@pytest.mark.parametrize(
    "environment", [{"OMP_THREAD_LIMIT": "1"}, {"OMP_THREAD_LIMIT": "3", "OMP_DYNAMIC": "true"}], ids=["one", "three"]
)
def test_a_team_that_is_smaller_than_asked_for(environment: dict[str, str]) -> None:
    out, _ = python(CHECK, 5, 3, **environment)
    count, worst = out.split()
    assert count == "5"
    assert float(worst) <= 1e-12


def test_four_threads_beside_a_busy_neighbour() -> None:
    out, _ = python(CHECK, 4, 8, "busy", OMP_NUM_THREADS="4")
    count, worst = out.split()
    assert count == "4"
    assert float(worst) <= 1e-12


# Prints how many threads the process has, but for the one that sleeps until memory is to be given back: before, with 1,
# with 2 that have little to do, with 2, with torch's own 2 beside, with 3, and with 1 again.
COUNT = """
import os
import threading
import torch
import plait
from plait.kernels import pool

layer, x = plait.LSTM(8, 80, engine="fused"), torch.randn(9, 20, 8)

def tasks(count, run):
    torch.set_num_threads(count)
    for _ in range(3):
        run()
    print(len(os.listdir("/proc/self/task")) - sum(thread.name == pool.NAME for thread in threading.enumerate()))

def ours():
    layer(x)[0].sum().backward()

def little():
    layer(x[:1, :1])[0].sum().backward()

def theirs():
    (torch.ones(1 << 20) * 2).requires_grad_().sum().backward()

def nothing():
    (torch.ones(1, requires_grad=True) * 2).backward()

for count, run in ((1, nothing), (1, ours), (2, little), (2, ours), (2, theirs), (3, ours), (1, ours)):
    tasks(count, run)
"""


@needs_tasks
@needs_threads
def test_no_more_threads_than_torch_has() -> None:
    """One beside the caller for 2, and the very same one for torch's own work. Three need three CPUs."""
    before, *after = map(int, python(COUNT)[0].split())
    most = min(3, system.cpus()) - 1
    assert after[:5] == [before, before, before + min(1, most), before + 1, before + max(1, most)]
    assert after[5] <= before + 2


# Rank 0 prints how far one step of both ranks is from one of a single process on the whole batch, and how far it went.
TRAIN = """
import copy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import plait
from plait.ladder.compare import worst
from plait.kernels.launch import choices

choices.WORTH_A_TEAM = 0

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = plait.GRU(8, 40, 2, bidirectional=True, engine="fused"), nn.Linear(80, 1)

    def forward(self, x):
        return self.head(self.layer(x)[0])

def step(model, x, target):
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    (model(x) - target).square().mean().backward()
    optimiser.step()
    return [p.detach() for p in model.parameters()]

dist.init_process_group("gloo")
torch.manual_seed(0)
model, x, target = Model().double(), torch.randn(6, 10, 8).double(), torch.randn(6, 10, 1).double()
before, alone = [p.detach().clone() for p in model.parameters()], copy.deepcopy(model)
mine = slice(dist.get_rank(), None, 2)
found = step(DistributedDataParallel(model), x[:, mine], target[:, mine])
if dist.get_rank() == 0:
    print(worst(found, step(alone, x, target)), worst(found, before))
dist.destroy_process_group()
"""


def test_two_ranks_train_as_one_process() -> None:
    port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "2", **port}
    ranks = [start(TRAIN, RANK=str(rank), **environment) for rank in range(2)]
    (out, _), (nothing, _) = map(finish, ranks)
    assert nothing == ""
    deviation, change = map(float, out.split())
    assert deviation <= 1e-10
    assert change > 1e-3


FORK = """
import os
import torch
import plait
from plait.kernels.launch import choices

choices.WORTH_A_TEAM = 0
torch.set_num_threads(2)
layer = plait.GRU(6, 19, 2, engine="fused")
y, _ = layer(torch.randn(5, 8, 6))
child = os.fork()
if child == 0:
    y.sum().backward()  # the launch was planned for two threads; here there is one
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_fork
def test_the_way_back_after_a_fork() -> None:
    out, _ = finish(start(FORK))
    assert out.split() == ["3"]
