"""Tables from CSV files: comma, semicolon or tab between the cells, with or without a header."""

import csv
import io
import re
from collections.abc import Iterable
from itertools import pairwise

from ..errors import PlaitError
from .dates import moment
from .numbers import number, oddity

Rows = list[tuple[int, list[str]]]  # each with its number in the file
MOST_BYTES, MOST_CELLS, MOST_COLUMNS = 2**28, 20_000_000, 10_000  # a cell takes much memory


def read_table(text: str, name: str, expected: str, *, named: bool = False) -> tuple[list[str], Rows, str]:
    """-> names of the columns, rows, decimal signs. named: in the first row"""
    rows, delimiter = cut_up(text, name, expected)
    decimal = "." if delimiter == "," else ",."  # where the comma does not divide cells, it may be a decimal one
    has_header = named or is_header(rows, decimal)
    header = rows[0][1] if has_header else [str(k + 1) for k in range(len(rows[0][1]))]
    rows = rows[1:] if has_header else rows
    if not rows:
        raise PlaitError(f"{name} has a header and no rows: expected numbers below it.")
    for k, row in rows:
        if len(row) > len(header):
            comma = any(a.lstrip("+-").isdecimal() and b.isdecimal() for a, b in pairwise(row))
            hint = "if a comma is a decimal one, write a point, or divide cells by ;." if comma else "is it CSV?"
            raise PlaitError(f"{name}, row {k} has {len(row)} cells, and there are {len(header)} columns: {hint}")
        if any("\n" in cell for cell in row):
            raise PlaitError(f"{name}, row {k} has a cell with several lines: look for a quotation mark too many.")
        row += [""] * (len(header) - len(row))
    return header, rows, decimal


def is_header(rows: Rows, decimal: str) -> bool:
    """Whether the first row names the columns. A name may look like a number (5%)."""
    first, below = rows[0][1], [row[0] for _, row in rows[1:]]
    word = first[0] and number(first[0], decimal) is None and not moment(first[0])
    if word and below and moment(below[0]) and moment(below[-1]):  # such as date,2020 above dates and numbers
        return True
    if any(number(cell, decimal) is not None for cell in first):
        return False
    odd = [k for k, cell in enumerate(first) if oddity(cell)]
    if any(k < len(row) and oddity(row[k]) for _, row in rows[1:] for k in odd):
        return False
    return not odd or any(cell and not moment(cell) for k, cell in enumerate(first) if k not in odd)


def cut_up(text: str, name: str, expected: str) -> tuple[Rows, str]:
    """The rows, without comments and blank ends, and the delimiter."""
    lines = (line for line in text.split("\n") if line.strip() and not line.startswith("#"))
    first = next(lines, "")
    delimiter = next((d for d in "\t;" if d in first), ",")
    if told := re.fullmatch(r" *\"?sep=([^\"\w\r ])\"? *", first, re.I):  # Excel's way to say it
        delimiter = told[1]
        text = text.replace(first, "#", 1)
    elif delimiter == "," and "|" in first and all("|" in line for line in lines):
        raise PlaitError(
            f"{name} has | between its cells: put commas, semicolons or tabs there, or write sep=| in a line above all."
        )
    if (cells := text.count(delimiter) + text.count("\n")) > MOST_CELLS:
        raise PlaitError(f"{name} has about {cells:,} cells: expected at most {MOST_CELLS:,}; cut out what you need.")
    stripped = ([cell.strip() for cell in row] or [""] for row in cells_of(text, name, delimiter))
    rows = [(k, row) for k, row in enumerate(stripped, 1) if not row[0].startswith("#")]
    while rows and not any(rows[-1][1]):
        rows.pop()
    while rows and not any(rows[0][1]):
        rows.pop(0)
    if not rows:
        raise PlaitError(f"{name} is empty: {expected}.")
    if (columns := max(len(row) for _, row in rows)) > MOST_COLUMNS:
        raise PlaitError(f"{name} has {columns:,} columns: expected at most {MOST_COLUMNS:,}; is it CSV?")
    if columns > 1:  # an empty line is a gap in a single column, and nothing in a table
        rows = [(k, row) for k, row in rows if len(row) > 1 or row[0]]
    return rows, delimiter


def cells_of(text: str, name: str, delimiter: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error as e:
        raise PlaitError(f"{name} cannot be read as CSV: {e}.") from None


def listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
