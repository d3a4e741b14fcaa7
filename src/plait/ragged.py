"""Sequences of different lengths as rows: step after step, and within a step those that are still alive, longest first.

That is the layout of torch's PackedSequence, and of the engines (engines/base.py). Nothing in it is padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .errors import PlaitError

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Live:
    """Which sequences are alive at which step: all that there is to know about the rows but what stands in them."""

    permutation: Tensor  # (B,): the sequences, longest first
    inverse: Tensor  # (B,): where each of them then is
    batch_sizes: Tensor  # (T,): how many are alive
    step: Tensor  # (N,): the step of each row
    sequence: Tensor  # (N,): and its sequence

    @classmethod
    def checked(cls, given: Tensor | Sequence[int], T: int, B: int) -> "Live":
        """Of the lengths that a user gave."""
        return cls.of(check_lengths(given, T, B))

    @classmethod
    def of(cls, lengths: Whole) -> "Live":  # (B,)
        order = np.argsort(-lengths, kind="stable")
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        ordered = lengths[order]
        steps = np.arange(ordered[0])
        sizes = len(ordered) - np.searchsorted(ordered[::-1], steps, "right")  # (T,)
        step, place = (steps[:, None] < ordered).nonzero()
        return cls(*map(torch.from_numpy, (order, inverse, sizes, step, order[place])))

    def places(self, T: int, batch_first: bool) -> Tensor:  # (N,)
        """Where each row stands in a padded batch (T, B, .), or (B, T, .), without its first axis."""
        B = len(self.permutation)
        return self.sequence * T + self.step if batch_first else self.step * B + self.sequence

    def packed(self, rows: Tensor) -> PackedSequence:  # (N, .)
        return PackedSequence(rows, self.batch_sizes, self.permutation.to(rows.device), self.inverse.to(rows.device))


def check_lengths(given: Tensor | Sequence[int], T: int, B: int) -> Whole:
    """The lengths, or the sentence that says which one is wrong."""
    try:
        numbers = given if len(given) else np.zeros(0, np.int64)
        lengths = given if isinstance(given, Tensor) else torch.as_tensor(numbers, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise PlaitError(f"lengths {given!r}: expected whole numbers, one for each sequence of the batch.") from None
    if lengths.dtype.is_floating_point or lengths.dtype.is_complex or lengths.dtype == torch.bool:
        raise PlaitError(f"lengths of type {lengths.dtype}: expected whole numbers, such as torch.int64.")
    if lengths.shape != (B,):
        raise PlaitError(
            f"lengths of shape {tuple(lengths.shape)}: expected ({B},), one for each sequence of the batch."
        )
    if T == 0:
        raise PlaitError("lengths of an input that has no steps: leave them out.")
    found: Whole = np.array(lengths.tolist(), np.int64)  # by way of a list: .numpy() does not work within torch.func
    if B and not (found.min() >= 1 and found.max() <= T):
        b = int(((found < 1) | (found > T)).argmax())
        raise PlaitError(f"length {found[b]} of sequence {b}: expected 1 to {T}, the number of steps in the input.")
    return found
