"""Buckets: sequences of similar length share a batch, so that little of it is padding.

A bucketing is a tuple of ascending boundaries. A sequence belongs to the first boundary that is not below its length,
and is padded up to it.
"""

import re
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import PlaitError, between
from ..layout import Whole

Boundaries = tuple[int, ...]
Lengths = Sequence[int] | NDArray[Any] | Tensor

LONGEST = 2**31 - 1  # so that any number of slots fits into int64
MOST = 2**64 - 1  # the largest batch, epoch or seed: as large as torch takes one
BOUNDARIES = re.compile(r"\d{1,10}(,\d{1,10})*", re.ASCII)
OPTIMAL = re.compile(r"optimal:(\d{1,10})", re.ASCII)
POOL = re.compile(r"pool:(\d{1,10})", re.ASCII)


def none(lengths: Lengths) -> Boundaries:
    return (int(whole(lengths).max()),)


def static(lengths: Lengths, boundaries: Lengths) -> Boundaries:
    found = whole(lengths)
    limits = whole(boundaries, "boundaries")
    if (limits[1:] <= limits[:-1]).any():
        raise PlaitError(
            f"boundaries {listed(limits)}: expected ascending numbers, such as {listed(np.unique(limits))}."
        )
    over = np.flatnonzero(found > limits[-1])
    if len(over):
        first = ", ".join(f"number {k} of length {found[k]}" for k in over[:3])
        more = f" and {len(over) - 3} more" if len(over) > 3 else ""
        raise PlaitError(
            f"boundaries {listed(limits)}: {len(over)} of {len(found)} sequences are longer than {limits[-1]} "
            f"(counted from 0: {first}{more}): add a boundary of at least {found.max()}."
        )
    return tuple(limits.tolist())


def greedy(lengths: Lengths, batch: int) -> Boundaries:
    """From the shortest on, a bucket ends as soon as it fills a batch."""
    values, counts = np.unique(whole(lengths), return_counts=True)
    at_least_whole("batch", batch, 1)
    ends, waiting = [], 0
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        waiting += count
        if waiting >= batch or value == values[-1]:
            ends.append(value)
            waiting = 0
    return tuple(ends)


def optimal(lengths: Lengths, K: int) -> Boundaries:
    """The boundaries with the least padding, at most K of them.

    With D distinct lengths, of which the first j count C[j] sequences of S[j] tokens, the least padding of those j in k
    buckets is f[k][j] = min over i < j of f[k-1][i] + len[j] (C[j] - C[i]) - (S[j] - S[i]).
    """
    values, counts = np.unique(whole(lengths), return_counts=True)
    at_least_whole("buckets", K, 1)
    if len(values) <= K:
        return tuple(values.tolist())
    length = [0, *values.tolist()]  # (1 + D,), as Python's own numbers, which do not overflow
    count = [0, *np.cumsum(counts).tolist()]
    tokens = [0, *np.cumsum(values * counts).tolist()]
    least = [n * c - s for n, c, s in zip(length, count, tokens, strict=True)]  # f[1]
    cuts = []
    for _ in range(K - 1):
        least, cut = one_more(least, length, count, tokens)
        cuts.append(cut)
    ends = [len(values)]  # there are more lengths than buckets, so fewer than K of them would be worse
    for cut in reversed(cuts):
        ends.append(cut[ends[-1]])
    return tuple(length[j] for j in reversed(ends))


def one_more(before: list[int], length: list[int], count: list[int], tokens: list[int]) -> tuple[list[int], list[int]]:
    """f[k-1] -> f[k], and for each j the i with which f[k][j] is the least.

    What depends on i is a line in len[j], of slope -C[i] and height f[k-1][i] + S[i]. The lines come with falling
    slopes and are asked at growing lengths, so each enters and leaves their lower hull once: D steps, not D * D.
    """
    height = [f + s for f, s in zip(before, tokens, strict=True)]
    hull: deque[int] = deque()
    least, cut = [0], [0]
    for j in range(1, len(length)):
        c = j - 1
        while len(hull) > 1 and not shows(hull[-2], hull[-1], c, height, count):
            hull.pop()
        hull.append(c)
        n = length[j]
        while len(hull) > 1 and height[hull[1]] - n * count[hull[1]] <= height[hull[0]] - n * count[hull[0]]:
            hull.popleft()
        i = hull[0]
        least.append(height[i] - n * count[i] + n * count[j] - tokens[j])
        cut.append(i)
    return least, cut


def shows(a: int, b: int, c: int, height: list[int], count: list[int]) -> bool:
    """Whether line b is below both its neighbours somewhere."""
    return (height[b] - height[a]) * (count[c] - count[a]) < (height[c] - height[a]) * (count[b] - count[a])


def padding(lengths: Lengths, boundaries: Lengths) -> float:
    """The share of all slots that is padding, 0 to 1."""
    slots = np.asarray(static(lengths, boundaries))[bucket_of(lengths, boundaries)]  # (size,)
    return 1 - float(whole(lengths).sum() / slots.sum())


def bucket_of(lengths: Lengths, boundaries: Lengths) -> Whole:
    return np.searchsorted(static(lengths, boundaries), whole(lengths)).astype(np.int64)


def parse(text: str, lengths: Lengths, batch: int) -> Boundaries:
    """As the command line names them: none, greedy, optimal:10, or 8,16,32."""
    if text == "none":
        return none(lengths)
    if text == "greedy":
        return greedy(lengths, batch)
    if most := OPTIMAL.fullmatch(text):
        return optimal(lengths, int(most[1]))
    if BOUNDARIES.fullmatch(text):
        return static(lengths, [int(number) for number in text.split(",")])
    raise PlaitError(
        f"buckets '{text}' is not known: expected none, greedy, optimal:10 (the best ten), boundaries such as 8,16,32, "
        "or pool:50 (fifty batches' worth, sorted)."
    )


def whole(numbers: Lengths, name: str = "lengths") -> Whole:
    """The numbers as an array, if each of them can be a length."""
    numbers = numbers.tolist() if isinstance(numbers, Tensor) else numbers  # on any device
    try:
        values = np.asarray(numbers)
        if values.dtype.kind not in "iuf":
            values = np.asarray(numbers, dtype=object)
    except ValueError:
        raise PlaitError(f"{name} are not one row of numbers: expected one whole number each.") from None
    if values.ndim != 1:
        raise PlaitError(f"{name} have the shape {values.shape}: expected one row of whole numbers.")
    if not len(values):
        raise PlaitError(f"{name} are empty: expected at least one whole number.")
    if values.dtype.kind == "f":
        values = values.astype(np.float64)  # which holds LONGEST
    if values.dtype.kind == "O":
        good = np.array([is_whole(v) and 1 <= v <= LONGEST for v in values])
    else:
        good = (values >= 1) & (values <= LONGEST) & (np.floor(values) == values)
    if not good.all():
        k = int(good.argmin())
        raise PlaitError(
            f"{name}: number {k}, counted from 0, is {values[k]}: expected whole numbers from 1 to {LONGEST}."
        )
    return values.astype(np.int64)


def is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def at_least_whole(name: str, value: int, least: int) -> None:
    if not is_whole(value):
        raise PlaitError(f"{name} {value!r}: must be a whole number of at least {least}.")
    between(name, value, least, MOST)


def listed(numbers: Whole) -> str:
    return ",".join(map(str, numbers.tolist()))
