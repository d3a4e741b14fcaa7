"""The .ts files of the UEA and UCR archives: a header of @ lines, then a sequence in each line.

In a line, dimensions are divided by : and the numbers of a dimension by commas; the label comes last, if the header
says that there is one. Sequences may have different lengths. ? and NaN stand for a missing number.
"""

import re
from pathlib import PurePosixPath

import numpy as np

from ..errors import PlaitError
from .containers import Container
from .files import decoded
from .sequences import RawSequences, Rows, Source

WORDS = {"true": True, "false": False}
PART = re.compile(r"(?i)(.*?)_(train|test)\.ts")


def parse(content: bytes, where: str) -> tuple[RawSequences, int]:
    """-> the sequences, and their number of dimensions"""
    header, classes, dimensions = dict[str, str](), list[str](), 0
    rows, labels, names = list[Rows](), list[str](), list[str]()
    is_data = False
    for number, line in enumerate(decoded(content, where).split("\n"), 1):
        line, at = line.strip(), f"{where}, line {number}"
        if not line or line.startswith(("#", "%")):
            continue
        if not is_data:
            is_data = line.lower() == "@data"
            if is_data:
                classes = check_header(header, where)
            elif not line.startswith("@"):
                raise PlaitError(f"{at}: '{line:.40}' comes before @data; expected a line that begins with @.")
            else:
                name, *value = line[1:].split(maxsplit=1) or [""]
                header[name.lower()] = value[0].strip() if value else ""
            continue
        fields = line.split(":")
        if classes:
            *fields, label = fields
            if not fields:
                raise PlaitError(f"{at}: it has no label; expected dimensions, divided by :, and a label at the end.")
            if (label := label.strip()) not in classes:
                known = f"{' '.join(classes):.60}"
                raise PlaitError(f"{at}: class '{label:.40}' is not in the header's @classLabel ({known}).")
            labels.append(label)
        rows.append(sequence(fields, at))
        dimensions = dimensions or len(fields)
        if len(fields) != dimensions:
            raise PlaitError(f"{at}: it has {len(fields)} dimensions, and the first sequence has {dimensions}.")
        names.append(f"line {number}")
    if not is_data:
        raise PlaitError(f"{where} has no line @data: expected a .ts file of the UEA or UCR archive.")
    check_promises(header, rows, dimensions, where)
    return RawSequences(rows, labels if classes else None, names), dimensions


def check_header(header: dict[str, str], where: str) -> list[str]:
    """-> the classes; none if the sequences have no labels"""
    if "targetlabel" in header and header["targetlabel"].lower().split()[:1] == ["true"]:
        raise PlaitError(f"{where} has numbers to predict (@targetLabel): expected classes (@classLabel).")
    if header.get("timestamps", "false").lower() == "true":
        raise PlaitError(f"{where} has time stamps (@timeStamps true): expected numbers alone; write it without them.")
    if "classlabel" not in header:
        raise PlaitError(f"{where} has no @classLabel: expected one, with the names of the classes.")
    known, *classes = header["classlabel"].split() or [""]
    if known.lower() not in WORDS:
        raise PlaitError(f"{where}: @classLabel {known:.40}: expected true and the classes, or false.")
    if WORDS[known.lower()] and not classes:
        raise PlaitError(f"{where}: @classLabel true without classes: expected their names behind it.")
    return classes if WORDS[known.lower()] else []


def check_promises(header: dict[str, str], rows: list[Rows], dimensions: int, where: str) -> None:
    """What the header says of all sequences is so."""
    lengths = {len(r) for r in rows}
    for name, found, what in (
        ("dimensions", dimensions, "dimensions"),
        ("serieslength", max(lengths, default=0), "steps"),
    ):
        said = header.get(name, "")
        if said and not said.isdecimal():
            raise PlaitError(f"{where}: its header says '{said:.40}' {what}: expected a whole number.")
        if said and rows and int(said) != found and not (name == "serieslength" and len(lengths) > 1):
            raise PlaitError(f"{where}: its header says {said} {what}, and its sequences have {found}: mend one.")
    if header.get("univariate", "").lower() == "true" and dimensions > 1:
        raise PlaitError(f"{where}: its header says @univariate true, and it has {dimensions} dimensions: mend one.")
    if header.get("equallength", "").lower() == "true" and len(lengths) > 1:
        raise PlaitError(
            f"{where}: its header says @equalLength true, and its sequences have {min(lengths)} to {max(lengths)} "
            "steps: mend one."
        )


def sequence(fields: list[str], at: str) -> Rows:  # (T, D)
    columns = []
    for d, values in enumerate(fields, 1):
        try:
            cells = values.replace("?", "nan").split(",") if values.strip() else []
            columns.append(np.array(cells, np.float64))
        except ValueError as e:
            raise PlaitError(f"{at}, dimension {d}: {e}; expected numbers, divided by commas.") from None
    lengths = {len(c) for c in columns}
    if len(lengths) > 1:
        raise PlaitError(
            f"{at}: its dimensions have {min(lengths)} to {max(lengths)} steps; expected the same number in each."
        )
    return np.stack(columns, 1)


def read(inside: Container, name: str, *, alone: bool = False) -> Source:
    """One file, with the test part beside NAME_TRAIN.ts, unless alone."""
    files, found = {"train": name}, PART.fullmatch(name)
    if found and found[2].lower() == "train" and not alone:
        beside = (n for n in inside.names if (m := PART.fullmatch(n)) and m[1] == found[1] and m[2].lower() == "test")
        if test := next(beside, None):
            files["test"] = test
    inside.check(files.values())
    parts, width = {}, 0
    for part, file in files.items():
        parts[part], D = parse(inside.read(file), inside.called(file))
        width = width or D
        if width != D:
            raise PlaitError(f"{inside.called(file)} has {D} dimensions, and {inside.called(name)} has {width}.")
    title = PurePosixPath(found[1] if found else name).name.removesuffix(".ts")
    return Source(title, [str(d + 1) for d in range(width)], parts)


def problems(names: list[str]) -> list[str]:
    """Of all files: those that begin a problem, its training part or what has no parts."""
    files = [n for n in names if n.lower().endswith(".ts")]
    return [n for n in files if not ((m := PART.fullmatch(n)) and m[2].lower() == "test")] or files
