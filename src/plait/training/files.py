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
DESCRIPTOR = re.compile(r"/proc/(\d+)(?:/task/\d+)?/fd/(\d+)|/dev/fd/(\d+)")  # names of files that are open
LINKS = 40  # that are followed
PARTIAL = ".plait.*.partial"  # what is being written, or was when its process was killed
OLD = 3600  # seconds after which its writer is gone: no write takes so long, and no two clocks differ so much
pipes: dict[Path, int] = {}  # open since they were checked: closing one would end its reader's input


@contextlib.contextmanager
def writing(path: Path, whole: bool = False) -> Iterator[None]:
    """Turns what the disk says into a sentence. `whole`: by `atomically`."""
    try:
        yield
    except OSError as e:
        unharmed = " What was there before is unharmed." if whole and os.path.lexists(path) else ""
        raise PlaitError(f"{path} cannot be written: {e.strerror}.{unharmed}") from None


def check_target(path: Path, name: str) -> None:
    """Refuses a place that cannot be written, before any work is done. `name`: what the user calls it."""
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
        if not all(os.access(place, os.W_OK) for place in places):  # a file that is protected is not replaced, either
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as e:
        if e.errno == errno.ENXIO:
            raise PlaitError(f"{name} cannot be written: it is a pipe that nobody reads; start its reader.") from None
        raise PlaitError(f"{name} cannot be written: {e.strerror}.") from None


def kind_of(path: Path) -> int:
    """What is at the end of its links: one of stat's S_IF, or 0 for nothing."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return 0


def descriptor(path: Path) -> int | None:
    """N, if it leads to what this process has open as N: /dev/stdout, /dev/fd/N, /proc/self/fd/N or a link to one."""
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
    """Replaces a plain file at the end of its links, which stay; devices, pipes and open files are written through."""
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
        file = os.dup(open_file)  # with its position: whatever else writes there goes on behind us
    if file is None:
        file = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    os.set_blocking(file, True)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)


def atomically(path: Path, content: bytes) -> None:
    """A reader, or a process after a crash, finds the old content or the new, never a part."""
    with signals.whole():
        try:
            old = path.stat()
        except FileNotFoundError:
            old = None
        # A short name, as the file's own may be as long as names can be. A random one, so that nobody can guess it.
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
    """The group, the owner and the permissions of the file that it takes the place of."""
    for owner, group in ((-1, old.st_gid), (old.st_uid, -1)):
        with contextlib.suppress(OSError):  # only root may give a file away
            os.fchown(file, owner, group)
    os.fchmod(file, stat.S_IMODE(old.st_mode))


def is_old(path: Path) -> bool:
    """Whether its writer is gone. Its age tells: a lock may not be seen on another host that shares the disk."""
    return time.time() - path.stat(follow_symlinks=False).st_mtime > OLD


def sync(folder: Path) -> None:
    """So that a new name is still there after a power cut."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_plain(path: Path) -> bytes:
    """A file of a run. A pipe would be waited for, a device might never end."""
    with reading(str(path), "restore it from a copy, or train again with another --out"):
        return regular(path, "expected a plain file, as plait train makes it").read_bytes()
