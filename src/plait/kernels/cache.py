"""Where machine code is kept: a folder of the user's own, in which nobody else can write.

Whoever can write there can have the user run any code. So a folder or a file of another user's, or one that others can
write to, is not used: code is then compiled in memory, and a sentence says why.
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

PARTIAL = ".partial"  # ends the name of a file that is being written
OURS = re.compile(rf"[0-9a-f]{{32}}\.o|[0-9a-f]{{16}}{re.escape(PARTIAL)}")  # names that may be cleared away
UNUSED = 90 * 86400  # seconds after which they are
DAY = 86400
PATIENCE = 60  # seconds to wait for another process that compiles, once
LOCK = ".lock"  # a file, for this user alone: whoever may read a folder could lock that
_in_vain = False
DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """PLAIT_CACHE, or plait's own in the user's cache folder."""
    if given := os.environ.get("PLAIT_CACHE"):
        return Path(given)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "plait"


def refusal(path: Path, found: os.stat_result) -> str | None:
    """Why code from there may be somebody else's; None if it cannot be."""
    me = os.geteuid()
    if found.st_uid not in (me, 0):
        return f"{path} belongs to user {found.st_uid}, expected user {me}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written to by others (chmod go-w would change that)"
    return None


class Cache:
    """The folder, opened: what was looked at is what is used, even if somebody exchanges the folder meanwhile."""

    def __init__(self, path: Path, handle: int | None, why_not: str | None) -> None:
        self.path, self.handle = path, handle
        self.why_not = why_not  # nothing is found there, and nothing is kept: the reason
        self.said = ""

    def open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=self.handle)

    def read(self, name: str) -> bytes | None:
        """What was kept under that name, unless it is damaged: a file ends with the digest of what comes before."""
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
        """Of a file that this user alone can have written."""
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return b""
        if why := refusal(self.path / name, found):
            if self.said != why:  # it is looked at twice
                print(f"plait: {why}: it is not used.", file=sys.stderr)
            self.said = why
            return b""
        with os.fdopen(file, "rb", closefd=False) as stream:
            data = stream.read()
        if time.time() - found.st_mtime > DAY:
            with suppress(OSError):  # a folder that cannot be written to is as good
                os.utime(file)  # it is still in use
        return data

    def write(self, name: str, code: bytes) -> str | None:
        """None if it is kept now, else why it is not. Whole or not at all, whoever else writes the same."""
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
        """Away with what has not been used for long, and with what a killed process left half written."""
        with os.scandir(self.handle) as entries:
            for name in filter(OURS.fullmatch, (entry.name for entry in entries)):
                with suppress(OSError):  # another process was quicker, or it is no file
                    age = time.time() - os.stat(name, dir_fd=self.handle, follow_symlinks=False).st_mtime
                    if age > (DAY if name.endswith(PARTIAL) else UNUSED):
                        os.unlink(name, dir_fd=self.handle)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Several processes that lack the same code compile it once. One that hangs does not hold up the others."""
        try:
            file = None if self.why_not else self.open(LOCK, os.O_RDWR | os.O_CREAT)
        except OSError:  # a folder that cannot be written to
            file = None
        try:
            held = file is not None and acquired(file)
            yield
        finally:
            if file is not None:
                if held:  # not by closing alone: a process forked meanwhile has the file, too
                    fcntl.flock(file, fcntl.LOCK_UN)
                os.close(file)


def acquired(file: int) -> bool:
    global _in_vain
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            _in_vain = _in_vain or time.monotonic() > until
            if _in_vain:  # who holds it hangs: what else this process needs, it compiles at once
                return False
            time.sleep(0.02)
        except OSError:  # this disk has no locks
            return False


@contextmanager
def opened() -> Iterator[Cache]:
    """The folder, made if it is not there."""
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
