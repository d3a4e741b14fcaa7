"""Memory that a step takes at its peak, and pages that it touches first."""

import gc
import sys
from pathlib import Path

from ...kernels import libc, pool
from .steps import Step

if sys.platform != "win32":
    import resource


def extra_memory(step: Step) -> float | None:
    """MB that a step, not the first, takes at its peak, with its gradients, beyond what is there before.

    None where the system does not keep the peak.
    """
    step.clear()
    gc.collect()  # garbage that is freed in the middle of the step would make its peak look smaller
    pool.release()  # the step has to take all that it needs
    libc.trim()
    try:
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        step()
        return (resident("VmHWM") - before) / 1024
    except (OSError, KeyError):
        return None


def pages(step: Step, repeats: int) -> tuple[float, float] | tuple[None, None]:
    """Pages that a step touches first, and milliseconds of system time; None on Windows."""
    if sys.platform == "win32":
        return None, None
    step()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(repeats):
        step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_minflt - before.ru_minflt) / repeats, (after.ru_stime - before.ru_stime) / repeats * 1e3


def resident(field: str) -> int:  # kB
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int({name: value for name, _, value in lines}[field].split()[0])
