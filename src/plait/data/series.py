"""Time series: reading one from a CSV file, and the scale on which a network learns it."""

import csv
import hashlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import PlaitError, counted, unknown
from .dates import check_order
from .files import contents, decoded, reading
from .gaps import labels_ahead
from .labels import check_one_series, label_column, without_gaps
from .numbers import number, oddity, two_readings
from .tables import MOST_BYTES, Rows, cells_of, listed, read_table

Values = NDArray[np.float64]
EXPECTED = "expected a CSV file with a column of numbers"
LARGEST = 1e150  # of a value, so that its square is a number, too


@dataclass(frozen=True)
class Series:
    name: str
    values: Values  # (n,)
    labels: Sequence[str]  # (n,): the label of each row, from a column of dates or the first one, or its number
    column: str = "value"  # its name in the file, or its number
    notes: str = ""  # what was missing in the file

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.values.tobytes()).hexdigest()

    def as_csv(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("label", self.column))
        writer.writerows(zip(self.labels, self.values.tolist(), strict=True))
        return file.getvalue()

    def labels_ahead(self, steps: int) -> list[str]:
        """Regular dates are continued, anything else is +1, +2, ..."""
        return labels_ahead(self.labels, steps) or [f"+{k + 1}" for k in range(steps)]


def airline() -> Series:
    """Airline passengers in thousands, 1949 to 1960: Box, Jenkins and Reinsel, Series G."""
    return parse((files(__package__) / "airline.csv").read_text(), "airline", None, "error")


def read(path: str, column: str | None = None, missing: str = "error") -> Series:
    with reading(path, EXPECTED):
        content = contents(Path(path), EXPECTED, MOST_BYTES)
    return parse(decoded(content, path), path, column, missing)


def reopen(content: bytes, path: str, name: str) -> Series:
    """What `as_csv` wrote, from the file at `path`."""
    rows = list(enumerate(cells_of(decoded(content, path), path, ","), 1))
    if any(len(row) != 2 for _, row in rows) or len(rows) < 2:
        raise PlaitError(f"{path} is damaged: expected rows of a label and a value; restore it, or train again.")
    values = column_values(path, rows[0][1], rows[1:], 1, "error", ".")
    return Series(name, values, [row[0] for _, row in rows[1:]], rows[0][1][1])


def parse(text: str, name: str, column: str | None, missing: str) -> Series:
    if missing not in ("error", "interpolate"):
        raise unknown("--missing", missing, ("error", "interpolate"))
    header, rows, decimal = read_table(text, name, EXPECTED)
    index = column_index(name, header, rows, column, decimal)
    (label, dates), notes = label_column(rows, index), ""
    if label is None:
        labels = [str(k + 1) for k in range(len(rows))]
    else:
        check_one_series(name, header, rows, index, label, dates)
        check_order(name, [k for k, _ in rows], [row[label] for _, row in rows], dates)
        rows, notes = without_gaps(name, rows, label, dates, missing)
        labels = [row[label] for _, row in rows]
    values = column_values(name, header, rows, index, missing, decimal)
    found = [number(row[index], decimal) for _, row in rows]
    if filled := sum(value is None or not math.isfinite(value) for value in found):
        notes = f" ({counted(filled, 'value')} interpolated)"
    return Series(name, values, labels, header[index], notes)


def column_index(name: str, header: list[str], rows: Rows, column: str | None, decimal: str) -> int:
    if column is not None:
        if header.count(column) > 1:
            raise PlaitError(
                f"{name} has {header.count(column)} columns named '{column}': give them names of their own."
            )
        if column in header:
            return header.index(column)
        raise PlaitError(f"{name} has no column '{column}': {unknown('column', column, header)}")
    # A column counts as numbers if most of it is; the stray text in it is then reported with its row.
    counts = [sum(number(row[k], decimal) is not None for _, row in rows) for k in range(len(header))]
    numeric = [k for k, count in enumerate(counts) if 2 * count > len(rows)]
    if len(numeric) > 1:
        raise PlaitError(
            f"{name} has {len(numeric)} columns of numbers ({listed(header[k] for k in numeric)}): "
            "choose one with --column."
        )
    nearly = [(k, found) for k in range(len(header)) if k not in numeric and (found := misfit(rows, k, counts[k]))]
    if not nearly and numeric:
        return numeric[0]
    if not nearly:
        raise PlaitError(f"{name} has no column of numbers: its columns are {listed(header)}.")
    also = "; ".join(f"column '{header[k]}' {found}" for k, found in nearly[:3])
    if numeric:
        raise PlaitError(f"{name}: column '{header[numeric[0]]}' has numbers, and {also}: choose one with --column.")
    raise PlaitError(f"{name} has no column of numbers: {also}.")


def misfit(rows: Rows, k: int, numbers: int) -> str | None:
    """What is wrong with a column whose cells are numbers, or nearly so."""
    filled = [(row, cells[k]) for row, cells in rows if cells[k]]
    odd = [(row, cell, found) for row, cell in filled if (found := oddity(cell))]
    if not filled or 2 * (numbers + len(odd)) <= len(filled):
        return None
    if not odd:
        return f"has numbers in {numbers} of {len(rows)} rows"
    row, cell, (why, instead) = odd[0]
    return f"has '{cell}' in row {row}, with {why} (write {instead})"


def column_values(name: str, header: list[str], rows: Rows, index: int, missing: str, decimal: str) -> Values:
    where, values = f"column '{header[index]}'", [number(row[index], decimal) for _, row in rows]
    cells = [(k, row[index]) for (k, row), value in zip(rows, values, strict=True) if value is not None]
    if "," in decimal and (readings := two_readings([cell for _, cell in cells])):
        cell, one, other = readings
        k = next(k for k, found in cells if found == cell)
        raise PlaitError(f"{name}, row {k}, {where}: '{cell}' may be {one} or {other}: write one of them, in all rows.")
    for (k, row), value in zip(rows, values, strict=True):
        if value is None and (odd := oddity(row[index])):
            raise PlaitError(f"{name}, row {k}, {where}: '{row[index]}' has {odd[0]}: write {odd[1]}.")
        if value is not None and LARGEST < abs(value) < math.inf:
            raise PlaitError(
                f"{name}, row {k}, {where}: {row[index]} is beyond {LARGEST:g}, and its square is no number: "
                "divide the column by something."
            )
    if missing == "interpolate":
        values = interpolated(name, header[index], values)
    for (k, row), value in zip(rows, values, strict=True):
        if value is None or not math.isfinite(value):
            kind = "a number" if value is None else "a finite number"
            found = f"'{row[index]}' is not {kind}" if row[index] else "there is no number"
            raise PlaitError(f"{name}, row {k}, {where}: {found} (use --missing interpolate).")
    return np.array(values, dtype=np.float64)


def interpolated(name: str, column: str, values: list[float | None]) -> list[float | None]:
    known = [(k, v) for k, v in enumerate(values) if v is not None and math.isfinite(v)]
    if not known:
        raise PlaitError(f"{name}, column '{column}': there is no number to interpolate between.")
    at, numbers = zip(*known, strict=True)
    return [float(v) for v in np.interp(range(len(values)), at, numbers)]


@dataclass(frozen=True)
class SeasonalScale:
    """The change from one season earlier, scaled; of logarithms, if log."""

    season: int
    log: bool
    mean: float
    std: float

    @classmethod
    def fit(cls, values: Values, season: int, log: bool) -> "SeasonalScale":
        plain = cls(season, log, 0.0, 1.0).apply(values)
        mean, std = float(plain.mean()), float(plain.std())
        noise = 1e-9 * float(np.abs(np.log(values) if log else values).max())  # what rounding leaves of equal changes
        return cls(season, log, mean, std if std > noise else 1.0)

    def apply(self, values: Values) -> Values:  # (n,) -> (n - season,)
        z = np.log(values) if self.log else values
        return (z[self.season :] - z[: -self.season] - self.mean) / self.std

    def extend(self, values: Values, changes: Values) -> Values:
        """The values after `values`, from scaled changes: (n,), (h,) -> (h,)"""
        z = list(np.log(values[-self.season :]) if self.log else values[-self.season :])
        for change in changes:
            z.append(z[-self.season] + change * self.std + self.mean)
        ahead = np.array(z[self.season :])
        small = ahead < math.log(LARGEST) if self.log else abs(ahead) < LARGEST  # also False for NaN
        if not small.all():
            within = int(small.argmin())
            raise PlaitError(
                f"the forecast grows beyond {LARGEST:g} after {counted(within, 'step')}: ask for fewer, or train anew."
            )
        return np.exp(ahead) if self.log else ahead


def seasonal_naive(values: Values, season: int, steps: int) -> Values:
    """The last season, repeated: the forecast that any model has to beat."""
    return np.resize(values[-season:], steps)


def errors(predicted: Values, truth: Values) -> dict[str, float | None]:
    difference = predicted - truth
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mape = float(np.mean(np.abs(difference / truth)) * 100)
    return {
        "rmse": float(np.sqrt(np.mean(difference**2))),
        "mae": float(np.mean(np.abs(difference))),
        "mape": mape if math.isfinite(mape) else None,  # of a truth that is 0 somewhere
    }
