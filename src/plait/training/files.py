"""Files: written whole or not at all, and read only if they are plain ones."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .. import signals
from ..data.files import reading, regular
from ..errors import PlaitError

REFUSED = {stat.S_IFDIR: "a folder", stat.S_IFBLK: "a block device", stat.S_IFSOCK: "a socket"}
pipes: dict[Path, int] = {}  # open since they were checked: a reader takes a close for the end


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the disk says into a sentence."""
    try:
        yield
    except OSError as e:
        raise PlaitError(f"{path} cannot be written: {e.strerror}. What was there before is unharmed.") from None


def check_target(path: Path, name: str) -> None:
    """Refuses a place that cannot be written, before any work is done. `name`: what the user calls it."""
    try:
        kind = kind_of(path)
        if kind in REFUSED:
            raise PlaitError(f"{name} cannot be written: it is {REFUSED[kind]}; expected a file.")
        if kind == stat.S_IFIFO and path not in pipes:
            pipes[path] = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        folder = Path(os.path.realpath(path)).parent
        if kind in (0, stat.S_IFREG) and not folder.is_dir():
            raise PlaitError(f"{name} cannot be written: expected a file in a folder that exists.")
        place = folder if kind in (0, stat.S_IFREG) else path
        if not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as e:
        if e.errno == errno.ENXIO:
            raise PlaitError(f"{name} cannot be written: it is a pipe that nobody reads; start its reader.") from None
        raise PlaitError(f"{name} cannot be written: {e.strerror}; expected a file.") from None


def kind_of(path: Path) -> int:
    """What is at the end of its links: one of stat's S_IF, or 0 for nothing."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return 0


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a plain file at the end of its links, which stay; a device or a pipe is written through."""
    check_target(path, str(path))
    with writing(path):
        if kind_of(path) in (stat.S_IFIFO, stat.S_IFCHR):
            through(path, content)
        else:
            atomically(Path(os.path.realpath(path)), content)


def through(path: Path, content: bytes) -> None:
    kept = pipes.pop(path, None)
    file = os.open(path, os.O_WRONLY | os.O_NOCTTY) if kept is None else kept
    os.set_blocking(file, True)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)


def atomically(path: Path, content: bytes) -> None:
    """A reader, or a process after a crash, finds the old content or the new, never a part."""
    partial = path.with_name(f".plait.{os.getpid()}.partial")  # short: the name itself may be as long as names can be
    with signals.whole():
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                with contextlib.suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync(path.parent)


def sync(folder: Path) -> None:
    """A new name, too, must outlive a power cut."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_plain(path: Path) -> bytes:
    """A file of a run. A pipe would be waited for, a device might never end."""
    with reading(str(path), "restore it from a copy, or train again with another --out"):
        return regular(path, "expected a plain file, as plait train makes it").read_bytes()
