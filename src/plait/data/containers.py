"""A folder, a zip or a tar, seen alike: the names of the files in it, and what they hold. Nothing is extracted."""

import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol
from zipfile import ZipFile

from ..errors import PlaitError
from .files import DAMAGE, contents, opened

TAR = re.compile(r"\.(tar(\.(gz|bz2|xz))?|tgz)$", re.I)
CHUNK = 2**14  # bytes read at a time, so that what they expand to fits in memory


class Container(Protocol):
    names: list[str]  # of all files in it, however deep, with / between folders; hidden ones are left out

    def check(self, names: Iterable[str]) -> None:
        """Called before these are read: they must not be too much together."""

    def read(self, name: str) -> bytes: ...

    def called(self, name: str) -> str:
        """A file, as a message names it."""


class Folder:
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
    def __init__(self, file: BinaryIO, path: Path, inner: str, what: str, most: int) -> None:
        self.path, self.inner, self.what, self.most, self.zip = path, inner, what, most, ZipFile(file)
        check_inside(self.zip.namelist(), path, "zip")
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
        # zipfile reads no more of a member than its header says
        check_size(sum(member.file_size for member in chosen), self.path, self.what, self.most)

    def read(self, name: str) -> bytes:
        with self.zip.open(self.members[name]) as member:
            return b"".join(iter(partial(member.read, CHUNK), b""))

    def called(self, name: str) -> str:
        return f"{self.inner}{name} in {self.path}"


class Tarball:
    def __init__(self, file: BinaryIO, path: Path, what: str, most: int) -> None:
        self.path, self.what, self.most, self.tar = path, what, most, tarfile.TarFile.open(fileobj=file)
        # a sparse member may be far larger than the file, and isreg() is true for it
        self.members = {member.name.removeprefix("./"): member for member in self.tar.getmembers() if member.isreg()}
        check_inside(self.members, path, "tar")
        # in the order of the file: going back means unpacking from the beginning
        self.names = sorted(visible(self.members), key=lambda name: self.members[name].offset)

    def check(self, names: Iterable[str]) -> None:
        check_size(sum(self.members[name].size for name in names), self.path, self.what, self.most)

    def read(self, name: str) -> bytes:
        member = self.tar.extractfile(self.members[name])
        assert member is not None  # a regular file
        with member:
            return member.read()

    def called(self, name: str) -> str:
        return f"{name} in {self.path}"


def check_inside(names: Iterable[str], path: Path, kind: str) -> None:
    for name in names:
        steps = re.split(r"[/\\]", name)
        if not steps[0] or ".." in steps or re.match("[A-Za-z]:", name):
            raise PlaitError(f"{path} has a member {name!r}, which leads out of the {kind}: do not trust it.")


def check_size(size: int, path: Path, what: str, most: int) -> None:
    if size > most:
        raise PlaitError(f"{path} has {size:,} bytes of {what}: expected at most {most:,}; extract it.")


def visible(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if not any(p[0] == "." or p == "__MACOSX" for p in PurePosixPath(name).parts))


@contextmanager
def container(path: Path, expected: str, what: str, most: int) -> Iterator[Container]:
    """A folder, a zip, a folder in a zip, or a tar. most: bytes"""
    if path.is_dir():
        yield Folder(path, expected, most)
        return
    inner = ""
    while not path.exists() and path.parent != path and zip_above(path):
        path, inner = path.parent, f"{path.name}/{inner}"
    with opened(path, expected) as file:
        kind = "tar" if TAR.search(path.name) else "zip"
        try:
            yield Tarball(file, path, what, most) if kind == "tar" else Archive(file, path, inner, what, most)
        except PlaitError:
            raise
        except (*DAMAGE, tarfile.TarError) as e:
            why = str(e) or type(e).__name__
            raise PlaitError(f"{path} is not a {kind}, or is damaged ({why}): expected a {kind} with {what}.") from None


def zip_above(path: Path) -> Path | None:
    """The zip that a path leads into, if it does not lead to a file itself."""
    return next((p for p in path.parents if p.suffix.lower() == ".zip" and p.is_file()), None)


def is_container(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() == ".zip" or (not path.exists() and zip_above(path) is not None)
