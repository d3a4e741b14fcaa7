"""From what was raised to the one sentence that is printed."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import typer

from ..errors import PlaitError, unknown

UsageError: type[Any] = typer.BadParameter.__bases__[0]  # click's, or typer's copy of it
MEMORY = "this does not fit into memory: choose smaller sizes, such as --hidden."
TOO_LARGE = ("allocate memory", "Storage size calculation overflowed", "multiplication overflow")  # torch's words
LONGEST = 300  # characters of a word that are printed


def said(e: Exception) -> str | None:
    """None for a fault of plait, which deserves its traceback."""
    match e:
        case PlaitError():
            return str(e)
        case MemoryError():
            return MEMORY
        case RecursionError():
            return "the input is nested too deeply to be read: give a flatter one."
        case RuntimeError() if any(words in str(e) for words in TOO_LARGE):
            return MEMORY
        case OverflowError():
            return f"a number is too large to compute with ({e}): choose a smaller one."
        case OSError() if e.filename is not None:
            return f"{e.filename} cannot be used: {e.strerror}."
        case OSError():
            return f"the system refused: {e.strerror or e}."
    return None


def usage(e: Any, args: Sequence[str], command: Any) -> str:
    path = ["plait"]
    for word in args:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
        path.append(word)
    return f"{wrong(e, args[len(path) - 1 :], command)} See {' '.join(path)} --help."


def wrong(e: Any, args: Sequence[str], command: Any) -> str:
    """What typer found, in our words."""
    match type(e).__name__:
        case "BadParameter" if e.param is not None and e.param.opts[0].startswith("-"):
            kind = "a whole number" if "integer" in e.message else "a number"
            return f"{e.param.opts[0]} '{value_of(e.param.opts, args)}': expected {kind}."
        case "MissingParameter":
            name = e.param.metavar or e.param.name.upper()
            return f"{name} is missing: expected it after the command."
        case "NoSuchOption":
            options = [name for p in command.params for name in p.opts if name.startswith("--")]
            near = get_close_matches(e.option_name, options, n=1, cutoff=0.5)
            hint = f" did you mean {near[0]}?" if near else " leave it out."
            return f"option {e.option_name} is not known:{hint}"
        case "BadOptionUsage" if "requires" in e.message:
            return f"{e.option_name}: expected a value after it."
        case "BadOptionUsage":
            return f"{e.option_name} takes no value: leave out what follows it."
    if hasattr(command, "commands"):
        return str(unknown("command", next((word for word in args if not word.startswith("-")), ""), command.commands))
    if extra := re.search(r"extra argument.*\((.*)\)", e.message, re.S):
        return f"'{extra[1]}' was not expected: leave it out."
    return f"{e.format_message()}"


def value_of(options: Sequence[str], args: Sequence[str]) -> str:
    for k in range(len(args) - 1, -1, -1):
        name, equals, value = args[k].partition("=")
        if name in options and (equals or k + 1 < len(args)):
            return value if equals else args[k + 1]
    return ""


def one_line(text: str) -> str:
    """A sentence is one line, whatever a name or a value contains."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)
    text = re.sub(rf"\S{{{LONGEST},}}", lambda m: f"{m[0][:100]}... ({len(m[0])} characters)", text)
    return text if len(text) <= 10 * LONGEST else text[: 10 * LONGEST] + "..."
