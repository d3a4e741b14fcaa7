"""Labelled sequences from whatever holds them: by the name of a file, or by what is in a folder or a zip."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ..errors import PlaitError
from . import har, long_csv, npz, ts
from .files import contents, reading
from .long_csv import USUAL, Columns
from .places import Folder, Place, is_place, place
from .sequences import Source
from .tables import MOST_BYTES

EXPECTED = (
    "expected a .ts, .npz or .csv file, UCI HAR's folder or zip, or a folder with a folder of videos for each class"
)
MOST = 4 * 2**30  # bytes


def read(path: str, columns: Columns = USUAL, *, new: bool = False) -> Source:
    """new: data without a training and a test part, which may have no labels."""
    if not path:
        raise PlaitError(f"The path is empty: {EXPECTED}.")
    found = Path(path)
    with reading(path, EXPECTED):
        if is_place(found):
            with place(found, EXPECTED, "sequences", MOST) as inside:
                return from_place(inside, path, new=new)
        suffix = found.suffix.lower()
        if suffix == ".ts":
            return ts.read(Folder(found.parent, EXPECTED, MOST, deep=False), found.name, alone=new)
        if suffix not in (".npz", ".csv", ".tsv", ".txt"):
            contents(found, EXPECTED, 0 if found.exists() and not found.is_file() else MOST)  # says what is wrong
            raise PlaitError(f"{path}: {EXPECTED}.")
        content = contents(found, EXPECTED, MOST if suffix == ".npz" else MOST_BYTES)
    if suffix == ".npz":
        return npz.read(content, path)
    return long_csv.read(content, path, columns, labelled=not new)


def from_place(inside: Place, path: str, *, new: bool) -> Source:
    """A folder or a zip: UCI HAR, or .ts files of one problem."""
    top = har.root(inside.names)
    if top is not None:
        return har.read(inside, top)
    problems = ts.problems(inside.names)
    if len(problems) > 1:
        folders = [PurePosixPath(name).parent.as_posix() for name in problems]
        apart = len(set(folders)) == len(folders)
        choose = [f"{path}/{folder}" for folder in folders] if apart else [f"{path}/{name}" for name in problems]
        raise PlaitError(f"{path} has {len(problems)} problems: choose one of them, {listed(choose)}.")
    if problems:
        return ts.read(inside, problems[0], alone=new)
    found = ", ".join(inside.names[:3]) + (" ..." if len(inside.names) > 3 else "")
    raise PlaitError(f"{path} has no sequences (found: {found or 'nothing'}): {EXPECTED}.")


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
