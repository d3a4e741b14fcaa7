"""docs/ladder.ipynb runs as it is, on a machine without a GPU."""

import base64
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbclient is missing: pip install 'plait[test]'")
nbclient = pytest.importorskip("nbclient", reason="nbclient is missing: pip install 'plait[test]'")
pytest.importorskip("ipykernel", reason="ipykernel is missing: pip install 'plait[test]'")

NOTEBOOK = Path(__file__).parent.parent / "docs" / "ladder.ipynb"


def executed(folder: Path) -> dict[str, Any]:
    """-> its cells, by name"""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return {cell["id"]: cell for cell in notebook.cells}


def printed(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def test_it_is_stored_without_results() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")


def test_the_notebook_runs(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_LADDER", "--quick --hidden 2 --parts descent --repeats 5 --threads 1")
    cells = executed(empty_folder)
    assert printed(cells["where"]).startswith("plait ")
    assert "full batch" in printed(cells["climb"])
    assert base64.b64decode(cells["look"].outputs[0]["data"]["image/png"]).startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_command_that_fails_stops_it(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_LADDER", "--parts nothing")
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="section 'nothing'"):
        executed(empty_folder)


@pytest.mark.slow
def test_the_notebook_climbs_the_ladder(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_LADDER", "--quick --repeats 5 --threads 1")
    cells = executed(empty_folder)
    assert "times python" in printed(cells["rows"])
    assert "exponent" in printed(cells["climb"])
