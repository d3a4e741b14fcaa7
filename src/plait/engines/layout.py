"""Which rows there are: step after step, and within a step the sequences that are still alive, longest first."""

from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PlaitError


class Layout:
    """How many sequences are alive at each step; never more than at the step before."""

    def __init__(self, T: int, B: int, batch_sizes: Tensor | None = None) -> None:
        self.T, self.B, self.batch_sizes = T, B, batch_sizes
        self.cache: dict[Any, Any] = {}  # what engines have worked out for this layout: the layers of a stack share it
        if batch_sizes is None:
            self.N, self.is_dense = T * B, True

    @classmethod
    def ragged(cls, batch_sizes: Tensor) -> "Layout":
        """Of the sizes that a user's PackedSequence has: no engine sees sizes that cannot be."""
        if torch.compiler.is_compiling():  # the op makes its own layout, when there are numbers to look at
            return cls(batch_sizes.shape[0], int(batch_sizes[0]), batch_sizes)
        sizes = checked(batch_sizes)
        layout = cls(len(sizes), sizes[0], batch_sizes)
        layout.sizes = sizes
        return layout

    def check_rows(self, x: Tensor, width: int) -> None:
        if x.dim() < 2 or x.shape[-1] != width or x.numel() != self.N * width:
            raise PlaitError(
                f"input of shape {tuple(x.shape)}: expected {self.N} rows of {width}, one for each step taken."
            )

    @cached_property
    def sizes(self) -> list[int]:
        return [self.B] * self.T if self.batch_sizes is None else self.batch_sizes.tolist()

    @cached_property
    def starts(self) -> list[int]:
        """The first row of each step."""
        return [0, *accumulate(self.sizes)][: self.T]

    @cached_property
    def N(self) -> int:  # rows
        return sum(self.sizes)

    @cached_property
    def is_dense(self) -> bool:
        return self.N == self.T * self.B

    @cached_property
    def bounds(self) -> Tensor:  # (T + 1,)
        """The first row of each step, and the end."""
        return torch.from_numpy(np.array([*self.starts, self.N]))

    @property
    def offsets(self) -> Tensor | None:
        """`bounds`, if they cannot be computed from T and B."""
        return None if self.batch_sizes is None or self.is_dense else self.bounds

    def rows_before(self, reverse: bool) -> Tensor:  # (N,)
        """Which row of a tape's history each row goes on from."""
        key = "rows before", reverse
        if key not in self.cache:
            sizes = np.array(self.sizes)
            rows = np.arange(self.N)
            if not reverse:  # the row of a step earlier is as many rows earlier as were alive then; B initial ones lead
                rows += np.repeat(self.B - np.concatenate([[self.B], sizes[:-1]]), sizes)
            else:  # the row of a step later, or the initial one, beyond all rows
                following, first = np.append(sizes[1:], 0), np.array(self.starts)
                sequence = rows - np.repeat(first, sizes)
                rows = np.where(
                    sequence < np.repeat(following, sizes), rows + np.repeat(sizes, sizes), self.N + sequence
                )
            self.cache[key] = torch.from_numpy(rows)
        before: Tensor = self.cache[key]
        return before

    def order(self, reverse: bool) -> range:
        """The steps as the recurrence walks them. Each row starts where its own sequence starts (or ends)."""
        return range(self.T - 1, -1, -1) if reverse else range(self.T)


def checked(batch_sizes: Tensor) -> list[int]:
    is_whole = not (batch_sizes.dtype.is_floating_point or batch_sizes.dtype.is_complex)
    if batch_sizes.dim() != 1 or not is_whole or not len(batch_sizes):
        kind = f"shape {tuple(batch_sizes.shape)} in {batch_sizes.dtype}"
        raise PlaitError(f"batch_sizes have {kind}: expected one whole number for each step.")
    found: list[int] = batch_sizes.tolist()
    sizes = np.array(found)  # (T,)
    more = np.flatnonzero(sizes[1:] > sizes[:-1])
    if sizes[-1] < 1 or len(more):
        t = more[0] + 1 if len(more) else int((sizes < 1).argmax())
        before = f" after {sizes[t - 1]} at the step before" if t else ""
        raise PlaitError(
            f"batch_sizes: step {t} has {sizes[t]} sequences{before}, expected at least 1 and never more than before: "
            "make the PackedSequence with pack_sequence or pack_padded_sequence."
        )
    return found
