import os
import warnings
from pathlib import Path

import pytest
import torch

# What the commands print is looked at as on a narrow terminal.
os.environ.setdefault("COLUMNS", "80")
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")


@pytest.fixture(autouse=True)
def fresh_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a command that is not told otherwise makes its run folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
