"""A run without a folder: what it would write stays in memory."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from .run import Run


class MemoryRun(Run):
    """Its checkpoints are gone with the process, unless they are given a folder."""

    begun = is_folder = False

    def __init__(self) -> None:
        super().__init__(Path("memory"))
        self.files: dict[str, bytes] = {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def begin(self) -> None:
        self.begun = True

    def content(self, name: str) -> bytes:
        return self.files[name]

    def write(self, name: str, content: bytes) -> None:
        self.files[name] = content
