"""What the system leaves to this process, read from made-up files."""

import os
from pathlib import Path

import pytest

from plait import system


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture(autouse=True)
def sixteen(monkeypatch) -> None:
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    else:
        monkeypatch.setattr(os, "cpu_count", lambda: 16)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16),
        ({"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 16),
        ({"sys/fs/cgroup/a/b/cpu.max": "200000 100000\n"}, 2),
        ({"sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 2),
        ({"sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        ({"sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, 16),
    ],
    ids=["none", "max", "two", "one and a half", "of the group above", "in a container", "nonsense"],
)
def test_cpus_of_control_groups(tmp_path, files, expected) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", **files})
    assert system.cpus(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 16), ("400000", 4), ("10000", 1)])
def test_cpus_of_control_groups_of_the_first_version(tmp_path, quota, expected) -> None:
    folder = "sys/fs/cgroup/cpu/docker/x"
    write(tmp_path, {"proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n1:name=systemd:/\n"})
    write(tmp_path, {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000"})
    assert system.cpus(tmp_path) == expected


def test_cpus_are_those_of_the_affinity(tmp_path) -> None:
    assert system.cpus(tmp_path) == 16  # no control groups at all
