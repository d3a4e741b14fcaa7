"""Time series: reading one from a CSV file, and the scale on which a network learns it."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import PlaitError, unknown

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    name: str
    values: Values  # (n,)
    labels: Sequence[str]  # (n,): what the first column calls each row, or its number

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
    if not text.strip():
        raise PlaitError(f"{name} is empty: expected a CSV file with a column of numbers.")
    delimiter = max(",;\t", key=text.splitlines()[0].count)
    try:
        lines = list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error as e:
        raise PlaitError(f"{name} cannot be read as CSV: {e}.") from None
    numbered = [(k, row) for k, row in enumerate(lines, 1) if any(row)]
    has_header = not any(number(cell) is not None for cell in numbered[0][1])
    width = max(len(row) for _, row in numbered)
    header = [h.strip() for h in numbered[0][1]] if has_header else [str(k + 1) for k in range(width)]
    rows = [(k, row + [""] * (width - len(row))) for k, row in (numbered[1:] if has_header else numbered)]
    if not rows:
        raise PlaitError(f"{name} has a header and no rows: expected numbers below it.")
    index = column_index(name, header, [row for _, row in rows], column)
    values = [number(row[index]) for _, row in rows]
    if missing == "interpolate":
        values = interpolated(name, header[index], values)
    for (k, row), value in zip(rows, values, strict=True):
        if value is None or not math.isfinite(value):
            kind = "a number" if value is None else "a finite number"
            found = f"'{row[index].strip()}'" if row[index].strip() else "nothing"
            raise PlaitError(
                f"{name}, row {k}, column '{header[index]}': {found} is not {kind} (use --missing interpolate)."
            )
    labels = [row[0].strip() for _, row in rows] if index else [str(k + 1) for k in range(len(rows))]
    return Series(name, np.array(values, dtype=np.float64), labels)


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def column_index(name: str, header: list[str], rows: list[list[str]], column: str | None) -> int:
    if column is not None:
        if column in header:
            return header.index(column)
        raise PlaitError(f"{name} has no column '{column}': {unknown('column', column, header)}")
    # A column counts as numbers if most of it is; the stray text in it is then reported with its row.
    numeric = [k for k in range(len(header)) if 2 * sum(number(row[k]) is not None for row in rows) > len(rows)]
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
    months = [re.fullmatch(r"(\d{4})-(\d{2})(-\d{2})?", label) for label in last_two]
    if len(months) < 2 or not all(months):
        return None
    numbers = [int(m[1]) * 12 + int(m[2]) - 1 for m in months if m]
    days = {m[3] for m in months if m}
    if len(days) == 1 and numbers[0] != numbers[1]:  # months, or the same day of each month
        day = days.pop() or ""
        ahead = [numbers[1] + (numbers[1] - numbers[0]) * (k + 1) for k in range(steps)]
        return [f"{n // 12:04d}-{n % 12 + 1:02d}{day}" for n in ahead]
    try:
        before, last = (date.fromisoformat(label) for label in last_two)
        return [(last + (last - before) * (k + 1)).isoformat() for k in range(steps)]
    except (ValueError, OverflowError):
        return None


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
