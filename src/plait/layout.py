"""The rows of a batch of sequences. Data, layers, engines and kernels all describe them in this way.

Everything that has a time and a batch axis is a matrix of rows: step after step, and within a step the sequences that
are still alive, longest first. This is the order of torch's PackedSequence. In a dense batch (T, B) all sequences live
to the end. There is no padding.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .errors import PlaitError

Whole = NDArray[np.int64]


class Layout:
    """How many sequences are alive at each step; never more than at the step before.

    Everything is computed only when it is needed.

    A walk in chunks, forward or in reverse, has running states (B, .), which begin as the initial ones. The first
    chunk.B rows of them enter a chunk = layout.cut(t0, t1), and the states after the chunk replace those rows. A
    sequence that has ended, or in reverse has not begun yet, keeps its row. After all chunks the running states are the
    last states. The gradients of the states do the same in the backward pass, through the chunks in the opposite order.
    """

    # If it was made from lengths in any order. A PackedSequence has its own.
    permutation: Tensor | None = None  # (B,): the numbers of the sequences, as they were given, longest first
    inverse: Tensor | None = None  # (B,): the place of each of them in that order
    padding: "Padding | None" = None  # where the rows are in a padded batch, if they come from one

    def __init__(self, T: int, B: int, batch_sizes: Tensor | None = None, **known: Any) -> None:
        """Dense, or with sizes that were checked already. known: what was computed with them (engines/lengths.py)"""
        self.T, self.B, self.batch_sizes = T, B, batch_sizes
        self.__dict__.update(known)
        self.cache: dict[Any, Any] = {}  # what engines have computed for this layout
        if batch_sizes is None:
            self.N, self.is_dense = T * B, True

    @classmethod
    def ragged(cls, batch_sizes: Tensor, B: int | None = None) -> "Layout":
        """From the checked sizes of a PackedSequence. B: for torch.compile"""
        if torch.compiler.is_compiling():  # there are no numbers yet; the op makes its own layout
            return cls(batch_sizes.shape[0], int(batch_sizes[0]) if B is None else B, batch_sizes)
        sizes = check_sizes(batch_sizes)
        layout = cls(len(sizes), sizes[0], batch_sizes)
        layout.sizes = sizes
        return layout

    @classmethod
    def of_lengths(
        cls, lengths: Tensor | Whole | Sequence[int], T: int | None = None, B: int | None = None
    ) -> "Layout":
        """From lengths in any order. T, B: of the padded tensor, if there is one"""
        found = check_lengths(lengths, T, B)
        if not len(found):
            return cls(T or 0, 0)
        order = np.argsort(-found, kind="stable")
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        layout = cls.of_sorted(found[order])
        layout.permutation, layout.inverse = torch.from_numpy(order), torch.from_numpy(inverse)
        return layout

    @classmethod
    def of_sorted(cls, lengths: Whole) -> "Layout":  # (B,), longest first
        T = int(lengths[0])
        layout = cls(T, len(lengths), torch.from_numpy(above(lengths, T)))
        layout.lengths = lengths
        return layout

    # --- the rows
    @cached_property
    def sizes(self) -> list[int]:
        """How many sequences are alive at each step."""
        return [self.B] * self.T if self.batch_sizes is None else self.batch_sizes.tolist()

    @cached_property
    def starts(self) -> list[int]:
        """The first row of each step."""
        return [0, *accumulate(self.sizes)][: self.T]

    @cached_property
    def first_rows(self) -> Whole:  # (T,)
        return np.array(self.starts, np.int64)

    @cached_property
    def N(self) -> int:  # rows
        return sum(self.sizes)

    @cached_property
    def is_dense(self) -> bool:
        return self.N == self.T * self.B

    @cached_property
    def lengths(self) -> Whole:  # (B,)
        """How many steps each sequence has, longest first."""
        return above(np.array(self.sizes, np.int64), self.B)

    @cached_property
    def bounds(self) -> Tensor:  # (T + 1,)
        """The first row of each step, and the end. Two threads get the same tensor: kernels have its address."""
        made = torch.from_numpy(np.array([*self.starts, self.N], np.int64))
        found: Tensor = self.cache.setdefault("bounds", made)
        return found

    @cached_property
    def steps_and_places(self) -> tuple[Whole, Whole]:  # (N,) each
        """The step of each row, and its sequence counted from the longest."""
        sizes = np.array(self.sizes, np.int64)
        step = np.repeat(np.arange(self.T), sizes)
        return step, np.arange(self.N) - (np.cumsum(sizes) - sizes)[step]

    @cached_property
    def step(self) -> Tensor:  # (N,)
        return torch.from_numpy(self.steps_and_places[0])

    @cached_property
    def sequence(self) -> Tensor:  # (N,)
        return torch.from_numpy(self.numbers)

    @cached_property
    def numbers(self) -> Whole:  # (N,)
        place = self.steps_and_places[1]
        return place if self.permutation is None else np.array(self.permutation.tolist())[place]

    def check_rows(self, x: Tensor, width: int) -> None:
        if x.dim() < 2 or x.shape[-1] != width or x.numel() != self.N * width:
            raise PlaitError(
                f"input of shape {tuple(x.shape)}: expected {self.N} rows of {width}, one for each step taken."
            )

    def places(self, T: int, batch_first: bool) -> Tensor:  # (N,)
        """Where each row is in a padded batch whose first two axes are flattened."""
        step, sequence = self.steps_and_places[0], self.numbers
        return torch.from_numpy(sequence * T + step if batch_first else step * self.B + sequence)

    def packed_sequence(self, rows: Tensor) -> PackedSequence:  # (N, .)
        sizes = torch.tensor(self.sizes, device="cpu") if self.batch_sizes is None else self.batch_sizes
        if self.permutation is None or self.inverse is None:
            return PackedSequence(rows, sizes)
        return PackedSequence(rows, sizes, self.permutation.to(rows.device), self.inverse.to(rows.device))

    # --- a walk
    def order(self, reverse: bool) -> range:
        """The steps in the order of a walk."""
        return range(self.T - 1, -1, -1) if reverse else range(self.T)

    def rows_before(self, reverse: bool) -> Tensor:  # (N,)
        """For each row, the row before it in the history of a tape."""
        key = "rows before", reverse
        if key not in self.cache:
            sizes = np.array(self.sizes, np.int64)
            rows = np.arange(self.N, dtype=np.int64)
            if not reverse:  # the step before has sizes[t - 1] rows; the B initial rows come first
                rows += np.repeat(self.B - np.array([self.B, *self.sizes[:-1]]), sizes)
            else:  # the row of the next step, or the initial one, which comes after all rows
                following, sequence = np.append(sizes[1:], 0), self.steps_and_places[1]
                rows = np.where(
                    sequence < np.repeat(following, sizes), rows + np.repeat(sizes, sizes), self.N + sequence
                )
            self.cache.setdefault(key, torch.from_numpy(rows))  # the first stays: kernels have its address
        before: Tensor = self.cache[key]
        return before

    # --- cuts and spans of it
    def cuts(self, steps: int, reverse: bool = False) -> list[tuple[int, int]]:
        """All steps in chunks, in the order of a walk: (first, end) of each."""
        if steps < 1:
            raise PlaitError(f"chunks of {steps} steps: expected at least 1.")
        T, found = self.T, [(t, min(t + steps, self.T)) for t in range(0, self.T, steps)]
        return [(T - t1, T - t0) for t0, t1 in found] if reverse else found

    def rows(self, t0: int, t1: int) -> slice:
        """The rows of the steps from t0 up to t1, not included."""
        if self.batch_sizes is None:
            return slice(t0 * self.B, t1 * self.B)
        return slice(self.starts[t0], self.starts[t1] if t1 < self.T else self.N)

    def cut(self, t0: int, t1: int) -> "Layout":
        """The steps from t0 up to t1, of the sequences alive at t0."""
        if not 0 <= t0 < t1 <= self.T and (t0, t1) != (0, self.T):
            raise PlaitError(
                f"steps {t0} to {t1} of {self.T}: expected at least one step, and none outside of the sequence."
            )
        if self.batch_sizes is None:
            return Layout(t1 - t0, self.B)
        key = "cut", t0, t1  # always the same object: engines store much in its cache
        if key not in self.cache:
            layout = Layout(t1 - t0, self.sizes[t0], self.batch_sizes[t0:t1])
            layout.sizes = self.sizes[t0:t1]
            self.cache[key] = layout
        chunk: Layout = self.cache[key]
        return chunk

    def pieces(self, c: int) -> "Pieces":
        """Every sequence in pieces of c steps, side by side; the last may be shorter."""
        if c < 1:
            raise PlaitError(f"pieces of {c} steps: expected at least 1.")
        if self.batch_sizes is None:
            return dense_pieces(self.T, self.B, c)
        key = "pieces", c
        if key not in self.cache:
            self.cache[key] = self._pieces(c)
        found: Pieces = self.cache[key]
        return found

    def _pieces(self, c: int) -> "Pieces":
        begins = np.arange(0, max(1, self.T), c)[:, None]  # (K, 1)
        lengths = (self.lengths - begins).clip(max=c)  # (K, B)
        piece, sequence = ((lengths > 0) | (begins == 0)).nonzero()  # piece after piece
        first = piece * c
        layout, rows, order = self.spans(sequence, first, first + lengths[piece, sequence])
        if not self.B:
            layout = Layout(min(c, self.T), 0)
        return Pieces(layout, rows, torch.from_numpy(piece)[order], torch.from_numpy(sequence)[order])

    def spans(self, sequence: Whole, first: Whole, end: Whole) -> "Spans":
        """The steps from `first` up to `end` of some sequences, as sequences."""
        lengths = end - first
        order = np.argsort(-lengths, kind="stable")
        sequence, first, lengths = sequence[order], first[order], lengths[order]
        if (lengths == lengths[:1]).all():
            layout = Layout(int(lengths[0]) if len(lengths) else 0, len(lengths))
        else:
            layout = Layout.of_sorted(lengths)
        step, place = layout.steps_and_places
        rows = self.first_rows[first[place] + step] + sequence[place]
        return Spans(layout, torch.from_numpy(rows), torch.from_numpy(order))

    @cached_property
    def backwards(self) -> Tensor:  # (N,)
        """The rows in the order of a walk in reverse."""
        step, place = self.steps_and_places
        return torch.from_numpy(self.first_rows[self.lengths[place] - 1 - step] + place)

    def every(self, k: int, of: int) -> tuple["Layout", Tensor]:
        """Every `of`-th sequence from k on -> its layout, its rows in this one"""
        lengths = self.lengths[k::of]
        layout = Layout(self.T, len(lengths)) if self.batch_sizes is None else Layout.of_sorted(lengths)
        return layout, torch.from_numpy(np.flatnonzero(self.steps_and_places[1] % of == k))

    def shares(self, count: int) -> list[int]:
        """Slices of the batch of about the same work -> their bounds: 0, ..., B"""
        count = max(1, min(self.B, count))
        if self.is_dense:
            return [self.B * k // count for k in range(count + 1)]
        key = "shares", count
        if key in self.cache:
            return self.cache[key]  # type: ignore[no-any-return]
        work = np.cumsum(self.lengths).tolist()  # steps of all sequences up to each
        cuts = [0]
        for k in range(1, count):  # enough sequences remain: the longest come first
            cuts.append(max(cuts[-1] + 1, bisect_right(work, self.N * k // count)))
        self.cache[key] = bounds = [*cuts, self.B]
        return bounds


class Padding(NamedTuple):
    """Where the rows are in a padded batch."""

    shape: tuple[int, int]  # (T, B), or (B, T)
    places: Tensor  # (N,): of each row, its place in the padded batch, whose first two axes are flattened
    order: Tensor  # (B,): the numbers of the sequences, longest first
    inverse: Tensor  # (B,): the place of each of them in that order
    bindings: tuple[int, ...] = ()  # for a kernel: how many places; the addresses of places, rows and sequences

    def gathered(self, padded: Tensor) -> Tensor:  # (., ., width) -> (N, width)
        return padded.flatten(0, 1).index_select(0, self.places)

    def sorted(self, states: Sequence[Tensor]) -> list[Tensor]:  # (., B, .) each
        return [s.index_select(1, self.order) for s in states]

    def unsorted(self, states: Sequence[Tensor]) -> list[Tensor]:
        return [s.index_select(1, self.inverse) for s in states]

    def scattered(self, rows: Tensor) -> Tensor:  # (N, width) -> (., ., width)
        """With zeros beyond the ends."""
        a, b = self.shape
        return rows.new_zeros(a * b, rows.shape[1]).index_copy(0, self.places, rows).view(a, b, -1)


class Pieces(NamedTuple):
    """K pieces of each of B sequences as K*B sequences, fewer where some sequences are shorter.

    The longest pieces come first. Pieces of the same length are in the order of time. So if all sequences have the same
    length, piece p of sequence b is number p*B + b. The layout is dense if all pieces have the same length.
    """

    layout: Layout
    rows: Tensor  # (N,): for each row of the pieces, its row in the whole layout
    piece: Tensor  # (K*B,): the number of each piece in its sequence
    sequence: Tensor  # (K*B,): its sequence, counted from the longest: the row in the states (B, .)


class Spans(NamedTuple):
    """Spans of sequences as sequences of their own, the longest first."""

    layout: Layout
    rows: Tensor  # (N,): for each row of the spans, its row in the whole layout
    order: Tensor  # (n,): the number of each span, as they were given


dense_layout = lru_cache(64)(Layout)  # every call of a layer asks for one


@lru_cache(16)
def dense_pieces(T: int, B: int, c: int) -> Pieces:
    """They are the same for all batches of that shape."""
    return Layout(T, B)._pieces(c)


def above(numbers: Whole, count: int) -> Whole:  # (n,), the largest first -> (count,)
    """How many numbers are above 0, above 1, ...: lengths -> sizes -> lengths"""
    return len(numbers) - np.searchsorted(numbers[::-1], np.arange(count), "right")


def check_sizes(batch_sizes: Tensor) -> list[int]:
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


def check_lengths(given: Tensor | Whole | Sequence[int], T: int | None, B: int | None) -> Whole:
    try:
        numbers = given if len(given) else np.zeros(0, np.int64)
        lengths = given if isinstance(given, Tensor) else torch.as_tensor(numbers, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise PlaitError(f"lengths {given!r}: expected whole numbers, one for each sequence of the batch.") from None
    if lengths.dtype.is_floating_point or lengths.dtype.is_complex or lengths.dtype == torch.bool:
        raise PlaitError(f"lengths of type {lengths.dtype}: expected whole numbers, such as torch.int64.")
    if lengths.dim() != 1 or len(lengths) != (len(lengths) if B is None else B):
        expected = "one axis" if B is None else f"({B},)"
        raise PlaitError(
            f"lengths of shape {tuple(lengths.shape)}: expected {expected}, one for each sequence of the batch."
        )
    if T == 0:
        raise PlaitError("lengths of an input that has no steps: leave them out.")
    found: Whole = np.array(lengths.tolist(), np.int64)  # .numpy() does not work within torch.func
    if len(found) and not (found.min() >= 1 and (T is None or found.max() <= T)):
        b = int(((found < 1) | (found > (T or found.max()))).argmax())
        expected = "at least 1" if T is None else f"1 to {T}, the number of steps in the input"
        raise PlaitError(f"length {found[b]} of sequence {b}: expected {expected}.")
    return found
