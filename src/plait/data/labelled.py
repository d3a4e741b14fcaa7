"""Labelled sequences from whatever holds them: by the name of a file, or by what is in a folder or a zip."""

from pathlib import Path, PurePosixPath

from ..errors import PlaitError
from . import har, long_csv, npz, ts
from .containers import Container, Folder, container, is_container
from .files import contents, reading
from .long_csv import USUAL, Columns
from .sequences import Source
from .tables import MOST_BYTES, listed

EXPECTED = (
    "expected a .ts, .npz or .csv file, UCI HAR's folder or zip, or a folder with a folder of videos for each class"
)
CSV = (".csv", ".tsv", ".txt")
MOST = 4 * 2**30  # bytes


def read(path: str, columns: Columns = USUAL, *, alone: bool = False, labelled: bool = True) -> Source:
    """alone: without what lies beside a .ts file. labelled: False for new data"""
    if not path:
        raise PlaitError(f"The path is empty: {EXPECTED}.")
    found = Path(path)
    with reading(path, EXPECTED):
        suffix = found.suffix.lower()
        if is_container(found):
            file = found.name if suffix == ".ts" else None  # in a zip
            with container(found.parent if file else found, EXPECTED, "sequences", MOST) as inside:
                if file and file in inside.names:
                    return ts.read(inside, file, alone=alone)
                return from_container(inside, path, labelled=labelled)
        if suffix == ".ts":
            return ts.read(Folder(found.parent, EXPECTED, MOST, deep=False), found.name, alone=alone)
        if suffix not in (".npz", *CSV):
            contents(found, EXPECTED, 0 if found.exists() and not found.is_file() else MOST)  # says what is wrong
            raise PlaitError(f"{path}: {EXPECTED}.")
        content = contents(found, EXPECTED, MOST if suffix == ".npz" else MOST_BYTES)
    if suffix == ".npz":
        return npz.read(content, path)
    return long_csv.read(content, path, columns, labelled=labelled)


def from_container(inside: Container, path: str, *, labelled: bool) -> Source:
    top = har.root(inside.names)
    if top is not None:
        return har.read(inside, top, labelled=labelled)
    problems = ts.problems(inside.names)
    if len(problems) > 1:
        folders = [PurePosixPath(name).parent.as_posix() for name in problems]
        apart = len(set(folders)) == len(folders) and "." not in folders
        choose = [f"{path}/{name}" for name in (folders if apart else problems)]
        raise PlaitError(f"{path} has {len(problems)} problems: choose one of them, {listed(choose)}.")
    if problems:
        return ts.read(inside, problems[0])
    found = ", ".join(inside.names[:3]) + (" ..." if len(inside.names) > 3 else "")
    raise PlaitError(f"{path} has no sequences (found: {found or 'nothing'}): {EXPECTED}.")
