"""The folder in which machine code is stored. It is the user's own, and nobody else can write to it.

Anyone who can write to it can make the user run any code. So plait does not use a folder or a file that belongs to
another user, or that others can write to. It then compiles in memory, and says why.
"""

import hashlib
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

PARTIAL = ".partial"  # suffix of files that are being written
OURS = re.compile(rf"[0-9a-f]{{32}}\.(o|json)|[0-9a-f]{{16}}{re.escape(PARTIAL)}")  # names of files that may be deleted
UNUSED = 90 * 86400  # seconds without use before a file is deleted
DAY = 86400
PATIENCE = 60  # seconds to wait for another process that compiles
LOCK = ".lock"  # a file that only this user can open; anyone who can read the folder could lock the folder itself
_in_vain = False  # this process has waited PATIENCE once, and does not wait again
DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """PLAIT_CACHE, or the folder `plait` in the user's cache folder."""
    if given := os.environ.get("PLAIT_CACHE"):
        return Path(given)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "plait"


def refusal(path: Path, found: os.stat_result) -> str | None:
    """Why another user may have written it; None if nobody else can have."""
    me = os.geteuid()
    if found.st_uid not in (me, 0):
        return f"{path} belongs to user {found.st_uid}, expected user {me}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written to by others (chmod go-w would change that)"
    return None


class Cache:
    """The opened folder. It stays the same even if its name is given to another one."""

    def __init__(self, path: Path, handle: int | None, why_not: str | None) -> None:
        self.path, self.handle = path, handle
        self.why_not = why_not  # the reason why nothing is read from it or stored in it, if there is one
        self.said = ""  # the last warning

    def open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=self.handle)

    def read(self, name: str) -> bytes | None:
        """The code that was stored under that name, if it is not damaged: a file ends with the digest of the code."""
        if self.why_not:
            return None
        try:
            file = self.open(name, os.O_RDONLY)
            try:
                data = self.content(name, file)
            finally:
                os.close(file)
        except OSError:
            return None
        code, digest = data[:-DIGEST], data[-DIGEST:]
        return code if hashlib.sha256(code).digest() == digest else None

    def content(self, name: str, file: int) -> bytes:
        """The bytes of a file that only this user can have written."""
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return b""
        if why := refusal(self.path / name, found):
            if self.said != why:  # the file is read twice: warn once
                print(f"plait: {why}: it is not used.", file=sys.stderr)
            self.said = why
            return b""
        with os.fdopen(file, "rb", closefd=False) as stream:
            data = stream.read()
        if time.time() - found.st_mtime > DAY:
            with suppress(OSError):  # the folder may be read-only
                os.utime(file)  # it is still in use
        return data

    def write(self, name: str, code: bytes) -> str | None:
        """Stores it -> None, or the reason why not. A file is complete or absent, even if several processes write it at
        once.
        """
        if self.why_not:
            return self.why_not
        partial = f"{secrets.token_hex(8)}{PARTIAL}"
        try:
            file = self.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                with os.fdopen(file, "wb") as stream:
                    stream.write(code + hashlib.sha256(code).digest())
                os.replace(partial, name, src_dir_fd=self.handle, dst_dir_fd=self.handle)
            except BaseException:
                os.unlink(partial, dir_fd=self.handle)
                raise
            self.prune()
        except OSError as e:
            return str(e)
        return None

    def prune(self) -> None:
        """Deletes files that were not used for a long time, and partial files of processes that were killed."""
        with os.scandir(self.handle) as entries:
            for name in filter(OURS.fullmatch, (entry.name for entry in entries)):
                with suppress(OSError):  # another process has deleted it, or it is no file
                    age = time.time() - os.stat(name, dir_fd=self.handle, follow_symlinks=False).st_mtime
                    if age > (DAY if name.endswith(PARTIAL) else UNUSED):
                        os.unlink(name, dir_fd=self.handle)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """If several processes need the same code, one compiles it and the others wait, at most for PATIENCE."""
        try:
            file = None if self.why_not else self.open(LOCK, os.O_RDWR | os.O_CREAT)
        except OSError:  # the folder is read-only
            file = None
        if file is None:
            yield
            return
        try:
            with suppress(OSError):  # this disk has no locks
                acquire(file)
            yield
        finally:
            with suppress(OSError):  # closing is not enough: a child that was forked meanwhile has the file open, too
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def acquire(file: int) -> None:
    global _in_vain
    until = time.monotonic() + PATIENCE
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        _in_vain = _in_vain or time.monotonic() > until
        if _in_vain:  # the holder seems to hang: do not wait again in this process
            return
        time.sleep(0.02)


@contextmanager
def opened() -> Iterator[Cache]:
    """The folder. It is made if it does not exist."""
    path, handle, why = Path(), None, None
    try:
        path = folder()
        if sys.platform == "win32":
            why = "on Windows plait cannot tell who else may write there"
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            why = refusal(path, os.fstat(handle))
    except (OSError, RuntimeError) as e:  # no permission, no room, no home
        why = str(e)
    try:
        yield Cache(path, handle, f"{why}; set PLAIT_CACHE to a folder of your own" if why else None)
    finally:
        if handle is not None:
            os.close(handle)
