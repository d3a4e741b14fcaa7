"""The cells of a table: numbers, what is nearly one, and moments of time."""

import math
import re
import unicodedata
from datetime import UTC, datetime

CURRENCIES = "$€£¥₹"
THOUSANDS = re.compile(r"([+-]?\d{1,3}(?P<by>[ ,.'_\u00a0\u202f])\d{3}(?:(?P=by)\d{3})*)(?:(?!(?P=by))[.,](\d+))?")
DECIMAL_COMMA = re.compile(r"([+-]?\d+),(\d+)")
MOMENT = re.compile(r"\d{4}-\d{2}(-\d{2}([ T]\d{2}:.*)?)?")


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
    """What keeps a cell from being a number, and how that is written as one; None if it is nothing like a number."""
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


def moment(label: str) -> datetime | None:
    """Of a month (1960-12), a day (1960-12-31) or a time of it (1960-12-31 12:00, or with a T); None for others."""
    if not MOMENT.fullmatch(label):
        return None
    try:
        found = datetime.fromisoformat(label + "-01" if len(label) == 7 else label)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
