"""How much memory the system has left."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

ROOT = Path("/")
VERSIONS = (  # of control groups: what names the group, where it is, and the files with its limit and its use
    ("", "sys/fs/cgroup", "memory.max", "memory.current"),
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
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
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for _, kinds, group in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        for kind, place, most, used in VERSIONS:
            # in a container the path may be the host's; the top folder is the container's own
            inside = PurePosixPath(group.lstrip("/"))
            for folder in (root / place / p for p in (inside, *inside.parents) if kind in kinds.split(",")):
                with suppress(OSError, ValueError):  # no limit here
                    limit, taken = int((folder / most).read_text()), int((folder / used).read_text())
                    yield limit - taken + given_back(folder)


def given_back(group: Path) -> int:
    pairs = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    return sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in GIVEN_BACK)
