"""A folder or a zip, seen alike: the names of the files in it, and what they hold. Nothing of a zip is extracted."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol
from zipfile import ZipFile

from ..errors import PlaitError
from .files import DAMAGE, contents, opened

CHUNK = 2**14  # bytes read at a time, so that what they expand to fits in memory


class Place(Protocol):
    names: list[str]  # of all files in it, however deep, with / between folders; hidden ones are left out

    def check(self, names: Iterable[str]) -> None:
        """Called before these are read: they must not be too much together."""

    def read(self, name: str) -> bytes: ...

    def called(self, name: str) -> str:
        """A file, as a message names it."""


class Folder:
    """The files in a folder and the folders below it; links to folders are not followed."""

    def __init__(self, path: Path, expected: str, most: int, *, deep: bool = True) -> None:
        """deep: with the folders below it."""

        def refuse(e: OSError) -> None:
            raise e

        self.path, self.expected, self.most = path, expected, most
        self.names = visible(
            (Path(top) / name).relative_to(path).as_posix()
            for top, _, files in (os.walk(path, onerror=refuse) if deep else [next(os.walk(path, onerror=refuse))])
            for name in files
        )

    def check(self, names: Iterable[str]) -> None:
        """Each is checked when it is read."""

    def read(self, name: str) -> bytes:
        return contents(self.path / name, self.expected, self.most)

    def called(self, name: str) -> str:
        return str(self.path / name)


class Archive:
    """The files in a zip, or in one of its folders."""

    def __init__(self, file: BinaryIO, path: Path, inner: str, what: str, most: int) -> None:
        self.path, self.inner, self.what, self.most, self.zip = path, inner, what, most, ZipFile(file)
        for name in self.zip.namelist():
            steps = re.split(r"[/\\]", name)
            if not steps[0] or ".." in steps or re.match("[A-Za-z]:", name):
                raise PlaitError(f"{path} has a member {name!r}, which leads out of the zip: do not trust it.")
        self.members = {
            member.filename.removeprefix(inner): member
            for member in self.zip.infolist()
            if not member.is_dir() and member.filename.startswith(inner)
        }
        self.names = visible(self.members)

    def check(self, names: Iterable[str]) -> None:
        chosen = [self.members[name] for name in names]
        for member in chosen:
            if member.flag_bits & 1:
                raise PlaitError(f"{member.filename} in {self.path} is encrypted: extract it, and give the folder.")
        # zipfile reads no more of a member than its header says, so this is a limit on what is read, too.
        if (size := sum(member.file_size for member in chosen)) > self.most:
            raise PlaitError(
                f"{self.path} has {size:,} bytes of {self.what}: expected at most {self.most:,}; extract it."
            )

    def read(self, name: str) -> bytes:
        with self.zip.open(self.members[name]) as member:
            return b"".join(iter(partial(member.read, CHUNK), b""))

    def called(self, name: str) -> str:
        return f"{self.inner}{name} in {self.path}"


def visible(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if not any(p[0] == "." or p == "__MACOSX" for p in PurePosixPath(name).parts))


@contextmanager
def place(path: Path, expected: str, what: str, most: int) -> Iterator[Place]:
    """A folder, a zip, or a folder in a zip. what: it holds, in a word. most: bytes."""
    if path.is_dir():
        yield Folder(path, expected, most)
        return
    inner = ""
    while not path.exists() and path.parent != path and zip_above(path):
        path, inner = path.parent, f"{path.name}/{inner}"
    with opened(path, expected) as file:
        try:
            yield Archive(file, path, inner, what, most)
        except PlaitError:
            raise
        except DAMAGE as e:
            why = str(e) or type(e).__name__
            raise PlaitError(f"{path} is not a zip, or is damaged ({why}): expected a zip with {what}.") from None


def zip_above(path: Path) -> Path | None:
    """The zip that a path leads into, if it does not lead to a file itself."""
    return next((p for p in path.parents if p.suffix.lower() == ".zip" and p.is_file()), None)


def is_place(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() == ".zip" or (not path.exists() and zip_above(path) is not None)
