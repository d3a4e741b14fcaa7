"""A CSV file in long form: a row for each step of each sequence, with columns for its id, the time, and the label."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..errors import PlaitError
from .dates import moment
from .files import decoded
from .numbers import ABSENT, number, oddity
from .sequences import RawSequences, Rows, Source
from .tables import Rows as Cells
from .tables import listed, read_table

EXPECTED = "expected a CSV file with the columns id, time and label, and columns of numbers"


class Columns(NamedTuple):
    """Which column is what. The others are numbers."""

    id: str = "id"
    time: str = "time"  # without such a column, the steps are in the order of the rows
    label: str = "label"


USUAL = Columns()


def read(content: bytes, where: str, columns: Columns = USUAL, *, labelled: bool = True) -> Source:
    """labelled: False for new data, which may do without the column."""
    header, table, decimal = read_table(decoded(content, where), where, EXPECTED, named=True)
    needed = {"id": True, "time": columns.time != USUAL.time, "label": labelled}  # a time that is named must be there
    for option, name in columns._asdict().items():
        if needed[option] and name not in header:
            raise PlaitError(
                f"{where} has no column '{name}' (its columns are {listed(header)}): {EXPECTED}; --{option}-column "
                "gives another name."
            )
    special = [header.index(name) for name in columns if name in header]
    values = [k for k in range(len(header)) if k not in special]
    if not values:
        raise PlaitError(f"{where} has no columns beside {', '.join(header)}: {EXPECTED}.")
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise PlaitError(f"{where} has two columns '{twice}': give them names of their own.")
    by_id: dict[str, Cells] = {}
    for k, row in table:
        if not row[header.index(columns.id)]:
            raise PlaitError(f"{where}, row {k}, column '{columns.id}': nothing is there; expected the sequence's id.")
        by_id.setdefault(row[header.index(columns.id)], []).append((k, row))
    has_labels = columns.label in header
    rows, labels = list[Rows](), list[str]()
    for one, steps in by_id.items():
        if columns.time in header:
            steps = in_time(steps, header.index(columns.time), where, columns.time, decimal)
        if has_labels:
            labels.append(one_label(steps, header.index(columns.label), where, one))
        rows.append(numbers(steps, values, header, where, decimal))
    found = RawSequences(rows, labels if has_labels else None, [f"{columns.id} {one}" for one in by_id])
    return Source(where, [header[k] for k in values], {"train": found})


def in_time(steps: Cells, index: int, where: str, column: str, decimal: str) -> Cells:
    """In the order of their times: all of them numbers, or all dates."""
    cells = [row[index] for _, row in steps]
    times: list[Any] = [number(cell, decimal) for cell in cells]
    times = [None if time is None or not math.isfinite(time) else time for time in times]
    if times.count(None) > len(times) / 2:  # most are no numbers: they should be dates
        times = [moment(cell) for cell in cells]
    if None in times:
        (k, _), cell = steps[times.index(None)], cells[times.index(None)]
        raise PlaitError(
            f"{where}, row {k}, column '{column}': '{cell:.40}' is neither a number nor a date such as 2024-12-31; "
            "expected one kind of them in all rows of a sequence."
        )
    order = sorted(range(len(steps)), key=times.__getitem__)
    for a, b in pairwise(order):
        if times[a] == times[b]:
            raise PlaitError(
                f"{where}, row {steps[b][0]}, column '{column}': {cells[b]} is in row {steps[a][0]} already, for the "
                "same sequence; expected one row for each time."
            )
    return [steps[k] for k in order]


def one_label(steps: Cells, index: int, where: str, sequence: str) -> str:
    labels = {"" if row[index].lower() in ABSENT else row[index]: k for k, row in reversed(steps)}
    if len(labels) > 1:
        (a, first), (b, second) = sorted(((label, k) for label, k in labels.items()), key=lambda pair: pair[1])[:2]
        raise PlaitError(
            f"{where}, row {second}: sequence '{sequence}' has label '{b}' there, and '{a}' in row {first}; expected "
            "one label for a sequence."
        )
    return next(iter(labels))


def numbers(steps: Cells, values: Sequence[int], header: Sequence[str], where: str, decimal: str) -> Rows:  # (T, D)
    """What is empty, or says that it is missing, is NaN."""
    rows = np.empty((len(steps), len(values)))
    for t, (k, row) in enumerate(steps):
        for d, index in enumerate(values):
            cell = row[index]
            value = float("nan") if cell.lower() in ABSENT else number(cell, decimal)
            if value is None:
                odd = oddity(cell)
                todo = f"write {odd[1]}" if odd else "expected a number, or nothing where it is missing"
                raise PlaitError(f"{where}, row {k}, column '{header[index]}': '{cell:.40}' is not a number; {todo}.")
            rows[t, d] = value
    return rows
