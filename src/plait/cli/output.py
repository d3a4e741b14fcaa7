"""Where a command's result goes: text for a person to the terminal, JSON to a file."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from ..tasks.base import Table
from ..training.files import check_target, write_whole


class Pipe(Console):
    def on_broken_pipe(self) -> None:
        """The reader has ended (`| head`): the run goes on, and prints nothing more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Output:
    def __init__(self, json_file: str | None) -> None:
        self.json_file = json_file
        self.console = Pipe(quiet=json_file == "-", highlight=False, markup=False, emoji=False, soft_wrap=True)
        if json_file is not None and json_file != "-":
            check_target(Path(json_file), f"--json {json_file}")

    @classmethod
    def silent(cls) -> "Output":
        output = cls(None)
        output.console.quiet = True
        return output

    def line(self, text: str = "") -> None:
        self.console.print(text)

    def text(self, text: str) -> None:
        if not self.console.quiet:
            print(text)

    def table(self, header: list[str], rows: list[list[str]]) -> None:
        """The first column to the left, the others, which are numbers, to the right."""
        widths = [max(len(row[k]) for row in [header, *rows]) for k in range(len(header))]
        for row in [header, *rows]:
            filled = [c.rjust(w) if k else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))]
            self.line("  ".join(filled).rstrip())

    def titled(self, table: Table) -> None:
        self.line()
        self.line(table.title)
        self.table(table.header, table.rows)

    def result(self, value: dict[str, Any]) -> None:
        text = json.dumps(value, indent=1, allow_nan=False)
        if self.json_file == "-":
            print(text)
        elif self.json_file is not None:
            write_whole(Path(self.json_file), (text + "\n").encode())
