"""`plait equations file.py:MGU`: a user's file is read, and what is wrong with it is said in one sentence."""

import json
import sys
from pathlib import Path

import pytest

MINE = """
from plait.cells import Cell
from beside import GATES

class MGU(Cell):
    \"\"\"h' = h + f (n - h)\"\"\"
    gates, states = GATES, ("h",)

    def step(wx, rh, state, ops):
        (h,) = state
        f = ops.sigmoid(wx[0] + rh[0])
        return h + f * (ops.tanh(wx[1] + f * rh[1]) - h)

class Mean(Cell):
    gates, states = ("a",), ("h",)

    def step(wx, rh, state, ops):
        return wx[0] - wx[0].mean()

class Other:
    pass
"""


@pytest.fixture
def mine(empty_folder: Path, monkeypatch) -> Path:
    (empty_folder / "cells").mkdir()
    (empty_folder / "cells" / "beside.py").write_text("GATES = ('f', 'n')\n")
    path = empty_folder / "cells" / "mine.py"
    path.write_text(MINE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    yield path
    sys.modules.pop("beside", None)


def test_the_equations_of_a_users_cell(plait, mine: Path) -> None:
    before = list(sys.path)
    code, out, err = plait("equations", "cells/mine.py:MGU")
    assert (code, err) == (0, "")
    assert out.startswith("h' = h + f (n - h)\n\ndef mgu_step(wx_f, wx_n, rh_f, rh_n, h):\n")
    assert "def mgu_vjp(f, n, rh_n, h, h_new, d_h_new):\n" in out
    assert sys.path == before
    _, out, _ = plait("equations", f"{mine}:MGU", "--json", "-")
    assert json.loads(out)["saved"] == ["f", "n", "rh_n"]


REFUSED = [
    ("cells/none.py:MGU", "cells/none.py: there is no such file; expected path/to/file.py:MGU."),
    ("cells:MGU", "cells: there is no such file"),
    ("cells/mine.py", "cell 'cells/mine.py': expected the file and the class, as in path/to/file.py:MGU."),
    ("cells/mine.py:", "expected the file and the class"),
    ("cells/mine.py:MUG", "cells/mine.py: cell 'MUG' is not known: did you mean 'MGU'? Expected one of MGU, Mean."),
    ("cells/mine.py:Other", "Other is not a cell: expected a class that is derived from plait.Cell."),
    ("cells/mine.py:GATES", "GATES is not a cell"),
    ("cells/mine.py:Cell", "Cell is not a cell"),
    (
        "cells/mine.py:Mean",
        "cell mean cannot be traced: mine.py, line 18, `return wx[0] - wx[0].mean()`: a value has no",
    ),
    ("cells/beside.py:MGU", "cells/beside.py has no class 'MGU', and no cell at all: write one as class MGU(Cell)."),
    ("notes.txt:MGU", "notes.txt: expected a file of Python, with a name that ends in .py."),
    ("broken.py:MGU", "broken.py cannot be imported: SyntaxError: "),
    ("raises.py:MGU", "raises.py cannot be imported: ZeroDivisionError: division by zero."),
    ("leaves.py:MGU", "leaves.py cannot be imported: SystemExit: 3."),
    (
        "bad.py:MGU",
        "bad.py cannot be imported: PlaitError: cell MGU has no gates: name them, as in gates = ('f', 'n').",
    ),
]


def test_a_file_with_a_dataclass_and_the_name_of_a_module(plait, empty_folder: Path) -> None:
    """dataclasses look for the module of a class; and the file must not take the place of that module."""
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom plait import Cell\n"
    text += "@dataclass\nclass Config:\n    a: float = 3.0\n"
    text += "class Scaled(Cell):\n    gates, states = ('a',), ('h',)\n"
    text += "    def step(wx, rh, state, ops):\n        return ops.tanh(wx[0] + rh[0]) * Config().a\n"
    Path("json.py").write_text(text)
    code, out, err = plait("equations", "json.py:Scaled")
    assert (code, err) == (0, "")
    assert "3.0" in out
    assert hasattr(sys.modules["json"], "dumps")


@pytest.mark.parametrize(("name", "sentence"), REFUSED, ids=[name for name, _ in REFUSED])
def test_what_is_wrong_with_a_file_is_said(refused, mine: Path, name: str, sentence: str) -> None:
    folder = mine.parents[1]
    (folder / "notes.txt").write_text(MINE)
    (folder / "broken.py").write_text("class MGU(:\n")
    (folder / "raises.py").write_text("1 / 0\n")
    (folder / "leaves.py").write_text("raise SystemExit(3)\n")
    (folder / "bad.py").write_text("from plait.cells import Cell\nclass MGU(Cell):\n    pass\n")
    assert sentence in refused("equations", name)
