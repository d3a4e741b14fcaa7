"""The command line. commands.py lists every command with its options; train.py, use.py and diagnose.py do the work."""

import sys
import warnings
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any

import typer

from ..errors import PlaitError, PlaitWarning
from .commands import app
from .sentences import UsageError, one_line, said, usage

__all__ = ["app", "main"]


def shown(usual: Callable[..., None]) -> Callable[..., None]:
    """plait's own warnings are sentences for the user."""

    def show(message: Warning | str, category: type[Warning], *rest: Any, **options: Any) -> None:
        if issubclass(category, PlaitWarning):
            print(one_line(str(message)), file=sys.stderr)
        else:
            usual(message, category, *rest, **options)

    return show


def main() -> None:
    """A sentence and exit code 2 for the user's mistakes, a traceback for plait's."""
    if isinstance(sys.stdout, TextIOWrapper):  # the terminal may not show all characters
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.showwarning = shown(warnings.showwarning)
    try:
        code = app(standalone_mode=False, prog_name="plait")
    except typer.Abort:
        code = 130
    except (UsageError, PlaitError, MemoryError, RuntimeError, OverflowError, OSError) as e:
        if type(e).__name__ == "NoArgsIsHelpError":
            print(e, end="")  # the help, unless typer has printed it
            sys.exit(2)
        sentence = usage(e, sys.argv[1:], typer.main.get_command(app)) if isinstance(e, UsageError) else said(e)
        if sentence is None:
            raise
        print(f"plait: {one_line(sentence)}", file=sys.stderr)
        code = 2
    sys.exit(code)
