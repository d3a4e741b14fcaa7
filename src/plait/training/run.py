"""A run is a folder. Whatever is written there is written whole or not at all."""

import contextlib
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
    def create(cls, out: str | None, task: str, config: dict[str, Any]) -> "Run":
        path = Path(out) if out else next_free(task)
        with writing(path):
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise PlaitError(f"{path} exists already: choose another --out, or go on with --resume {path}.")
            path.mkdir(parents=True, exist_ok=True)
        run = cls(path)
        run.write_json("config.json", {"plait": __version__, "task": task, **config})
        return run

    @classmethod
    def open(cls, path: str) -> "Run":
        folder = Path(path)
        if not folder.is_dir():
            found = "is a file" if folder.exists() else "does not exist"
            raise PlaitError(f"{path} {found}: expected the folder of a run, as plait train makes it.")
        if not (folder / "config.json").is_file():
            raise PlaitError(f"{path} has no config.json: expected the folder of a run, as plait train makes it.")
        for left_over in folder.glob(".*.partial"):  # of a write that was killed
            left_over.unlink(missing_ok=True)
        return cls(folder)

    def config(self, task: str) -> dict[str, Any]:
        try:
            config: dict[str, Any] = json.loads((self.path / "config.json").read_text())
            found = config["task"]
        except (OSError, ValueError, KeyError, TypeError):
            raise PlaitError(f"{self.path}/config.json cannot be read as a run's settings.") from None
        if found != task:
            raise PlaitError(f"{self.path} is a run of task '{found}', not '{task}'.")
        return config

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, (json.dumps(value, indent=1) + "\n").encode())

    def write_tensors(self, name: str, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        contiguous = {k: v.detach().contiguous() for k, v in tensors.items()}
        self.write(name, to_bytes(contiguous, {FORMAT: json.dumps(meta)}))

    def write(self, name: str, content: bytes) -> None:
        with writing(self.path / name):
            atomically(self.path / name, content)

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        path = self.path / name
        if not path.is_file():
            raise PlaitError(f"{path} is not there: the run stopped before its first checkpoint; start it again.")
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                if FORMAT not in about:
                    raise PlaitError(f"{path} is not a checkpoint of plait: it was written by something else.")
                return {key: file.get_tensor(key) for key in file.keys()}, json.loads(about[FORMAT])  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as e:
            if isinstance(e, PlaitError):
                raise
            raise PlaitError(f"{path} is truncated or damaged ({e}): restore it from a copy, or train again.") from None


def next_free(task: str) -> Path:
    numbers = (
        int(p.name.rsplit("-", 1)[1]) for p in Path("runs").glob(f"{task}-*") if p.name[len(task) + 1 :].isdecimal()
    )
    return Path("runs") / f"{task}-{max(numbers, default=0) + 1}"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the disk says into a sentence."""
    try:
        yield
    except OSError as e:
        raise PlaitError(f"{path} cannot be written: {e.strerror}. What was there before is unharmed.") from None


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


def module_of(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}


def load_weights(model: torch.nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    try:
        model.load_state_dict(weights)
    except RuntimeError as e:
        raise PlaitError(
            f"{path} does not fit the model of its config.json: {str(e).splitlines()[-1].strip()}"
        ) from None
