"""What several tests of benchmarks need."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from plait.bench.core import peak, turns


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement is one call, and the peak that of two bursts: what the times are is looked at elsewhere."""
    monkeypatch.setattr(turns, "LEAST", 0.0)
    monkeypatch.setattr(peak, "BURSTS", 2)


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """--threads is for the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def book(empty_folder: Path) -> str:
    """Sentences of 1 to 12 words: a third of the slots of a batch is padding, or more."""
    lines = (" ".join(f"w{(3 * k + j) % 17}" for j in range(1 + k * 5 % 12)) for k in range(150))
    Path("book.txt").write_text("\n".join(lines) + "\n")
    return "book.txt"


@pytest.fixture
def rows_of(plait, empty_folder: Path) -> Callable[..., tuple[list[dict], str]]:
    """Runs a benchmark on one thread -> its rows, and what it prints."""

    def run(*args: str) -> tuple[list[dict], str]:
        code, out, _ = plait("bench", *args, "--threads", "1", "--json", "result.json")
        assert code == 0
        result = json.loads(Path("result.json").read_text())
        assert result["environment"]["threads"] == 1
        return result["rows"], out

    return run
