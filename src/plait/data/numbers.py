"""The cells of a table: numbers, and what is nearly one."""

import math
import re
import unicodedata
from collections.abc import Iterable

CURRENCIES = "$€£¥₹"
MISSING = ("error", "interpolate")  # what may be done about numbers that are not there
ABSENT = ("", "?", "na", "n/a", "nan", "null")  # how a cell says so
THOUSANDS = re.compile(r"([+-]?\d{1,3}(?P<by>[ ,.'_\u00a0\u202f])\d{3}(?:(?P=by)\d{3})*)(?:(?!(?P=by))[.,](\d+))?")
DECIMAL_COMMA = re.compile(r"([+-]?\d+),(\d+)")
TWO_READINGS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}", re.ASCII)


def number(text: str, decimal: str = ".") -> float | None:
    """`decimal`: what may stand before the fraction, a point or also a comma."""
    if "," in decimal and text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")
    if "_" in text or not text.isascii():  # Python's own numbers may have these
        return None
    try:
        return float(text)
    except ValueError:
        return None


def oddity(text: str) -> tuple[str, str] | None:
    """What keeps a cell from being a number, and how to write it; None if it is far from one."""
    found, rest = [], text
    for signs, name in ((CURRENCIES, "a currency sign"), ("%", "a percent sign")):
        if any(sign in rest for sign in signs):
            found.append(name)
            rest = "".join(c for c in rest if c not in signs).strip()
    ours = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else "-" if c == "\u2212" else c for c in rest)
    if ours != rest:
        found.append("signs other than 0 to 9 and -")
        rest = ours
    if match := THOUSANDS.fullmatch(rest):
        found.append("separators between thousands")
        rest = match[1].replace(match["by"], "") + (f".{match[3]}" if match[3] else "")
    elif match := DECIMAL_COMMA.fullmatch(rest):
        found.append("a decimal comma")
        rest = f"{match[1]}.{match[2]}"
    value = number(rest)
    return (" and ".join(found), rest) if found and value is not None and math.isfinite(value) else None


def two_readings(cells: Iterable[str]) -> tuple[str, str, str] | None:
    """The first cell with a comma, if all may be read in two ways: 1.234, or 1234."""
    with_comma = [cell for cell in cells if "," in cell]
    if not with_comma or not all(map(TWO_READINGS.fullmatch, with_comma)):
        return None
    return with_comma[0], with_comma[0].replace(",", "."), with_comma[0].replace(",", "")
