"""The copies of rows that a launch makes before its walks and after all else (kernels/copying.py)."""

from torch import Tensor

from ..kernels import pool
from ..kernels.records import copy as COPY
from .way_back import matrix


class Copies:
    """Their words, and one piece of memory for the matrices that are only there during the launch."""

    def __init__(self, like: Tensor, numbers: int) -> None:
        """numbers: of all these matrices"""
        self.size, self.memory = like.itemsize, pool.empty(like, numbers) if numbers else like
        self.start = self.at = self.memory.data_ptr()
        self.before: list[int] = []
        self.after: list[int] = []

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.before) // COPY.GIVEN, len(self.after) // COPY.GIVEN

    def room(self, rows: int, width: int) -> int:
        """For a new matrix -> its address."""
        at = self.at
        self.at += rows * width * self.size
        return at

    def into_new(self, origin: int, index: int, rows: int, width: int) -> int:
        """Before the walks: rows of another matrix -> the address of the new one"""
        at = self.room(rows, width)
        self.before += [at, origin, index, rows, width * self.size]
        return at

    def out_of(self, at: int, to: int, index: int, rows: int, width: int) -> None:
        """After all else: rows of the matrix there become those of another."""
        self.after += [to, at, index, rows, width * self.size]

    def matrix(self, at: int, rows: int, width: int) -> Tensor:
        """One of the new matrices."""
        return matrix(self.memory, (at - self.start) // self.size, rows, width)
