"""Files: written whole or not at all, and read only if they are plain ones."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from ..data.files import reading, regular
from ..errors import PlaitError
from . import signals

REFUSED = {stat.S_IFDIR: "a folder", stat.S_IFBLK: "a block device", stat.S_IFSOCK: "a socket"}
DESCRIPTOR = re.compile(r"/proc/(\d+)(?:/task/\d+)?/fd/(\d+)|/dev/fd/(\d+)")  # of open files
LINKS = 40  # that are followed
PARTIAL = ".plait.*.partial"  # what is being written, or was when its process was killed
OLD = 3600  # seconds after which its writer must be gone
pipes: dict[Path, int] = {}  # kept open after the check: closing would end the reader's input


@contextlib.contextmanager
def writing(path: Path, whole: bool = False) -> Iterator[None]:
    """Turns errors of the disk into a sentence. whole: by `atomically`"""
    try:
        yield
    except OSError as e:
        unharmed = " What was there before is unharmed." if whole and os.path.lexists(path) else ""
        raise PlaitError(f"{path} cannot be written: {e.strerror}.{unharmed}") from None


def check_target(path: Path, name: str) -> None:
    """Refuses what cannot be written, before any work is done. name: the user's"""
    try:
        if (open_file := descriptor(path)) is not None:
            if fcntl.fcntl(open_file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise PlaitError(f"{name} cannot be written: it is open for reading only.")
            return
        kind = kind_of(path)
        if kind in REFUSED:
            raise PlaitError(f"{name} cannot be written: it is {REFUSED[kind]}; expected a file.")
        if kind == stat.S_IFIFO and path not in pipes:
            pipes[path] = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        folder = Path(os.path.realpath(path)).parent
        if kind in (0, stat.S_IFREG) and not folder.is_dir():
            raise PlaitError(f"{name} cannot be written: expected a file in a folder that exists.")
        places = [folder] * (kind in (0, stat.S_IFREG)) + [path] * bool(kind)
        if not all(os.access(place, os.W_OK) for place in places):  # a protected file is not replaced
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as e:
        if e.errno == errno.ENXIO:
            raise PlaitError(f"{name} cannot be written: it is a pipe that nobody reads; start its reader.") from None
        raise PlaitError(f"{name} cannot be written: {e.strerror}.") from None


def kind_of(path: Path) -> int:
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return 0


def descriptor(path: Path) -> int | None:
    """N, if a path leads to what this process has open as N."""
    for _ in range(LINKS):
        path = Path(os.path.realpath(path.parent)) / path.name
        if found := DESCRIPTOR.fullmatch(str(path)):
            process, number, mac = found.groups()
            return int(number or mac) if process in (None, str(os.getpid())) else None
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a plain file; devices, pipes and open files are written through."""
    check_target(path, str(path))
    if descriptor(path) is not None or kind_of(path) in (stat.S_IFIFO, stat.S_IFCHR):
        with writing(path):
            through(path, content)
    else:
        with writing(path, whole=True):
            atomically(Path(os.path.realpath(path)), content)


def through(path: Path, content: bytes) -> None:
    print(end="", flush=True)  # it may be the same file
    file, open_file = pipes.pop(path, None), descriptor(path)
    if file is None and open_file is not None:
        file = os.dup(open_file)  # with its position: other writers continue behind us
    if file is None:
        file = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    os.set_blocking(file, True)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)


def atomically(path: Path, content: bytes) -> None:
    """A reader finds the old content or the new, even after a crash."""
    with signals.whole():
        try:
            old = path.stat()
        except FileNotFoundError:
            old = None
        # short, as the file's own name may be as long as allowed; random, so that nobody can guess it
        partial = path.with_name(PARTIAL.replace("*", secrets.token_hex(8)))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = os.open(partial, flags, 0o666 if old is None else 0o600)
        try:
            with os.fdopen(file, "wb") as stream:
                if old is not None:
                    keep(old, file)  # before there is anything to read
                stream.write(content)
                stream.flush()
                os.fsync(file)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync(path.parent)


def keep(old: os.stat_result, file: int) -> None:
    for owner, group in ((-1, old.st_gid), (old.st_uid, -1)):
        with contextlib.suppress(OSError):  # only root may give a file away
            os.fchown(file, owner, group)
    os.fchmod(file, stat.S_IMODE(old.st_mode))


def is_old(path: Path) -> bool:
    """Whether its writer is gone, by its age: a lock may not be seen by another host."""
    return time.time() - path.stat(follow_symlinks=False).st_mtime > OLD


def sync(folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_plain(path: Path) -> bytes:
    """A pipe would be waited for, a device might never end."""
    with reading(str(path), "restore it from a copy, or train again with another --out"):
        return regular(path, "expected a plain file, as plait train makes it").read_bytes()
