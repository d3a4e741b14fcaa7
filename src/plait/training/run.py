"""A run is a folder. It is there whole, with all that it takes to go on, or it is not there at all."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import __version__
from ..errors import PlaitError
from . import signals
from .files import PARTIAL, atomically, is_old, read_plain, sync, writing
from .settings import MOST_THREADS
from .tensors import dumps, loads

TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)  # what a rename says to a name that is in use
ATTEMPTS = 100  # at a folder, while others make and clear away theirs
OWN = "model"  # in place of a task, for a model of the user's own
SAVED = {"history.json", "model.safetensors", "state.safetensors"}  # beside config.json and the data


class Run:
    """config.json, history.json, model.safetensors (the weights to use), state.safetensors (all it takes to go on)"""

    begun = True  # there is something to go on with
    is_folder = True

    def __init__(self, path: Path) -> None:
        self.path = self.folder = path  # its name, and where its files are
        self.digests: dict[str, str] = {}  # of its data files, from config.json

    @classmethod
    def create(
        cls, out: str | None, task: str, config: dict[str, Any], files: dict[str, bytes] | None = None
    ) -> "NewRun":
        """Nothing is written before it is locked; `begin` gives it its name."""
        return NewRun(out, task, config, files or {})

    @classmethod
    def open(cls, path: str) -> "Run":
        folder = Path(path)
        try:
            if not folder.is_dir():
                found = "is a file" if folder.exists() else "does not exist"
                raise PlaitError(f"{path} {found}: expected the folder of a run, as plait train makes it.")
            if not os.path.lexists(folder / "config.json"):
                raise PlaitError(f"{path} has no config.json: expected the folder of a run, as plait train makes it.")
        except OSError as e:
            raise PlaitError(f"{path} cannot be read: {e.strerror}; expected the folder of a run.") from None
        return cls(folder)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For the one process that trains; it clears away what a killed one left."""
        handle = self.lock()
        try:
            clear_left_overs(self.path)
            yield
        finally:
            os.close(handle)  # and with it the lock

    def lock(self) -> int:
        with writing(self.path):
            handle = lock(self.path)
        if handle is None:
            raise PlaitError(f"{self.path} is being trained by another process: wait, or stop it.")
        return handle

    def begin(self) -> None:
        """Called when all is there that it takes to go on. This folder has its name already."""

    # --- what it says about itself
    def write_config(self, config: dict[str, Any]) -> None:
        self.write("config.json", config_file(config))

    def config(self, task: str | None = None) -> dict[str, Any]:
        path = self.path / "config.json"
        content = read_plain(path)
        try:
            config: dict[str, Any] = json.loads(content)
            found = config["task"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PlaitError(f"{path} cannot be read as a run's settings: restore it from a copy.") from None
        if not isinstance(found, str):
            raise PlaitError(f"{path} has a task that is no name: restore it from a copy.")
        if task is not None and found != task:
            raise PlaitError(f"{self.path} is a run of task '{found}', not '{task}'.")
        threads = config.get("threads", 1)
        if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
            raise PlaitError(f"{path} has threads {threads!r:.40}: expected a whole number from 1 to {MOST_THREADS}.")
        for name in ("settings", "data"):
            if not isinstance(config.get(name, {}), dict):
                raise PlaitError(f"{path} has {name} that are no JSON object: restore it from a copy.")
        self.digests = config.get("data", {})
        return config

    def check_unchanged(self, config: dict[str, Any]) -> None:
        """The settings must be what the run began with. (`read` checks the data.)"""
        if "checksum" not in config:
            raise PlaitError(f"{self.path} was made by an earlier version of plait, without a checksum: train again.")
        if config["checksum"] != checksum(config):
            raise PlaitError(f"{self.path}/config.json does not fit its checksum: put back what the run began with.")

    # --- files
    def content(self, name: str) -> bytes:
        return read_plain(self.path / name)

    def read(self, name: str) -> bytes:
        """A file with its data, which must be what the run began with."""
        content = self.content(name)
        if name in self.digests and sha256(content) != self.digests[name]:
            raise PlaitError(f"{self.path / name} was changed: put back what the run began with.")
        return content

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, as_json(value))

    def write_tensors(self, name: str, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        self.write(name, dumps(tensors, meta))

    def write(self, name: str, content: bytes) -> None:
        with writing(self.path / name, whole=True):
            atomically(self.folder / name, content)

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return loads(self.path / name)


class NewRun(Run):
    """A run that is about to begin: in a hidden folder beside its place, until `begin` gives it its name.

    If its place is an empty folder, the hidden one is in there: the place may be a disk of its own, or the folder above
    may be one that cannot be written.
    """

    def __init__(self, out: str | None, task: str, config: dict[str, Any], files: dict[str, bytes]) -> None:
        super().__init__(free_place(out) if out is not None else next_place(task))
        self.numbered, self.task = out is None, task
        self.inside = not self.numbered and self.path.is_dir()
        data = {name: sha256(content) for name, content in files.items()}
        about = {**config, "plait": __version__, "task": task, "data": data}
        self.files = {**files, "config.json": config_file(about)}
        self.begun = False
        self.made: list[Path] = []  # folders above it
        self.moved: list[Path] = []  # files in their place

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        if self.begun:
            with super().locked():
                yield
            return
        with contextlib.ExitStack() as last, contextlib.ExitStack() as self.starting:
            self.starting.enter_context(signals.whole())
            self.starting.callback(self.undo)
            with writing(self.path):
                last.callback(os.close, self.make_folder())
            for name, content in self.files.items():
                self.write(name, content)
            yield

    def make_folder(self) -> int:
        if self.inside:
            handle = self.lock()
            for path in left_overs(self.path):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            self.folder = hidden(self.path)
            self.folder.mkdir()
            return handle
        parent = self.path.parent
        for _ in range(ATTEMPTS):
            self.made += [p for p in (parent, *parent.parents) if not p.exists()]
            parent.mkdir(parents=True, exist_ok=True)
            clear_left_overs(parent)
            folder = hidden(parent)
            with contextlib.suppress(FileExistsError, FileNotFoundError):  # another process was quicker
                folder.mkdir()
                locked = lock(folder)
                if locked is not None:
                    self.folder = folder
                    return locked
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def begin(self) -> None:
        """Gives it its name, in one step; or moves its files, config.json, which makes it a run, last."""
        if self.begun:
            return
        with writing(self.path):
            if self.inside:
                self.move_up()
            else:
                self.rename()
        signals.resume_command = resume_command(self.task, self.path)
        self.starting.close()

    def rename(self) -> None:
        while not self.begun:
            try:
                self.folder.rename(self.path)
                self.begun = True
            except OSError as e:
                if e.errno not in TAKEN:
                    raise
                if not self.numbered:
                    raise taken(self.path) from None
                self.path = next_place(self.task)
        self.folder = self.path
        sync(self.path.parent)

    def move_up(self) -> None:
        if list(self.path.iterdir()) != [self.folder]:
            raise taken(self.path)
        for file in sorted(self.folder.iterdir(), key=lambda file: file.name == "config.json"):
            sync(self.path)
            self.moved.append(file.rename(self.path / file.name))
        self.begun = True
        sync(self.path)
        self.folder.rmdir()
        self.folder = self.path

    def undo(self) -> None:
        if not self.begun:
            for file in self.moved:
                file.unlink(missing_ok=True)
            if self.folder != self.path:
                shutil.rmtree(self.folder, ignore_errors=True)
            for folder in self.made:  # the deepest first
                with contextlib.suppress(OSError):  # another process has put something there
                    folder.rmdir()


def free_place(out: str) -> Path:
    if not out:
        raise PlaitError("--out is empty: expected the name of a folder, or . for this one.")
    path = Path(out)
    with writing(path):
        if path.parent.is_file():
            raise PlaitError(f"{path.parent} is a file: a run needs a folder to be in.")
        if path.is_symlink() and path.is_dir():
            path = path.resolve()  # the link stays
        if path.is_dir():
            left_overs(path)
        elif os.path.lexists(path):
            raise taken(path)
    return path


def left_overs(folder: Path) -> list[Path]:
    """All that is in a folder, if it is nothing but what killed starts left."""
    found = list(folder.iterdir())
    starts = [path for path in found if path.match(PARTIAL)]
    moved = {name for start in starts for name in files_of(start) if not os.path.lexists(start / name)}
    if any(path not in starts and path.name not in moved for path in found):
        raise taken(folder)
    return found


def files_of(start: Path) -> set[str]:
    try:
        return {*SAVED, *Run(start).config().get("data", {})}
    except PlaitError:
        return set()


def hidden(parent: Path) -> Path:
    return parent / PARTIAL.replace("*", secrets.token_hex(8))


def next_place(task: str) -> Path:
    with writing(Path("runs")):
        found = [p.name[len(task) + 1 :] for p in Path("runs").glob(f"{task}-*")]
    return Path("runs") / f"{task}-{1 + max((int(name) for name in found if name.isdecimal()), default=0)}"


def taken(path: Path) -> PlaitError:
    return PlaitError(f"{path} exists already: choose another --out, or --resume {path}.")


def lock(folder: Path) -> int | None:
    """-> what to close in the end; None if another process has it"""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), folder.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None


def clear_left_overs(parent: Path) -> None:
    """Of processes that were killed; a live start holds the lock of its folder."""
    for path in parent.glob(PARTIAL):
        with contextlib.suppress(OSError):  # another process clears it, or it is not ours to clear
            if not is_old(path):
                continue
            if path.is_symlink() or not path.is_dir():
                path.unlink()
            elif (handle := lock(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(handle)


def resume_command(task: str, path: Path) -> str:
    """Empty for a model of the user's own, which is trained from Python."""
    return "" if task == OWN else f"plait train {task} --resume {shlex.quote(str(path))}"


def as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def config_file(config: dict[str, Any]) -> bytes:
    return as_json({**config, "checksum": checksum(config)})


def checksum(config: dict[str, Any]) -> str:
    rest = {name: value for name, value in config.items() if name != "checksum"}
    return sha256(json.dumps(rest, sort_keys=True).encode())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
