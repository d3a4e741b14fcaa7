"""Dates as labels of rows: what they mean, and whether they are in order."""

import re
from calendar import monthrange
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

from ..errors import PlaitError

MOMENT = re.compile(r"\d{4}([-/])\d{2}(\1\d{2}([ T]\d{2}:.*)?)?", re.ASCII)
BY_DAY = re.compile(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?:[ T](\d{1,2}):(\d{2})(?::(\d{2}))?)?", re.ASCII)
NEARLY_ALL = 0.9  # of the labels: the others may be a sum, or a gap
CHANGE_MONTHS = (3, 4, 5, 9, 10, 11)  # in which summer time ends, south and north
CHANGE_HOURS = (23, 0, 1, 2, 3)


def check_order(name: str, numbers: Sequence[int], labels: Sequence[str], dates: Sequence[datetime | None]) -> None:
    """Refuses dates that do not exist, are not in order, or are there twice. dates: as `moments` reads the labels"""
    every = list(zip(numbers, labels, dates, strict=True))
    known = [(k, label, at) for k, label, at in every if at]
    if not known:
        return
    for k, label, at in every:
        if at is None and (MOMENT.fullmatch(label) or BY_DAY.fullmatch(label)):
            raise PlaitError(f"{name}, row {k}: there is no date {label}: correct it, or take the row away.")
    (_, first, begin), (_, last, end) = known[0], known[-1]
    if begin > end and not clocks_go_back(last, begin, end):
        raise PlaitError(f"{name} runs from {first} back to {last}: sort it, the oldest row first.")
    for (j, before, earlier), (k, label, later) in pairwise(known):
        if earlier >= later and clocks_go_back(label, earlier, later):
            continue
        if earlier == later:
            raise PlaitError(f"{name}, row {k}: {label} is in row {j} already: keep one row for each date.")
        if earlier > later:
            raise PlaitError(
                f"{name}, row {k}: {label} comes after {before} in row {j}: sort it, the oldest row first."
            )


def clocks_go_back(label: str, earlier: datetime, later: datetime) -> bool:
    """Whether it may be the hour that is repeated when summer time ends."""
    return is_local(label) and may_change(later) and earlier - later <= timedelta(hours=1)


def is_local(label: str) -> bool:
    """A time without a zone."""
    return ":" in label and not re.search("[Zz+-]", label.partition(":")[2])


def may_change(at: datetime) -> bool:
    """Whether summer time may begin or end then."""
    return at.month in CHANGE_MONTHS and at.hour in CHANGE_HOURS


def moments(labels: Sequence[str]) -> list[datetime | None]:
    """Of each label, if nearly all are dates of one kind; else none."""
    for kind in (by_year, by_day):
        found = kind(labels)
        if 0 < sum(at is not None for at in found) >= NEARLY_ALL * len(labels):
            return found
    return [None] * len(labels)


def by_year(labels: Sequence[str]) -> list[datetime | None]:
    return [moment(label) for label in labels]


def moment(label: str) -> datetime | None:
    """Of 1960-12, 1960-12-31 or 1960-12-31 12:00; None for others."""
    if not MOMENT.fullmatch(label):
        return None
    label = label[:10].replace("/", "-") + label[10:]
    ends_a_day = label[11:] in ("24:00", "24:00:00")
    try:
        found = datetime.fromisoformat(label + "-01" if len(label) == 7 else label[: 10 if ends_a_day else None])
        found += timedelta(days=ends_a_day)
    except (ValueError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def by_day(labels: Sequence[str]) -> list[datetime | None]:
    """Days before months, or months before days, if one of them fits better."""
    matches = [BY_DAY.fullmatch(label) for label in labels]
    days, months = ([read(m, *order) for m in matches] for order in ((1, 3), (3, 1)))
    more = days.count(None) - months.count(None)
    return months if more > 0 else days if more < 0 else [None] * len(labels)


def read(m: re.Match[str] | None, day: int, month: int) -> datetime | None:
    """None also if there is no such day."""
    if m is None:
        return None
    hour, minute, second = (int(m[k] or 0) for k in (5, 6, 7))
    try:
        return datetime(int(m[4]), int(m[month]), int(m[day]), hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None


def month_after(day: date, months: int, ends: bool) -> date:
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    longest = monthrange(year, month + 1)[1]
    return date(year, month + 1, longest if ends else min(day.day, longest))
