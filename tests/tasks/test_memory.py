"""What is free, as the system and the container say it; and when it is asked."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plait.tasks import memory

MB = 2**20


def system(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A machine with 1000 MB free; the files are those of control groups, by their folder."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {1000 * 1024} kB\n")
    if groups:
        (root / "proc/self/cgroup").write_text(groups)
    for name, content in files.items():
        folder = root / "sys/fs/cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        for line in content.split(";"):
            file, _, text = line.strip().partition("=")
            (folder / file).write_text(text.replace(",", "\n"))
    return root


def group(limit: int, used: int, stat: str = "anon 5") -> str:
    return f"memory.max={limit * MB};memory.current={used * MB};memory.stat={stat}"


def old_group(limit: int, used: int, stat: str) -> str:
    return f"memory.limit_in_bytes={limit * MB};memory.usage_in_bytes={used * MB};memory.stat={stat}"


FILES = f"inactive_file {10 * MB},active_file {20 * MB},slab_reclaimable {5 * MB},slab_unreclaimable {9 * MB}"


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        ("", {}, 1000),
        ("0::/\n", {"": group(100, 60)}, 40),
        ("0::/\n", {"": group(100, 90, FILES)}, 45),  # 35 are given back
        ("0::/\n", {"": group(100, 120)}, 0),  # never below it
        ("0::/\n", {"": f"memory.max=max;memory.current={MB};memory.stat="}, 1000),
        ("0::/\n", {"": group(5000, 60)}, 1000),  # the machine has less
        ("0::/a/b\n", {"a/b": group(300, 100), "a": group(400, 100)}, 200),
        ("0::/a/b\n", {"a/b": group(900, 100), "a": group(400, 100)}, 300),  # it is in a narrower one
        ("0::/outside/of/it\n", {"": group(100, 60)}, 40),  # a container that is told its path outside
        ("4:cpu,memory:/a\n0::/\n", {"memory/a": old_group(200, 50, f"total_active_file {MB},active_file 7")}, 151),
        ("nonsense\n", {}, 1000),
    ],
)
def test_what_is_free(tmp_path: Path, groups: str, files: dict[str, str], free: int) -> None:
    assert memory.available(system(tmp_path, groups, files)) == free * MB


def test_a_system_that_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 3)
    assert memory.available(tmp_path) == 9
    monkeypatch.delattr(os, "sysconf")
    assert memory.available(tmp_path) is None


def test_a_run_is_used_where_it_could_not_be_trained(plait, refused, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("book.txt").write_text("the cat sat on the mat and sat there all day\n" * 40)
    small = ("--epochs", "1", "--hidden", "4", "--layers", "1")
    for line in ("train forecast --out f", "train language --data book.txt --steps 5 --batch 4 --out l"):
        assert plait(*line.split(), *small)[0] == 0
    monkeypatch.setattr(memory, "available", lambda: 3000)
    for line in ("evaluate f", "forecast f --steps 1", "evaluate l", "generate l --length 1"):
        assert plait(*line.split())[0] == 0, line
    for line in ("train forecast --resume f", "train language --resume l"):
        assert re.match("plait: training .* weights on .* of memory is free: lower --hidden", refused(*line.split()))
    monkeypatch.setattr(memory, "available", lambda: 800)
    sentence = "plait: a network of 117 weights needs about 0 MB, and 0 MB of memory is free: end other programs"
    assert refused("evaluate", "f").startswith(sentence)


def test_weights_are_counted_without_torchs_compiler() -> None:
    """Which takes a second to import, and nobody who asks a network for an answer needs it."""
    code = """
import sys
from plait.tasks import memory
from plait.tasks.language_model import LanguageModel
from plait.tasks.settings import LanguageSettings
s = LanguageSettings(data="text", layers=2, hidden=5, embedding=3)
expected = sum(p.numel() for p in LanguageModel(s, 7).parameters())
print(memory.weights_of(lambda: LanguageModel(s, 7)) == expected, "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True False\n", "")
