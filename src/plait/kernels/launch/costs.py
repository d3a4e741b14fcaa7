"""What work costs on this machine: a few numbers, measured once and stored with the compiled code.

They decide whether the kernels or torch.mm compute a product, how threads share a walk, and when a team is worth
calling. So they decide the order of some sums. A run keeps the numbers that it began with, and all its ranks use them.
"""

import ctypes
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from timeit import repeat
from typing import Any, NamedTuple

import torch

from ...errors import PlaitError
from ..emit.target import Form, Target
from . import compiler, threads
from .cache import opened

TIMES = 5  # that each is measured; the shortest counts
WORK = 1 << 17  # multiplications of a tile whose rate is measured: it takes longer than its call, but reads little
LONG = 8192  # terms of sums whose panels come from the last cache, or at the least from the second
MOST_OF_A_TEAM = 1e-5  # seconds
SHARE = 2  # of a core's cache, one part in so many is for weights


class Costs(NamedTuple):
    """Of float32. The defaults were measured on a core with vectors of 256 bits."""

    rate: float = 40e9  # multiplications with additions a second, of one thread
    stream: float = 80e9  # bytes of weights a second that come from the last cache during the arithmetic
    cache: float = 1 << 18  # bytes of weights that stay in the cache of a core
    team: float = 3e-6  # seconds to call a team of threads, or for one meeting of it
    mm: float = 34e9  # of torch.mm: multiplications with additions a second, of one thread
    thin: float = 8e9  # the same for few columns


BUILT_IN = Costs()
_used: Costs | None = None


def use(found: Any) -> None:
    """The numbers of a run, as it has stored them."""
    global _used
    is_whole = isinstance(found, dict) and found.keys() == BUILT_IN._asdict().keys()
    if not (is_whole and all(isinstance(v, int | float) and math.isfinite(v) and v > 0 for v in found.values())):
        raise PlaitError(f"costs {found!r:.60}: expected a number above 0 for each of {', '.join(Costs._fields)}.")
    _used = Costs(**found)


def are_used(found: Any) -> bool:
    return _used is not None and _used._asdict() == found


@contextmanager
def held(found: Any) -> Iterator[None]:
    """Within this block, the numbers of a run."""
    global _used
    before = _used
    use(found)
    try:
        yield
    finally:
        _used = before


def of_this_process(form: Form) -> Costs:
    """Those of the run; else those of this machine, which are measured if the cache has none. form: to measure with"""
    global _used
    if _used is None:
        _used = of_this_machine(form)
    return _used


def of_this_machine(form: Form) -> Costs:
    name = f"{compiler.key('costs', str(torch.__version__), repr(form.target), str(torch.get_num_threads()))}.json"
    with opened() as cache:
        stored = cache.read(name)
        if stored is not None:
            return Costs(**json.loads(stored))
        if cache.why_not:
            return BUILT_IN
        costs = measured(form)
        return BUILT_IN if cache.write(name, json.dumps(costs._asdict()).encode()) else costs


# --- measuring
def shortest(run: Callable[[], object], times: int = 1) -> float:
    """Seconds of a call, of which so many are measured together."""
    return min(repeat(run, repeat=TIMES + 1, number=times)) / times


def terms(target: Target) -> int:
    """Of the sums of a full tile that makes WORK multiplications. Smaller tiles have longer sums."""
    return min(LONG, WORK // (target.rows * target.width))


def measured(form: Form) -> Costs:
    target, count = form.target, torch.get_num_threads()
    compiler.shared()  # it takes longest, and the user is told of it first, with or without this measurement
    product = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 9)(compiler.products(target)["plait_product"])
    most = target.panels(1)  # panels that one row takes at once
    kind = torch.float64 if target.double else torch.float32
    panels = torch.ones(most * (LONG + 1) * target.width, dtype=kind)
    rows = torch.ones(target.rows * LONG, dtype=kind)
    results = torch.empty(most * target.rows * target.width, dtype=kind)

    def tile(n: int, some: int, depth: int, times: int) -> float:
        stride = (depth + 1) * target.width * target.size
        places = (depth * target.size, target.size, depth, panels.data_ptr(), stride, results.data_ptr(), 0)
        return shortest(lambda: product(32 * n + 2 * some, rows.data_ptr(), *places), times)

    scale = 2 if target.double else 1  # twice as many short numbers fit into a vector
    each, depth = target.rows * target.width, terms(target)
    deep, flat = (tile(target.rows, 1, some, 50) for some in (depth, depth // 2))
    work = scale * each * depth
    rate = min(work / 2 / max(deep - flat, 1e-9), 2 * work / deep)  # the difference is without what a call takes
    stream = most * LONG * target.width * target.size / tile(1, most, LONG, 1)

    def mm(M: int, K: int, N: int) -> float:
        a, b, c = (torch.ones(shape) for shape in ((M, K), (K, N), (M, N)))
        return shortest(lambda: torch.mm(a, b, out=c))

    medium, few = (1024, 256, 256), (1024, 256, 8)
    return Costs(
        rate=rate,
        stream=stream,
        cache=cache_of_a_core() or BUILT_IN.cache,
        team=team(count) or BUILT_IN.team,
        mm=math.prod(medium) / mm(*medium) / count,
        thin=math.prod(few) / mm(*few) / count,
    )


def cache_of_a_core() -> float | None:
    """Bytes of it that are for weights. Linux says how large the second cache is, and who shares it."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(text.removesuffix("K")) * 1024 / SHARE
    except (OSError, ValueError):
        return None


def team(count: int) -> float | None:
    """Seconds for a team that does nothing."""
    omp = threads.openmp()
    nothing = threads.sched_yield()  # any function that returns soon
    if omp is None or count == 1 or not nothing or threads.threads() == 1:
        return None
    start = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(omp.parallel)
    seconds = min(shortest(lambda: start(nothing, 0, count, 0)) for _ in range(TIMES))
    return min(seconds, MOST_OF_A_TEAM)  # else another process has the cores right now
