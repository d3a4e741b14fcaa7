"""What a user reads when something is wrong: one sentence with what was found, what was expected and what to do."""

import warnings
from collections.abc import Iterable
from difflib import get_close_matches


class PlaitError(ValueError):
    """The user's mistake. The command line prints it and exits with 2."""


class PlaitWarning(UserWarning):
    """Something is done in another way than was asked for, and why."""


def unknown(kind: str, name: str, known: Iterable[str]) -> PlaitError:
    known = sorted(known)
    near = get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    more = f" and {len(known) - 20} more" if len(known) > 20 else ""
    return PlaitError(f"{kind} '{name}' is not known: {hint}Expected one of {', '.join(known[:20])}{more}.")


def between(name: str, value: float, least: float, most: float) -> None:
    """Beyond its limits, a number would overflow something, or never end."""
    if not least <= value <= most:  # also refuses NaN
        wrong = value != value
        limit = f"from {least} to {most}" if wrong else f"at least {least}" if value < least else f"at most {most}"
        raise PlaitError(f"{name} {value}: must be {limit}.")


def counted(number: int, noun: str) -> str:
    """1 thread, 2 threads"""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


SAID: set[str] = set()


def say_once(sentence: str) -> None:
    """A warning, the first time; at the line that called the layer."""
    if sentence not in SAID:
        SAID.add(sentence)
        warnings.warn(sentence, PlaitWarning, stacklevel=4)
