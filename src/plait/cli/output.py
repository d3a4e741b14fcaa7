"""Where a command's result goes: text for a person to the terminal, JSON to a file that is not one of its inputs."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import PlaitError
from ..tasks.base import Table
from ..training.files import check_target, write_whole
from ..training.run import SAVED, Run

ALWAYS = {"config.json", *SAVED}
DATA = {"images.safetensors", "sequences.safetensors", "series.csv", "tokens.safetensors", "vocabulary.json"}
PICTURES = {"confusion.png", "curves.png", "forecast.png", "perplexity.png", "turns.png"}
OF_A_RUN = ALWAYS | DATA | PICTURES  # all that `plait train` writes into the folder of a run, but for damaged copies


class Pipe(Console):
    def on_broken_pipe(self) -> None:
        """The reader has ended (`| head`): the run goes on, and prints nothing more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Output:
    def __init__(
        self, json_file: str | None, reads: Iterable[str | None] = (), makes: str | None = None, **others: str | None
    ) -> None:
        """reads: files, and folders. makes: the folder of a run. others: what else is written, by option"""
        self.json_file = json_file
        self.console = Pipe(quiet=json_file == "-", highlight=False, markup=False, emoji=False, soft_wrap=True)
        if json_file is not None and json_file != "-":
            check_target(Path(json_file), f"--json {json_file}")
            others["json"] = json_file
        if makes is not None:
            others["out"] = makes
        inputs = [Path(path) for path in reads if path]
        written = {f"--{option} {path}": Path(path) for option, path in others.items() if path}
        for name, target in written.items():
            check_output(target, name, inputs, Path(makes) if makes else None)
        check_different(written)

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


def check_output(path: Path, name: str, inputs: Sequence[Path], made: Path | None) -> None:
    """Refuses a file of a run and what is read, whatever the link or the spelling. name: the user's"""
    target = Path(os.path.realpath(path))
    for folder in (target.parent, *inputs, *([made] if made else [])):
        if (folder == made or is_run(folder)) and any(same_file(target, file) for file in files_of(folder)):
            raise PlaitError(f"{name} is a file of the run {folder}, and would be replaced: give another name.")
    for file in inputs:
        if any(same_file(target, p) for p in (file, *file.parents) if p.is_file()):  # or the zip that it is in
            raise PlaitError(f"{name} is a file that the command reads, and would be replaced: give another name.")
        if path != made and file.is_dir() and not is_run(file) and Path(os.path.realpath(file)) in target.parents:
            if target.exists():
                raise PlaitError(f"{name} is in {file}, which the command reads, and would be replaced: use a new one.")
            if target.suffix != ".json":  # no data: the next command does not read it, either
                raise PlaitError(f"{name} is in {file}, which the command reads: give a name outside of it.")


def check_different(written: dict[str, Path]) -> None:
    """written: by the user's words for it. Devices and pipes take both."""
    for (name, path), (other, second) in combinations(written.items(), 2):
        if same_file(Path(os.path.realpath(path)), second) and (path.is_file() or not path.exists()):
            raise PlaitError(f"{name} and {other} are the same file: give another name for one of them.")


def files_of(run: Path) -> Iterator[Path]:
    """All that `plait train` has written there, or would write."""
    yield from (run / name for name in OF_A_RUN)
    yield from run.glob("*.damaged*")  # kept by training/damaged_copies.py


def is_run(folder: Path) -> bool:
    """Also one that is damaged: two of its files are there, or one that says so."""
    found = [name for name in ALWAYS if os.path.lexists(folder / name)]
    try:
        return len(found) > 1 or (found == ["config.json"] and bool(Run(folder).config()))
    except PlaitError:
        return False


def same_file(target: Path, file: Path) -> bool:
    """Also one that does not exist yet, by its name; and one with another name, by its inode."""
    if target == Path(os.path.realpath(file)):
        return True
    try:
        return target.samefile(file)
    except OSError:  # one of them is not there
        return False
