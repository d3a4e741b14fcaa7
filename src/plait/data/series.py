"""Time series: reading one from a CSV file, and the scale on which a network learns it."""

import csv
import hashlib
import io
import math
import re
from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import PlaitError, unknown

Values = NDArray[np.float64]
DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")


@dataclass(frozen=True)
class Series:
    name: str
    values: Values  # (n,)
    labels: Sequence[str]  # (n,): what the first column calls each row, or its number

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.values.tobytes()).hexdigest()

    def as_csv(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("label", "value"))
        writer.writerows(zip(self.labels, self.values.tolist(), strict=True))
        return file.getvalue()

    def labels_ahead(self, steps: int) -> list[str]:
        """Labels for the steps that follow: months and days are counted on, anything else is +1, +2, ..."""
        return dates_ahead(self.labels[-2:], steps) or [f"+{k + 1}" for k in range(steps)]


def airline() -> Series:
    """Monthly totals of airline passengers in thousands, 1949 to 1960: Box, Jenkins and Reinsel, Series G."""
    return parse((files(__package__) / "airline.csv").read_text(), "airline", None, "error")


def read(path: str, column: str | None = None, missing: str = "error") -> Series:
    """A column of numbers from a CSV file (comma, semicolon or tab; with or without a header)."""
    file = Path(path)
    if file.is_dir():
        raise PlaitError(f"{path} is a directory: expected a CSV file.")
    if file.is_char_device() or file.is_block_device():
        raise PlaitError(f"{path} is a device: expected a CSV file.")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise PlaitError(f"{path} does not exist: expected a CSV file with a column of numbers.") from None
    except UnicodeDecodeError as e:
        raise PlaitError(f"{path} is not UTF-8 text (byte {e.start}): export it as CSV in UTF-8.") from None
    except OSError as e:
        raise PlaitError(f"{path} cannot be read: {e.strerror}.") from None
    return parse(text, str(path), column, missing)


def parse(text: str, name: str, column: str | None, missing: str) -> Series:
    if missing not in ("error", "interpolate"):
        raise unknown("--missing", missing, ("error", "interpolate"))
    rows, delimiter = table(text, name)
    decimal = "." if delimiter == "," else ",."  # where the comma does not divide cells, it may be a decimal one
    has_header = not any(number(cell, decimal) is not None for cell in rows[0][1])
    header = rows[0][1] if has_header else [str(k + 1) for k in range(len(rows[0][1]))]
    rows = rows[1:] if has_header else rows
    if not rows:
        raise PlaitError(f"{name} has a header and no rows: expected numbers below it.")
    for k, row in rows:
        if len(row) > len(header):
            raise PlaitError(f"{name}, row {k} has {len(row)} cells, and there are {len(header)} columns: is it CSV?")
        row += [""] * (len(header) - len(row))
    index = column_index(name, header, [[number(cell, decimal) for cell in row] for _, row in rows], column)
    values = [number(row[index], decimal) for _, row in rows]
    if missing == "interpolate":
        values = interpolated(name, header[index], values)
    for (k, row), value in zip(rows, values, strict=True):
        if value is None or not math.isfinite(value):
            kind = "a number" if value is None else "a finite number"
            found = f"'{row[index]}'" if row[index] else "nothing"
            where = f"{name}, row {k}, column '{header[index]}'"
            raise PlaitError(f"{where}: {found} is not {kind} (use --missing interpolate).")
    labels = [row[0] for _, row in rows] if index else [str(k + 1) for k in range(len(rows))]
    if all(map(DATE.fullmatch, (labels[0], labels[-1]))) and labels[0] > labels[-1]:
        raise PlaitError(f"{name} runs from {labels[0]} back to {labels[-1]}: sort it, the oldest row first.")
    return Series(name, np.array(values, dtype=np.float64), labels)


def table(text: str, name: str) -> tuple[list[tuple[int, list[str]]], str]:
    """The rows with their numbers in the file, without comments and blank ends; and what divides their cells."""
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), "")
    delimiter = next((d for d in "\t;" if d in first), ",")
    try:
        read = list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error as e:
        raise PlaitError(f"{name} cannot be read as CSV: {e}.") from None
    stripped = ([cell.strip() for cell in row] or [""] for row in read)
    rows = [(k, row) for k, row in enumerate(stripped, 1) if not row[0].startswith("#")]
    while rows and not any(rows[-1][1]):
        rows.pop()
    while rows and not any(rows[0][1]):
        rows.pop(0)
    if not rows:
        raise PlaitError(f"{name} is empty: expected a CSV file with a column of numbers.")
    if max(len(row) for _, row in rows) > 1:  # an empty line is a gap in a single column, and nothing in a table
        rows = [(k, row) for k, row in rows if len(row) > 1 or row[0]]
    return rows, delimiter


def number(text: str, decimal: str = ".") -> float | None:
    if "," in decimal and text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")
    try:
        return float(text)
    except ValueError:
        return None


def column_index(name: str, header: list[str], rows: list[list[float | None]], column: str | None) -> int:
    if column is not None:
        if header.count(column) > 1:
            raise PlaitError(
                f"{name} has {header.count(column)} columns named '{column}': give them names of their own."
            )
        if column in header:
            return header.index(column)
        raise PlaitError(f"{name} has no column '{column}': {unknown('column', column, header)}")
    # A column counts as numbers if most of it is; the stray text in it is then reported with its row.
    numeric = [k for k in range(len(header)) if 2 * sum(row[k] is not None for row in rows) > len(rows)]
    if len(numeric) == 1:
        return numeric[0]
    if not numeric:
        raise PlaitError(f"{name} has no column of numbers: its columns are {', '.join(header)}.")
    choices = ", ".join(header[k] for k in numeric)
    raise PlaitError(f"{name} has {len(numeric)} columns of numbers ({choices}): choose one with --column.")


def interpolated(name: str, column: str, values: list[float | None]) -> list[float | None]:
    known = [(k, v) for k, v in enumerate(values) if v is not None and math.isfinite(v)]
    if not known:
        raise PlaitError(f"{name}, column '{column}': there is no number to interpolate between.")
    at, numbers = zip(*known, strict=True)
    return [float(v) for v in np.interp(range(len(values)), at, numbers)]


def dates_ahead(last_two: Sequence[str], steps: int) -> list[str] | None:
    """The labels that follow two months (1960-12) or two days (1960-12-31), in the same distance; None for others."""
    if len(last_two) < 2 or not all(map(DATE.fullmatch, last_two)) or len({len(label) for label in last_two}) > 1:
        return None
    by_month = len(last_two[0]) == 7
    try:
        before, last = (date.fromisoformat(label + "-01" if by_month else label) for label in last_two)
        ends = all(d.day == monthrange(d.year, d.month)[1] for d in (before, last))
        months = (last.year - before.year) * 12 + last.month - before.month
        if months and (ends or before.day == last.day):
            dates = [month_after(last, months * (k + 1), ends) for k in range(steps)]
        else:
            dates = [last + (last - before) * (k + 1) for k in range(steps)]
    except (ValueError, OverflowError):
        return None
    return [d.isoformat()[: 7 if by_month else 10] for d in dates]


def month_after(day: date, months: int, ends: bool) -> date:
    """The same day some months later, or the month's last."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    longest = monthrange(year, month + 1)[1]
    return date(year, month + 1, longest if ends else min(day.day, longest))


@dataclass(frozen=True)
class Scale:
    """A network learns the change from one season earlier, in units of its spread; of logarithms, where growth is.

    Fitted on the training part alone.
    """

    season: int
    log: bool
    mean: float
    std: float

    @classmethod
    def fit(cls, values: Values, season: int, log: bool) -> "Scale":
        plain = cls(season, log, 0.0, 1.0).apply(values)
        mean, std = float(plain.mean()), float(plain.std())
        noise = 1e-9 * float(np.abs(np.log(values) if log else values).max())  # what rounding leaves of equal changes
        return cls(season, log, mean, std if std > noise else 1.0)

    def apply(self, values: Values) -> Values:  # (n,) -> (n - season,)
        z = np.log(values) if self.log else values
        return (z[self.season :] - z[: -self.season] - self.mean) / self.std

    def extend(self, values: Values, changes: Values) -> Values:
        """The values that follow `values`, from their scaled changes: (n,), (h,) -> (h,)"""
        z = list(np.log(values[-self.season :]) if self.log else values[-self.season :])
        for change in changes:
            z.append(z[-self.season] + change * self.std + self.mean)
        ahead = np.array(z[self.season :])
        return np.exp(ahead) if self.log else ahead


def seasonal_naive(values: Values, season: int, steps: int) -> Values:
    """The last season, repeated: the forecast that any model has to beat."""
    return np.resize(values[-season:], steps)


def errors(predicted: Values, truth: Values) -> dict[str, float | None]:
    difference = predicted - truth
    with np.errstate(divide="ignore", invalid="ignore"):
        mape = float(np.mean(np.abs(difference / truth)) * 100)
    return {
        "rmse": float(np.sqrt(np.mean(difference**2))),
        "mae": float(np.mean(np.abs(difference))),
        "mape": mape if math.isfinite(mape) else None,  # of a truth that is 0 somewhere
    }
