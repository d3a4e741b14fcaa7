"""A run is a folder. Whatever is written there is written whole or not at all."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from .. import __version__
from ..errors import PlaitError

FORMAT = "plait-1"


class Run:
    """config.json, history.json, model.safetensors (the weights to use), state.safetensors (all it takes to go on)"""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, out: str | None, task: str, config: dict[str, Any], files: dict[str, bytes] | None = None) -> "Run":
        run = cls(claim(Path(out)) if out else claim_next(task))
        for name, content in (files or {}).items():
            run.write(name, content)
        run.write_config(task, config)  # last: a folder with a config is a run
        return run

    def write_config(self, task: str, config: dict[str, Any]) -> None:
        self.write_json("config.json", {**config, "plait": __version__, "task": task})

    @classmethod
    def open(cls, path: str) -> "Run":
        folder = Path(path)
        if not folder.is_dir():
            found = "is a file" if folder.exists() else "does not exist"
            raise PlaitError(f"{path} {found}: expected the folder of a run, as plait train makes it.")
        if not (folder / "config.json").is_file():
            raise PlaitError(f"{path} has no config.json: expected the folder of a run, as plait train makes it.")
        return cls(folder)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For the one process that trains: it alone writes, and clears away what a killed one left half written."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PlaitError(f"{self.path} is being trained by another process: wait, or stop it.") from None
            for left_over in self.path.glob(".*.partial"):
                left_over.unlink(missing_ok=True)
            yield
        finally:
            os.close(folder)  # and with it the lock

    def config(self, task: str | None = None) -> dict[str, Any]:
        """The settings of a run of that task, or of any."""
        try:
            config: dict[str, Any] = json.loads((self.path / "config.json").read_text())
            found = config["task"]
        except (OSError, ValueError, KeyError, TypeError):
            raise PlaitError(f"{self.path}/config.json cannot be read as a run's settings.") from None
        if task is not None and found != task:
            raise PlaitError(f"{self.path} is a run of task '{found}', not '{task}'.")
        return config

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())

    def write_tensors(self, name: str, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        self.write(name, packed(tensors, meta))

    def write(self, name: str, content: bytes) -> None:
        write_whole(self.path / name, content)

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        path = self.path / name
        if not path.is_file():
            raise PlaitError(f"{path} is not there: the run stopped before it was written, or lost it; start it again.")
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                if FORMAT not in about:
                    raise PlaitError(f"{path} is not a checkpoint of plait: it was written by something else.")
                return {key: file.get_tensor(key) for key in file.keys()}, json.loads(about[FORMAT])  # noqa: SIM118
        except PlaitError:
            raise
        except (SafetensorError, OSError, ValueError) as e:
            raise PlaitError(f"{path} is truncated or damaged ({e}): restore it from a copy, or train again.") from None


def packed(tensors: dict[str, Tensor], meta: dict[str, Any]) -> bytes:
    """A file that `read_tensors` reads."""
    contiguous = {k: v.detach().contiguous() for k, v in tensors.items()}
    return to_bytes(contiguous, {FORMAT: json.dumps(meta)})


def claim(path: Path) -> Path:
    """Makes the folder, which must be new or empty."""
    if path.parent.is_file():
        raise PlaitError(f"{path.parent} is a file: a run needs a folder to be in.")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            if not path.is_dir() or any(path.iterdir()):
                raise PlaitError(f"{path} exists already: choose another --out, or --resume {path}.") from None
    return path


def claim_next(task: str) -> Path:
    """Makes runs/TASK-N with the next free N, whoever else may be looking for one."""
    with writing(Path("runs")):
        Path("runs").mkdir(exist_ok=True)
        taken = [p.name[len(task) + 1 :] for p in Path("runs").glob(f"{task}-*")]
        n = 1 + max((int(name) for name in taken if name.isdecimal()), default=0)
        while True:
            path = Path("runs") / f"{task}-{n}"
            try:
                path.mkdir()
                return path
            except FileExistsError:
                n += 1


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the disk says into a sentence."""
    try:
        yield
    except OSError as e:
        raise PlaitError(f"{path} cannot be written: {e.strerror}. What was there before is unharmed.") from None


def write_whole(path: Path, content: bytes) -> None:
    with writing(path):
        atomically(path, content)


def atomically(path: Path, content: bytes) -> None:
    """A reader, or a process after a crash, finds the old content or the new, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the new name, too, must outlive a power cut
    finally:
        os.close(directory)


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with it, under what follows it."""
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}


def load_weights(model: torch.nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    try:
        model.load_state_dict(weights)
    except RuntimeError as e:
        raise PlaitError(
            f"{path} does not fit the model of its config.json: {str(e).splitlines()[-1].strip()}"
        ) from None
