"""The labels of a series' rows: in which column they are, whether they are those of one series, and what is missing."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby, islice, pairwise

from ..errors import PlaitError
from .dates import BY_DAY, MOMENT, NEARLY_ALL, moments
from .gaps import find_gaps, label_of
from .numbers import number
from .tables import Rows, listed

TIMES = {"date", "datetime", "timestamp", "time", "t", "step", "period"}  # words in the names of columns
TIMES |= {"year", "quarter", "month", "week", "weekday", "day", "dayofweek", "hour", "minute", "second"}
PERIOD = re.compile(r"[12]\d{3}(?:[-/ ]?[A-Z]\d{1,2}(?:-\d)?)?", re.ASCII | re.I)  # 2001, 2001-Q3, 2001-W05
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
    """Refuses several series below one another, or step by step. index: of the values; label: of the labels"""
    known = [at for at in dates if at]
    if known and all(a < b for a, b in pairwise(known)):
        return
    columns = [[row[k] for _, row in rows] for k in range(len(header))]
    others = [k for k in range(len(header)) if k != index]
    times = [k for k in others if (known and k == label) or tells_time(header[k], columns[k])]
    repeated = len(rows) - count(columns[k] for k in times)
    if times and repeated > REPEATED * len(rows):
        keys = keys_of(columns, [k for k in others if k not in times], times, has_names=not header[index].isdecimal())
        if keys:
            found = list(dict.fromkeys(zip(*(columns[k] for k in keys), strict=True)))
            raise PlaitError(f"{name} has {several(header, keys, found)}: expected one; {todo(header, columns, keys)}.")
    elif known and len(rows) - count([columns[label]]) > REPEATED * len(rows):
        first, *more = (columns[k][0] for k in [label, *(k for k in times if k != label)])
        raise PlaitError(
            f"{name}: its rows are told apart by columns {listed(quoted(header, times))} together: write these into "
            f"one, such as '{first} {' '.join(more)}'."
        )
    blocks = [(value, len(list(some))) for value, some in groupby(columns[label])]
    is_text = not known and all(value and number(value) is None for value, _ in blocks)
    if is_text and 1 < len(blocks) == count([columns[label]]) and min(length for _, length in blocks) > 1:
        raise PlaitError(
            f"{name}, column '{header[label]}' has {len(blocks):,} values, each in consecutive rows: expected one "
            "series; keep the rows of one value, or take the column away."
        )


def tells_time(name: str, column: Sequence[str]) -> bool:
    """Whether its cells are years, quarters or weeks, or its name is that of a part of a date."""
    if TIMES.intersection(re.findall("[a-z]+", name.lower())):
        return True
    is_likely = any(map(PERIOD.fullmatch, column[:10]))
    return is_likely and sum(map(bool, map(PERIOD.fullmatch, column))) >= NEARLY_ALL * len(column)


def keys_of(
    columns: Sequence[Sequence[str]], among: Sequence[int], times: Sequence[int], *, has_names: bool
) -> list[int]:
    """The fewest columns that tell apart the rows of the same time, if some do, but for a few rows. The first of those
    that would do as well.
    """
    keys = [k for k in among if 1 < len(set(columns[k])) <= len(columns[k]) // 2]
    if not has_names:  # a number may be a month then
        keys = [k for k in keys if any(number(cell) is None for cell in columns[k])]
    apart, rows = count(columns[k] for k in (*times, *keys)), len(columns[0])
    if apart < (1 - REPEATED) * rows:
        return []
    for k in sorted(keys, key=lambda k: (len(set(columns[k])), k), reverse=True):
        if count(columns[i] for i in (*times, *keys) if i != k) == apart:
            keys.remove(k)
    return keys


def count(columns: Iterable[Sequence[str]]) -> int:
    """How many different rows they have."""
    return len(set(zip(*columns, strict=True)))


def several(header: Sequence[str], keys: Sequence[int], found: Sequence[Sequence[str]]) -> str:
    some = ", ".join(" ".join(values) for values in found[:5]) + ", ..." * (len(found) > 5)
    if len(keys) == 1:
        return f"{len(found):,} series, one for each value of column '{header[keys[0]]}' ({some})"
    return f"{len(found):,} series, one for each combination of columns {' and '.join(quoted(header, keys))} ({some})"


def todo(header: Sequence[str], columns: Sequence[Sequence[str]], keys: Sequence[int]) -> str:
    (key, *more) = keys
    keep = "keep the rows of one of them"
    if more or any(number(cell) is None for cell in columns[key]):
        return keep
    return f"{keep}; or, if '{header[key]}' is a part of the time, call it month, week, day or hour"


def quoted(header: Sequence[str], some: Sequence[int]) -> list[str]:
    return [f"'{header[k]}'" for k in some]


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
