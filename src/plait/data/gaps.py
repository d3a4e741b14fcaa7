"""Regular dates: what the step from row to row is, which dates have no row, and which ones follow."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise, takewhile
from math import gcd

from ..errors import PlaitError
from .dates import MOMENT, is_local, may_change, moments, month_after

SECOND = 10**6  # microseconds, in which distances are counted
DAY = 86400 * SECOND
UNITS = {60 * SECOND: "minutes", 3600 * SECOND: "hours", DAY: "days", 7 * DAY: "weeks"}
CLOCK = re.compile(r"([ T]\d{2}:\d{2})(:\d{2})?(?:([.,])(\d+))?(.*)", re.ASCII)  # behind the day
MOST_LABELS = 50_000  # of the last ones, which say what follows
CYCLES = 3  # weeks, days or years that must have been seen before "never on Sundays" is believed
HOLIDAYS = 15  # where some weekday never has a row, up to one date of so many may be a holiday
MOST = 20  # times as many dates as rows: beyond that, a date is wrong


@dataclass(frozen=True)
class Gaps:
    """Dates without a row, each with the index of the row that it stands before."""

    dates: Sequence[tuple[int, datetime]]
    rows: int
    unit: str  # days, months, hours
    has_holidays: bool = False  # some weekday never has a row

    @property
    def may_be_holidays(self) -> bool:
        return self.has_holidays and len(self.dates) * HOLIDAYS <= self.rows

    def __str__(self) -> str:
        verb = "has" if len(self.dates) == 1 else "have"
        return f"{len(self.dates):,} of {self.rows + len(self.dates):,} {self.unit} {verb} no row"


def find_gaps(name: str, numbers: Sequence[int], labels: Sequence[str], dates: Sequence[datetime | None]) -> Gaps:
    """There are none if the dates are not regular. numbers: of the rows, in the file; dates: of the labels"""
    known = [(k, at) for k, at in enumerate(dates) if at]
    by_month = is_by_month([at for _, at in known])
    ends = len({at.day for _, at in known}) > 1  # by month: the last day of each
    pairs = [(j, a, k, b, distance(a, b, by_month)) for (j, a), (k, b) in pairwise(known)]
    steps = Counter(apart for j, _, k, _, apart in pairs if k == j + 1)
    step, count = max(steps.items(), key=lambda item: item[1], default=(0, 0))
    found = Gaps([], len(labels), unit_of(step, by_month))
    if step <= 0 or 2 * count <= steps.total() or any(apart % step for *_, apart in pairs):
        return found
    absent: list[tuple[int, datetime]] = []
    for j, before, k, after, apart in pairs:
        missing = apart // step - (k - j)  # a row whose label is no date has one of them
        if missing > MOST * len(labels) + 100:
            raise PlaitError(
                f"{name}, row {numbers[k]}: {labels[k]} is {apart // step:,} {found.unit} after {labels[j]} in row "
                f"{numbers[j]}: correct it, or take the row away."
            )
        if missing > 0 and not clocks_go_forward(labels[j], before, after, missing * step):
            absent += [(k, later(before, step * (i + k - j), by_month, ends)) for i in range(missing)]
    return among_usual(absent, [at for _, at in known], found, by_month, step)


def distance(a: datetime, b: datetime, by_month: bool) -> int:
    """In months, or in microseconds. A day is a day, also if the clocks change in it."""
    if by_month:
        return (b.year - a.year) * 12 + b.month - a.month
    if a.time() == b.time() and a.date() < b.date():
        return (b.date() - a.date()).days * DAY
    return (b - a) // timedelta(microseconds=1)


def is_by_month(dates: Sequence[datetime]) -> bool:
    """The same day of every month, or its last one."""
    if len({(at.year, at.month) for at in dates}) < len(dates) or len({at.timetz() for at in dates}) > 1:
        return False
    return len({at.day for at in dates}) == 1 or all((at + timedelta(days=1)).day == 1 for at in dates)


def unit_of(step: int, by_month: bool) -> str:
    if by_month:
        return {1: "months", 3: "quarters", 12: "years"}.get(step, "dates")
    return UNITS.get(step, "dates")


def later(at: datetime, step: int, by_month: bool, ends: bool) -> datetime:
    if not by_month:
        return at + timedelta(microseconds=step)
    return datetime.combine(month_after(at.date(), step, ends), at.timetz())


def clocks_go_forward(label: str, before: datetime, after: datetime, apart: int) -> bool:
    """Whether it may be the hour that is left out when summer time begins."""
    return apart == 3600 * SECOND and is_local(label) and may_change(before) and after.weekday() == 6


def among_usual(
    dates: Sequence[tuple[int, datetime]], seen: Sequence[datetime], found: Gaps, by_month: bool, step: int
) -> Gaps:
    """Without weekdays, hours and months that never have a row: nothing is missing on a shop's free day."""
    if not dates:
        return found
    is_usual, weekdays = usual(seen, by_month, step)
    return Gaps([(k, at) for k, at in dates if is_usual(at)], found.rows, found.unit, weekdays < 7)


def usual(seen: Sequence[datetime], by_month: bool, step: int) -> tuple[Callable[[datetime], bool], int]:
    """-> whether a date has a weekday, an hour and a month that others have, and how many weekdays have rows"""
    days = (seen[-1] - seen[0]).days
    weekdays = {at.weekday() for at in seen} if not by_month and step <= DAY and days >= 7 * CYCLES else set(range(7))
    times = {at.timetz() for at in seen} if not by_month and step < DAY and days >= CYCLES else None
    months = {at.month for at in seen} if by_month and days >= 366 * CYCLES else set(range(1, 13))

    def is_usual(at: datetime) -> bool:
        return at.weekday() in weekdays and at.month in months and (times is None or at.timetz() in times)

    return is_usual, len(weekdays)


# --- what follows
def labels_ahead(labels: Sequence[str], steps: int) -> list[str] | None:
    """The dates that follow dates: at the same step, on weekdays, at times and in months that have rows.

    None for other labels, and for dates that are neither regular nor so but for some holidays.
    """
    last = labels[-MOST_LABELS:]
    seen = [at for at in moments(last) if at] if all(map(MOMENT.fullmatch, last)) else []
    if len(seen) < max(2, len(last)):
        return None
    by_month = is_by_month(seen)
    step = gcd(*(distance(a, b, by_month) for a, b in pairwise(seen)))
    if step == 0 or seen[0] >= seen[-1]:
        return None
    most = MOST * (len(seen) + steps) + 100
    if distance(seen[0], seen[-1], by_month) // step > most:
        return None
    try:
        expected = sum(1 for _ in takewhile(lambda at: at <= seen[-1], following(seen[0], seen, by_month, step, most)))
        if (expected + 1 - len(seen)) * HOLIDAYS > len(seen):
            return None
        ahead = [label_of(at, last[-1]) for at in islice(following(seen[-1], seen, by_month, step, most), steps)]
    except (ValueError, OverflowError):  # beyond the year 9999
        return None
    return ahead if len(ahead) == steps else None


def following(first: datetime, seen: Sequence[datetime], by_month: bool, step: int, most: int) -> Iterator[datetime]:
    """The usual ones of so many dates after one of them."""
    is_usual, _ = usual(seen, by_month, step)
    ends = len({at.day for at in seen}) > 1
    return filter(is_usual, (later(first, step * (k + 1), by_month, ends) for k in range(most)))


# --- how a date is written
def label_of(at: datetime, like: str) -> str:
    """A date as its neighbour is written, or as ISO 8601 has it."""
    if not MOMENT.fullmatch(like):
        return at.date().isoformat() if ":" not in like else at.isoformat(" ", "minutes")[:16]
    day, clock = at.date().isoformat()[: min(len(like), 10)].replace("-", like[4]), CLOCK.fullmatch(like[10:])
    if clock is None:
        return day
    before, seconds, point, digits, zone = clock.groups()
    text = f"{day}{before[0]}{at:%H:%M}" + (f":{at:%S}" if seconds else "")
    if digits:
        text += point + f"{at:%f}".ljust(len(digits), "0")[: len(digits)]
    return text + (zone if zone in ("", "Z") else at.isoformat()[-6:])
