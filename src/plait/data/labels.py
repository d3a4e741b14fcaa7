"""The labels of a series' rows: in which column they are, whether they are those of one series, and what is missing."""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby, islice, pairwise

from ..errors import PlaitError
from .dates import BY_DAY, MOMENT, moments
from .gaps import find_gaps, label_of
from .numbers import number
from .tables import Rows, listed

REPEATED = 0.1  # of the rows have a date that another one has: more than summer time repeats


def label_column(rows: Rows, index: int) -> tuple[int | None, list[datetime | None]]:
    """The first column of dates, else the first one; None if that has the values. index: of the values

    -> it, and its dates
    """
    for k in range(len(rows[0][1])):
        some = islice((row[k] for _, row in rows if row[k]), 10)
        is_date = any(MOMENT.fullmatch(cell) or BY_DAY.fullmatch(cell) for cell in some)
        if k != index and is_date and any(dates := moments([row[k] for _, row in rows])):
            return k, dates
    return (0, moments([row[0] for _, row in rows])) if index else (None, [])


def check_one_series(
    name: str, header: Sequence[str], rows: Rows, index: int, label: int, dates: Sequence[datetime | None]
) -> None:
    """Refuses several series below one another, or day by day. index: of the values; label: of the labels"""
    labels, known = [row[label] for _, row in rows], [at for at in dates if at]
    if not known:
        blocks = [(value, len(list(some))) for value, some in groupby(labels)]
        is_text = all(value and number(value) is None for value, _ in blocks)
        if is_text and 1 < len(blocks) == len(set(labels)) and min(count for _, count in blocks) > 1:
            raise PlaitError(
                f"{name}, column '{header[label]}' has {len(blocks):,} values, each in consecutive rows: expected one "
                "series; keep the rows of one value, or take the column away."
            )
    elif any(a >= b for a, b in pairwise(known)) and len(labels) - len(set(labels)) > REPEATED * len(labels):
        keys = [k for k in range(len(header)) if k not in (index, label) and is_key([r[k] for _, r in rows], labels)]
        if keys:
            key = min(keys, key=lambda k: len({row[k] for _, row in rows}))
            values = sorted({row[key] for _, row in rows})
            raise PlaitError(
                f"{name} has {len(values):,} series, one for each value of column '{header[key]}' ({listed(values[:5])}"
                f"{', ...' * (len(values) > 5)}): expected one; keep the rows of one of them."
            )


def is_key(column: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether it tells apart the rows that have the same label."""
    return 1 < len(set(column)) <= len(column) // 2 and len(set(zip(column, labels, strict=True))) == len(column)


def without_gaps(name: str, rows: Rows, label: int, dates: Sequence[datetime | None], missing: str) -> tuple[Rows, str]:
    """The rows, with empty ones for dates that have none, and a note; or a refusal, as --missing says."""
    numbers, labels = [k for k, _ in rows], [row[label] for _, row in rows]
    gaps = find_gaps(name, numbers, labels, dates)
    if not gaps.dates:
        return rows, ""
    first, at = gaps.dates[0]
    example = label_of(at, labels[first])
    if missing != "interpolate" and gaps.may_be_holidays:
        return rows, f" ({gaps}, such as {example})"
    if missing != "interpolate":
        raise PlaitError(
            f"{name}, row {numbers[first]}: {gaps}, the first is {example}: add them, or use --missing interpolate."
        )
    if len(gaps.dates) > len(rows):
        raise PlaitError(f"{name}: {gaps}: expected at least half of them; cut out a part that has them.")
    filled, k = Rows(), 0
    for before, at in gaps.dates:
        filled += rows[k:before]
        k, cells = before, [""] * len(rows[0][1])
        cells[label] = label_of(at, labels[before])
        filled.append((numbers[before], cells))
    return filled + rows[k:], ""
