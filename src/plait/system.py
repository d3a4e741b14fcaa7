"""What the system leaves to this process: memory and CPUs."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

ROOT = Path("/")
TOPS = ("", "sys/fs/cgroup"), ("memory", "sys/fs/cgroup/memory"), ("cpu", "sys/fs/cgroup/cpu")  # of control groups
# memory of a group that the system takes back when it needs it
GIVEN_BACK = ("inactive_file", "active_file", "slab_reclaimable")


def available(root: Path = ROOT) -> int | None:
    """Free bytes; on macOS, those of the machine. None where the system does not say."""
    try:
        lines = (line.partition(":") for line in (root / "proc/meminfo").read_text().splitlines())
        found = int({name: value for name, _, value in lines}["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        try:
            found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, AttributeError):  # AttributeError: a system that has no sysconf
            return None
    return max(0, min([found, *left_in_groups(root)]))


def left_in_groups(root: Path) -> Iterator[int]:
    """Free bytes within the limit of each control group of this process."""
    for folder in groups(root):
        for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with suppress(OSError, ValueError):  # no limit here
                limit, taken = int((folder / most).read_text()), int((folder / used).read_text())
                yield limit - taken + given_back(folder)


def given_back(group: Path) -> int:
    pairs = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    return sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in GIVEN_BACK)


def cpus(root: Path = ROOT) -> int:
    """How many CPUs this process may keep busy: those of its affinity, and no more than its control groups give it."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS and Windows
    found = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min([found, *cpus_of_groups(root)]))


def cpus_of_groups(root: Path) -> Iterator[int]:
    for folder in groups(root):
        with suppress(OSError, ValueError):  # no limit here: "max 100000"
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            yield math.ceil(quota / period)
        with suppress(OSError, ValueError):
            quota = int((folder / "cpu.cfs_quota_us").read_text())
            period = int((folder / "cpu.cfs_period_us").read_text())
            if quota > 0:  # -1: no limit
                yield math.ceil(quota / period)


def groups(root: Path) -> Iterator[Path]:
    """The folders of the control groups of this process, of both versions, and of those that contain them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for _, kinds, group in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        # in a container the path may be the host's; the top folder is the container's own
        inside = PurePosixPath(group.lstrip("/"))
        for kind, top in TOPS:
            if kind in kinds.split(","):
                yield from (root / top / p for p in (inside, *inside.parents))
