"""Memory that survives a step: who gets it again, what outlives a step, threads, forks, and what is given back."""

import copy
import io
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import plait
from plait import system
from plait.kernels import pool
from plait.layers import recurrent
from processes import PATIENCE, in_child, needs_fork, python

SHAPE = (64, 1024)  # twice what is least, in float32
BYTES = 64 * 1024 * 4
needs_counts = pytest.mark.skipif(pool.use_count is None, reason=f"torch {torch.__version__} does not count references")


@pytest.fixture(autouse=True)
def fresh(monkeypatch) -> Iterator[None]:
    """With nothing in the pool, and no thread that looks after it in the middle of a test."""
    monkeypatch.setattr(pool, "Thread", Unstarted)
    pool._pool.__init__()
    yield
    pool._pool.__init__()


class Unstarted:
    def __init__(self, **_: Any) -> None: ...
    def start(self) -> None: ...


def like(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(1, dtype=dtype)


def made(*shape: int) -> Tensor:
    return pool.empty(like(), *(shape or SHAPE))


def blocks() -> list[pool.Block]:
    return pool._pool.blocks()


# --- the same memory again -------------------------------------------------------------------------------------------
@needs_counts
def test_what_nobody_has_is_handed_out_again() -> None:
    first = made()
    place = first.data_ptr()
    second = made()
    assert second.data_ptr() != place
    del first
    assert made().data_ptr() == place
    assert made().data_ptr() == place
    assert len(blocks()) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
@pytest.mark.parametrize("shape", [(1 << 20,), (1024, 1024), (7, 300, 411), (1, 1 << 18, 1), (0, 5), (3, 2), ()])
def test_it_is_what_new_empty_is(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    found, expected = pool.empty(like(dtype), *shape), like(dtype).new_empty(shape)
    for of in (
        *(torch.Tensor.size, torch.Tensor.stride, torch.Tensor.storage_offset, torch.Tensor.is_contiguous),
        *(lambda t: t.dtype, lambda t: t.device, lambda t: t.requires_grad, lambda t: t.is_leaf, lambda t: t._base),
        *(lambda t: type(t), lambda t: t.untyped_storage().nbytes(), lambda t: t.untyped_storage().resizable()),
    ):
        assert of(found) == of(expected)
    assert found.data_ptr() % 64 == 0 or not found.numel()


@needs_counts
def test_large_ones_come_from_the_pool_and_small_ones_do_not() -> None:
    made(pool.LEAST // 4 - 1)
    assert not blocks()
    made(pool.LEAST // 4)
    assert [block.size for block in blocks()] == [pool.LEAST]


class Named(torch.Tensor):
    pass


def test_what_is_no_plain_tensor_of_the_cpu_is_left_to_torch() -> None:
    meta = pool.empty(torch.empty(1, device="meta"), *SHAPE)
    assert (meta.device.type, meta.shape) == ("meta", SHAPE)
    assert type(pool.empty(torch.empty(1).as_subclass(Named), *SHAPE)) is Named
    assert not blocks()


@needs_counts
def test_a_parameter_and_other_default_devices() -> None:
    weight = nn.Parameter(like())
    with torch.device("meta"):
        found = pool.empty(weight, *SHAPE)
    assert found.device.type == "cpu"
    assert type(found) is torch.Tensor
    assert len(blocks()) == 1


@needs_counts
def test_sizes_that_are_alike_share_their_memory_and_waste_little() -> None:
    """A block is never larger than twice the tensor, and what is repeated fits exactly."""
    random, held = Random(0), 0
    for _ in range(2000):
        n = random.randint(1 << 15, 1 << 19)
        t = made(n)
        assert t.nbytes <= t.untyped_storage().nbytes() <= t.nbytes * 2
        held = max(held, len(blocks()))
        assert all(block.storage.nbytes() == block.size for block in blocks())
        del t
    assert held <= 4 * 8 + 1  # a shelf each, four powers of two
    pool.release()
    for _ in range(3):
        for n in (100_000, 200_000):
            assert made(n).untyped_storage().nbytes() == 4 * n


@needs_counts
def test_a_tensor_prefers_the_block_of_its_own_size() -> None:
    """Then the block is less than an eighth larger."""
    several = [made((1 << 17) + (k << 14) - 1) for k in range(1, 9)]  # the largest of each shelf
    del several
    random = Random(0)
    for _ in range(300):
        t = made(random.randint(1 << 17, (1 << 18) - 1))
        assert t.untyped_storage().nbytes() < t.nbytes * 9 / 8
        del t
    assert len(blocks()) == 8


@needs_counts
def test_a_larger_block_that_is_free_serves_before_a_new_one_is_made() -> None:
    """The smallest that is free, and none that is more than twice as large."""
    sizes = (100_000, 120_000, 150_000, 200_000, 200_001)
    several = [made(n) for n in sizes]
    places = dict(zip(sizes, [t.data_ptr() for t in several], strict=True))
    del several
    held = [made(100_000) for _ in range(4)]
    assert [t.data_ptr() for t in held] == [places[n] for n in sizes[:4]]
    new = made(100_000)
    assert new.data_ptr() not in places.values()
    assert made(200_001).data_ptr() == places[200_001]
    del held[1:]
    assert [made(n).data_ptr() for n in sizes[1:3]] == [places[n] for n in sizes[1:3]]


@needs_counts
def test_a_block_that_is_too_small_stays_while_a_larger_one_serves() -> None:
    """If it left, a loop that needs both would make it again and again."""
    several = [made(n) for n in (100_000, 150_000)]
    places = [t.data_ptr() for t in several]
    del several
    assert made(100_001).data_ptr() == places[1]
    assert [t.data_ptr() for t in (made(100_000), made(150_000))] == places
    held = made(150_000)
    made(100_001)  # now no other is free: the new one takes the place of the one that is too small
    assert sorted(block.size for block in blocks()) == [400_004, 600_000]
    del held


@needs_counts
def test_many_of_one_size_are_not_all_looked_at(monkeypatch) -> None:
    several = [made() for _ in range(3 * pool.LOOKED_AT)]
    looked = []
    monkeypatch.setattr(pool, "getrefcount", lambda storage: looked.append(storage) or 0)  # all are in use
    monkeypatch.setattr(pool._pool, "make_room", lambda _: None)
    several.append(made())
    assert len(looked) == 2 * pool.LOOKED_AT + 1  # for one that serves, for one to replace, and of the new one
    monkeypatch.undo()
    looked.clear()
    several.pop()
    places = {t.data_ptr() for t in several}
    assert len(places) == len(several)
    several.clear()
    assert {t.data_ptr() for t in [made() for _ in range(len(places))]} == places


@needs_counts
def test_memory_is_asked_for_once_more_when_it_has_run_out(monkeypatch) -> None:
    made()
    fails, storage = [True], torch.UntypedStorage

    def scarce(*args: Any, **options: Any) -> torch.UntypedStorage:
        if fails.pop() if fails else False:
            raise RuntimeError("can't allocate memory")
        return storage(*args, **options)

    monkeypatch.setattr(torch, "UntypedStorage", scarce)
    assert made(1 << 20).shape == (1 << 20,)
    assert [block.size for block in blocks()] == [4 << 20]  # the other one was given back
    fails += [True, True]
    with pytest.raises(RuntimeError, match="allocate"):
        made(1 << 21)


# --- what outlives a step --------------------------------------------------------------------------------------------
class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(kept)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        return d * ctx.saved_tensors[0].sum(), None


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "the tensor": lambda t: t,
    "a view": lambda t: t[3:, 5],
    "a detached tensor": lambda t: t.detach(),
    "another dtype": lambda t: t.view(torch.int32),
    "a NumPy array": lambda t: t.numpy()[3:],
    "DLPack": lambda t: torch.utils.dlpack.to_dlpack(t),
    "NumPy by DLPack": lambda t: np.from_dlpack(t),
    "its storage": lambda t: t.untyped_storage(),
    "its typed storage": lambda t: t.storage(),
    "a part of its storage": lambda t: torch.empty(0).set_(t.untyped_storage(), 7, (3,)),
    "a graph": lambda t: Saved.apply(torch.ones(3, requires_grad=True), t),
    "a product's graph": lambda t: torch.ones(SHAPE, requires_grad=True) * t,
    "a parameter": lambda t: nn.Parameter(t),
    "a gradient": lambda t: setattr(p := nn.Parameter(torch.ones(SHAPE)), "grad", t) or p,
    "a closure": lambda t: lambda: t,
}


@needs_counts
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("how", HOLDERS)
def test_what_is_held_is_not_handed_out(how: str) -> None:
    t = made()
    place, held = t.data_ptr(), HOLDERS[how](t)
    del t
    assert place not in [made().data_ptr() for _ in range(3)]
    del held
    assert place in [t.data_ptr() for t in (made(), made())]


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "larger": lambda t: t.resize_(3 * BYTES),
    "empty": lambda t: t.untyped_storage().resize_(0),
    "smaller": lambda t: t.untyped_storage().resize_(BYTES // 2),
    "shared": lambda t: t.share_memory_(),  # other processes may still read it when nobody here does
}


@needs_counts
@pytest.mark.parametrize("how", CHANGES)
def test_a_block_that_is_no_longer_what_it_was_leaves(how: str) -> None:
    t = made()
    CHANGES[how](t)
    (block,) = blocks()
    del t
    again = made().fill_(1)
    assert again.untyped_storage().nbytes() == BYTES
    assert not again.is_shared()
    assert blocks() != [block]
    assert len(blocks()) == 1


@needs_counts
def test_a_tensor_of_the_pool_is_saved_and_copied_as_any_other() -> None:
    t, buffer = made().normal_(), io.BytesIO()
    torch.save(t, buffer)
    assert buffer.tell() < 1.01 * BYTES + 2000
    buffer.seek(0)
    for twin in (torch.load(buffer), pickle.loads(pickle.dumps(t)), copy.deepcopy(t)):
        assert torch.equal(twin, t)
        assert twin.data_ptr() != t.data_ptr()


@needs_counts
def test_inference_mode_leaves_nothing_behind() -> None:
    with torch.inference_mode():
        t = made()
        assert t.is_inference()
        place = t.data_ptr()
        del t
    t = made()
    assert not t.is_inference()
    assert t.data_ptr() == place
    with torch.inference_mode(), pytest.raises(RuntimeError):
        (torch.ones(1, requires_grad=True) * made()[0]).sum().backward()
    t.requires_grad_().mul(2).sum().backward()


def test_new_memory_is_filled_where_torch_was_told_to() -> None:
    made().fill_(1)
    torch.use_deterministic_algorithms(True)
    try:
        assert made().isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


# --- layers ----------------------------------------------------------------------------------------------------------
def steps(layer: nn.Module, inputs: list[Tensor], keep: bool) -> list[list[Tensor]]:
    """Outputs and gradients of each, kept beyond the step or copied at once."""
    result = []
    for x in inputs:
        layer.zero_grad()
        x = x.clone().requires_grad_()
        y, (h, c) = layer(x)
        (y.square().sum() + h.sum() + c.sum()).backward()
        found = [y, h, c, x.grad, *(p.grad for p in layer.parameters())]
        result.append(found if keep else [t.detach().clone() for t in found])
    return result


@needs_counts
@pytest.mark.parametrize("bidirectional", [False, True])
def test_results_that_are_kept_stay_as_they_were(monkeypatch, bidirectional: bool) -> None:
    monkeypatch.setattr(pool, "LEAST", 1)
    layer = plait.LSTM(5, 9, 2, bidirectional=bidirectional, engine="fused")
    inputs = [torch.randn(6, 4, 5) for _ in range(5)]
    for copied, kept in zip(steps(layer, inputs, False), steps(layer, inputs, True), strict=True):
        for a, b in zip(copied, kept, strict=True):
            assert torch.equal(a, b)


@needs_counts
def test_a_steady_step_needs_no_new_block(monkeypatch) -> None:
    layer, x = plait.LSTM(64, 96, 2, engine="fused"), torch.randn(20, 32, 64, requires_grad=True)

    def step() -> None:
        layer.zero_grad()
        layer(x)[0].sum().backward()

    step()
    step()
    monkeypatch.setattr(pool, "Block", None)
    step()
    assert sum(block.size for block in blocks()) > BYTES
    held = {block.address for block in blocks()}
    assert layer.weight_hh_l0.grad.data_ptr() in held


@needs_counts
def test_what_the_upper_layer_kept_serves_a_gradient_of_the_lower_one(monkeypatch) -> None:
    monkeypatch.setattr(recurrent, "MOST_TOGETHER", 0)  # a function for each layer, as large ones have
    layer, x = plait.LSTM(96, 96, 2, engine="fused"), torch.randn(12, 8, 96)

    def step() -> set[int]:
        layer.zero_grad()
        layer(x)[0].sum().backward()
        return {p.grad.untyped_storage().nbytes() for p in (layer.weight_ih_l0, layer.weight_hh_l0)}

    own = layer.weight_hh_l0.nbytes
    assert own < max(step()) <= 2 * own
    of_tensors = [block for block in blocks() if block.shelf != pool.WORKSPACES]  # one more if two threads run it
    assert len(of_tensors) == 5  # two tapes and three of the four gradients
    monkeypatch.setattr(pool, "Block", None)
    step()


# Prints how many pages a step touches for the first time, when it has run a few times.
FAULTS = """
import resource, sys, torch
from plait.bench.core.steps import Case
from plait.bench.core.steps import contenders

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

torch.set_num_threads(int(sys.argv[2]))
step = contenders(Case("lstm", *map(int, sys.argv[1].split(","))), "fused")["plait"]
for _ in range(5):
    step()
before = faults()
for _ in range(10):
    step()
print((faults() - before) / 10)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted as Linux counts them")
@needs_counts
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", ["128,30,8,128,2", "64,128,128,256,1", "20,35,650,650,2"])
def test_a_steady_step_touches_no_fresh_page(shape: str, threads: int) -> None:
    assert float(python(FAULTS, shape, str(threads))[0]) < 20


# --- other threads ---------------------------------------------------------------------------------------------------
@needs_counts
def test_two_threads_never_have_the_same_block() -> None:
    """Each writes its number all over, lets others run, and reads what is there."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    at_once = threading.Barrier(4)

    def use(number: int) -> int:
        random, wrong = Random(number), 0
        at_once.wait(PATIENCE)
        held: list[Tensor] = []
        for _ in range(400):
            held.append(made(random.randint(1 << 15, 1 << 16)).fill_(number))
            if random.random() < 0.5:
                wrong += sum(bool((t != number).any()) for t in held)
                del held[: random.randint(0, len(held))]
            if random.random() < 0.01:
                pool.release()
            block = pool.workspace(random.choice([1000, 1 << 21, 1 << 22]))
            start = torch.empty(0, dtype=torch.uint8).set_(block.storage)[:1000].fill_(number)
            time.sleep(0)
            wrong += bool((start != number).any())
            del start
            pool.put(block)
        return wrong

    try:
        with ThreadPoolExecutor(4) as team:
            assert list(team.map(use, range(4))) == [0] * 4
    finally:
        sys.setswitchinterval(interval)


def test_a_workspace_belongs_to_who_has_it() -> None:
    one, other = pool.workspace(10), pool.workspace(10)
    assert one is not other
    pool.put(one)
    assert pool.workspace(1000) is one
    pool.put(larger := pool.workspace(3 << 20))
    assert pool.workspace(2 << 20) is larger
    assert pool.workspace(1 << 30).size == 1 << 30


MB = 1 << 20


@pytest.mark.parametrize(
    ("needs", "left"),
    [
        ((14, 7), [14]),
        ((7, 14), [14]),
        ((9, 17, 8, 15, 33), [33]),
        ((2, 30, 32), [32]),
        ((2, 30, 33), [2, 33]),  # 33 is far too large for 2
        ((33, 2, 30), [2, 33]),
        ((600, 33, 2, 35), [2, 35, 600]),
    ],
)
def test_one_workspace_serves_all_calls_of_a_thread(monkeypatch, needs: tuple[int, ...], left: list[int]) -> None:
    def step() -> None:
        for n in needs:
            block = pool.workspace(n * MB)
            assert n * MB <= block.size <= 16 * n * MB
            pool.put(block)

    step()
    step()
    assert sorted(block.size for block in blocks()) == [n * MB for n in left]
    monkeypatch.setattr(pool, "Block", None)
    step()


def test_workspaces_of_other_threads_are_replaced_too() -> None:
    several = [pool.workspace(n * MB) for n in (1 << 5, 3, 4)]
    for block in several:
        pool.put(block)
    pool.put(pool.workspace(50 * MB))
    assert sorted(block.size for block in blocks()) == [3 * MB, 50 * MB]


def test_without_counts_tensors_are_torchs_own_and_workspaces_are_kept(monkeypatch) -> None:
    monkeypatch.setattr(pool, "use_count", None)
    monkeypatch.setattr(pool, "is_on", pool.is_on.__wrapped__)
    assert not pool.is_on()
    assert made().shape == SHAPE
    assert not blocks()
    pool.put(block := pool.workspace(10))
    assert pool.workspace(10) is block


@pytest.mark.parametrize(("count", "refs"), [(lambda _: 2, sys.getrefcount), (lambda _: 1, lambda _: 2)])
def test_counts_that_mean_something_else_are_not_relied_on(monkeypatch, count: Any, refs: Any) -> None:
    monkeypatch.setattr(pool, "use_count", count)
    monkeypatch.setattr(pool, "getrefcount", refs)
    assert not pool.is_on.__wrapped__()


# --- forks -----------------------------------------------------------------------------------------------------------
@needs_counts
@needs_fork
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    kept, free = made().fill_(3), made()
    assert len(blocks()) == 2
    del free

    def child() -> bool:
        torch.set_num_threads(1)  # torch's other threads are not there
        empty = not blocks() and not pool._pool.watched
        mine = [made().fill_(5) for _ in range(3)]
        return empty and bool((kept == 3).all()) and len({t.data_ptr() for t in (kept, *mine)}) == 4

    assert in_child(child)
    assert (kept == 3).all()
    assert len(blocks()) == 2


@needs_fork
def test_a_fork_in_the_middle_of_the_pools_work() -> None:
    """Other threads are then nowhere: nobody waits for them."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            made()
            pool.release()

    def child() -> bool:
        torch.set_num_threads(1)
        return bool(made().fill_(1).sum() == SHAPE[0] * SHAPE[1])

    other = threading.Thread(target=work)
    other.start()
    try:
        for _ in range(5):
            assert in_child(child, patience=20)
    finally:
        stop.set()
        other.join()


class Made(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return made().fill_(index)


@needs_fork
def test_what_workers_make_arrives_whole() -> None:
    """A worker shares its tensor's memory with the parent, and goes on."""
    made()
    loader = DataLoader(Made(), batch_size=None, num_workers=2, timeout=PATIENCE, multiprocessing_context="fork")
    arrived = list(loader)
    for k, t in enumerate(arrived):
        assert (t == k).all()


def send(queue: Any, done: Any) -> None:
    torch.set_num_threads(1)  # in a forked process torch's other threads are not there
    for k in range(6):
        queue.put(made().fill_(k))
    done.wait(PATIENCE)


@needs_fork
def test_what_is_sent_to_another_process_stays_as_it_was() -> None:
    context = torch.multiprocessing.get_context("fork")
    queue, done = context.Queue(), context.Event()
    sender = context.Process(target=send, args=(queue, done))
    sender.start()
    arrived = [queue.get(timeout=PATIENCE) for _ in range(6)]
    assert [t.mean().item() for t in arrived] == list(range(6))
    done.set()
    sender.join(PATIENCE)
    assert sender.exitcode == 0


# --- giving back -----------------------------------------------------------------------------------------------------
@needs_counts
def test_release_gives_back_what_is_not_in_use() -> None:
    kept, other = made().fill_(3), made()
    del other
    assert plait.release() == BYTES
    assert not blocks()
    assert plait.release() == 0
    assert (kept == 3).all()
    del kept
    assert plait.release() == 0  # it went by itself


def test_release_gives_back_the_small_workspaces_and_counts_them() -> None:
    small, other, large = pool.workspace(10), pool.workspace(10), pool.workspace(3 * MB)
    pool.put(small)
    assert plait.release() == pool.LEAST_WORKSPACE
    assert plait.release() == 0
    pool.put(other)
    pool.put(large)  # they were in use: the pool has them again
    assert pool.workspace(10) is other
    pool.put(other)
    assert plait.release() == pool.LEAST_WORKSPACE + 3 * MB
    assert plait.release() == 0


# Prints by how many MB the memory of the process grows, where malloc takes all from one piece: when a workspace of 20
# MB is replaced by one of 30, and when the block of a tensor of 20 MB is replaced by one that is slightly larger.
REPLACED = """
import ctypes, torch
from plait.bench.core.memory import resident
from plait.kernels import pool

ctypes.CDLL(None).mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
between = []

def workspace(size):
    block = pool.workspace(size)
    ctypes.memset(block.address, 1, size)
    pool.put(block)

def tensor(size):
    pool.empty(torch.empty(1), size // 4).fill_(1)

for use, sizes in ((workspace, (20, 30)), (tensor, (20, 20.5))):
    before = resident("VmRSS")
    for size in sizes:
        use(int(size * 1e6))
        between.append(torch.ones(100))  # so that what is freed is not at the end of malloc's memory
    print((resident("VmRSS") - before) * 1024 // 10**6)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status is Linux's")
@needs_counts
def test_a_block_that_is_replaced_is_not_there_beside_the_new_one() -> None:
    workspace, tensor = map(int, python(REPLACED)[0].split())
    assert 28 <= workspace < 35
    assert 18 <= tensor < 25


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status is Linux's")
@needs_counts
def test_release_gives_memory_back_to_the_system() -> None:
    from plait.bench.core.memory import resident

    for n in (1 << 18, 1 << 22, 1 << 24):
        made(n).fill_(1)
    before = resident("VmRSS")
    assert plait.release() == 4 * (1 << 18 | 1 << 22 | 1 << 24)
    assert before - resident("VmRSS") > 60_000  # kB, of 85,000


@needs_counts
def test_no_more_lies_free_than_was_in_use() -> None:
    """Other shapes each time, some tensors at once: at most twice what was ever needed is there, and a quarter."""
    random, needed = Random(1), 0
    for _ in range(300):
        sizes = [random.randint(1 << 15, 1 << 20) for _ in range(random.randint(1, 6))]
        step = [made(n) for n in sizes]
        needed = max(needed, sum(t.untyped_storage().nbytes() for t in step))
        assert sum(block.size for block in blocks()) <= (2 + 1 / 4) * needed
        del step
    assert len(blocks()) > 6


@needs_counts
def test_the_longest_unused_go_first_where_memory_is_short(monkeypatch) -> None:
    sizes = [BYTES * k // 8 for k in (8, 9, 10, 11)]
    several = [made(size // 4) for size in sizes]  # in use at once: so they may all lie free
    del several
    for size in reversed(sizes):
        made(size // 4)
    monkeypatch.setattr(system, "available", lambda: 2 * (sizes[0] + sizes[1]) + 2 * BYTES)
    pool._pool.left = 0
    made(BYTES // 2)
    assert {block.size for block in blocks()} == {*sizes[:2], 2 * BYTES}


@needs_counts
def test_what_is_not_used_for_some_time_leaves() -> None:
    kept = made().fill_(3)
    old = made(1 << 20).data_ptr()
    time.sleep(0.01)
    moment = time.monotonic()
    new = made(1 << 18).data_ptr()
    pool._pool.forget(moment)
    assert [block.address for block in blocks()] == [new] != [old]
    assert (kept == 3).all()
    pool._pool.forget(time.monotonic() + 1)
    assert not pool._pool.shelves


# Prints how many threads look after the pool when nothing was made yet; when something was; and after a while, with the
# number of blocks that are left then. The last three twice.
WATCH = """
import threading, time, torch
from plait.kernels import pool
pool.IDLE = 0.2

def watching():
    return sum(thread.name == pool.NAME for thread in threading.enumerate())

found = [watching()]
for _ in range(2):
    kept = pool.empty(torch.empty(1), 1 << 20)
    pool.empty(torch.empty(1), 1 << 19)
    found.append(watching())
    end = time.monotonic() + 60
    while watching() and time.monotonic() < end:
        time.sleep(0.01)
    found += [watching(), len(pool._pool.blocks())]
print(found)
"""


@needs_counts
def test_a_thread_gives_back_what_is_idle_and_ends() -> None:
    assert python(WATCH)[0].strip() == str([0, *[1, 0, 0] * 2])


def test_the_thread_keeps_nobody_from_ending() -> None:
    """And a block that is made when the interpreter is about to end makes no noise."""
    use = "pool.put(pool.workspace(2 << 20))"
    code = f"import atexit; from plait.kernels import pool; atexit.register(lambda: {use}); pool.IDLE = 1e6; {use}"
    assert python(code) == ("", "")


def test_where_no_thread_can_be_had(monkeypatch) -> None:
    class Refused(Unstarted):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pool, "Thread", Refused)
    pool.put(pool.workspace(2 << 20))
    assert not pool._pool.watched
    monkeypatch.setattr(pool, "Thread", Unstarted)
    pool.put(pool.workspace(2 << 20))
    assert pool._pool.watched


def test_a_saved_output_is_not_twice_its_size() -> None:
    plait.release()
    layer = plait.LSTM(64, 128)
    with torch.no_grad():
        layer(torch.randn(100, 15, 64))  # leaves a larger block
        y = layer(torch.randn(51, 15, 64))[0]
    file = io.BytesIO()
    torch.save(y, file)
    assert len(file.getvalue()) < 1.25 * y.nbytes
