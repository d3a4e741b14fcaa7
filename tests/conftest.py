import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import settings

from plait import cli

# What the commands print is looked at as on a narrow terminal.
os.environ.setdefault("COLUMNS", "80")
# Property tests draw the same each time: what fails in one run fails in the next. The slow ones may draw anew.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None)
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
# A shell starts what runs behind an `&` with Ctrl-C ignored. Tests send themselves that signal.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("random" if config.getoption("markexpr") == "slow" else "fixed")


def pytest_collection_finish() -> None:
    """What was imported stays: no garbage collection has to look at it again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # else Triton says at the exit that something of it is left


@pytest.fixture(autouse=True)
def fresh_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a command that is not told otherwise makes its run folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def plait(empty_folder: Path, monkeypatch, capsys):
    """Runs a command in an empty folder -> exit code, stdout, stderr. It leaves the threads and costs as they were."""
    from plait.kernels.launch import costs

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["plait", *args])
        threads, used = torch.get_num_threads(), costs._used
        try:
            with pytest.raises(SystemExit) as end:
                cli.main()
        finally:
            torch.set_num_threads(threads)
            costs._used = used
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture
def refused(plait, empty_folder: Path):
    """A command that must be refused: exit code 2, one sentence, no traceback, and nothing left behind."""

    def run(*args: str) -> str:
        before = sorted(p for p in empty_folder.rglob("*"))
        code, out, err = plait(*args)
        assert code == 2, (out, err)
        assert out == ""
        assert "Traceback" not in err
        assert err.startswith("plait: ")
        assert err.count("\n") == 1
        assert sorted(p for p in empty_folder.rglob("*")) == before
        return err

    return run


@pytest.fixture
def set_threads(monkeypatch) -> Iterator[Callable[[int], None]]:
    """torch.set_num_threads, and as many are called for the smallest work."""
    from plait import engines
    from plait.kernels.launch import choices

    monkeypatch.setattr(choices, "WORTH_A_TEAM", 0)
    plans, before = engines.get("fused").plans, torch.get_num_threads()
    plans.clear()  # they remember what was worth it
    yield torch.set_num_threads
    plans.clear()
    torch.set_num_threads(before)


@pytest.fixture
def dynamo() -> Iterator[ModuleType]:
    """torch.compile, as it is in a new process."""
    import torch._dynamo as dynamo

    dynamo.reset()
    yield dynamo
    dynamo.reset()
