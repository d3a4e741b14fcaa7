"""Text: the parts of a corpus from a file, a folder or a zip, and the numbers of its words or characters."""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PlaitError, between, unknown
from .containers import container, is_container
from .files import contents, decoded, reading

EOS, UNK = "<eos>", "<unk>"
ENDS = {"word": EOS, "char": "\n"}  # the token that ends a line, by level
PARTS = ("train", "valid", "test")
PART_OF = {**{part: part for part in PARTS}, "validation": "valid", "val": "valid", "dev": "valid"}
TEXT_SUFFIXES = (".txt", ".text", ".tokens", ".raw", ".md", ".rst")
EXPECTED = "expected a text file, a folder or a zip"
LIMIT = 4 * 2**30  # bytes of text in a file, or in a zip
FEWEST = 20  # lines, words or characters that a text must have to be cut
PIECES = (r"(?m)^[^\S\n]*\S", r"\S+", r"\S")  # where a line, a word, a character begins


@dataclass(frozen=True)
class Texts:
    name: str
    parts: dict[str, str]  # the raw text of train, valid and test


def read(path: str, validation: float = 0.05, test: float = 0.05) -> Texts:
    """The parts that a container names; others are cut from the end."""
    if not (validation > 0 and test > 0 and validation + test < 1):
        raise PlaitError(f"validation {validation} and test {test}: expected shares above 0 whose sum is below 1.")
    if not path:
        raise PlaitError(f"The path is empty: {EXPECTED}.")
    with reading(path, EXPECTED):
        if is_container(Path(path)):
            parts = from_container(Path(path))
        else:
            parts = {"train": decoded(contents(Path(path), EXPECTED, LIMIT), path)}
    for part, text in parts.items():
        if not text or text.isspace():
            found = "is empty" if len(parts) == 1 else f"has an empty {part} part"
            raise PlaitError(f"{path} {found}: expected text in it.")
    if shares := {part: share for part, share in (("valid", validation), ("test", test)) if part not in parts}:
        parts |= cut(parts["train"], path, shares)
    return Texts(Path(path).absolute().name, {part: parts[part] for part in PARTS})


def from_container(path: Path) -> dict[str, str]:
    with container(path, EXPECTED, "text", LIMIT) as found:
        parts = by_part(found.names, path)
        found.check(name for names in parts.values() for name in names)
        return joined(parts, lambda name: decoded(found.read(name), found.called(name)))


def by_part(names: Iterable[str], where: Path) -> dict[str, list[str]]:
    """The text files of each part; without any, all are to train on."""
    names = list(names)
    texts = [name for name in names if PurePosixPath(name).suffix.lower() in TEXT_SUFFIXES]
    if not texts:
        found = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        expected = f"expected names that end in {', '.join(TEXT_SUFFIXES)}"
        raise PlaitError(f"{where} has no text file (found: {found or 'nothing'}): {expected}.")
    parts: dict[str, list[str]] = {}
    for name in texts:
        if part := part_of(name, where):
            parts.setdefault(part, []).append(name)
    if parts and "train" not in parts:
        other = next(iter(parts.values()))[0]
        raise PlaitError(f"{where} has {other} and nothing to train on: expected a file with 'train' in its name.")
    return parts or {"train": texts}


def part_of(name: str, where: Path) -> str | None:
    """The part that is a word of the file's name, or else of a folder's above it."""
    for step in reversed(PurePosixPath(name).parts):
        found = {PART_OF[word] for word in re.split(r"[\W_]+", step.lower()) if word in PART_OF}
        if len(found) > 1:
            raise PlaitError(f"{name} in {where} names both {' and '.join(sorted(found))}: rename it.")
        if found:
            return found.pop()
    return None


def joined(parts: Mapping[str, Iterable[str]], load: Callable[[str], str]) -> dict[str, str]:
    return {part: "".join(ended(load(name)) for name in names) for part, names in parts.items()}


def ended(text: str) -> str:
    return text if text.endswith("\n") or not text else text + "\n"


def cut(text: str, name: str, shares: dict[str, float]) -> dict[str, str]:
    """Cuts shares off the end: between lines, else words, or characters."""
    pieces = (array("q", (piece.start() for piece in re.finditer(kind, text))) for kind in PIECES)
    starts = next((starts for starts in pieces if len(starts) >= FEWEST), None)
    if starts is None:
        raise PlaitError(f"{name} has fewer than {FEWEST} characters: expected more, to train on and to test.")
    parts, end, left = {}, len(text), len(starts)
    for part in reversed(shares):
        left -= max(1, round(shares[part] * len(starts)))
        if left < 1:
            raise PlaitError(f"{name} is too short for shares of {shares}: nothing is left to train on; take less.")
        parts[part], end = text[starts[left] : end], starts[left]
    return {"train": text[:end], **parts}


def sentences(text: str) -> Iterator[list[str]]:
    """The words of each line, and EOS; an EOS in the text ends a line as well."""
    if EOS in text:
        text = re.sub(rf"(?<!\S){EOS}(?!\S)", "\n", text)
    for line in text.split("\n"):
        if words := line.split():
            words.append(EOS)
            yield words


@dataclass(frozen=True, eq=False)
class Encoded:
    """A text as numbers; a sentence is a line with its end."""

    ids: Tensor  # (n,) int32
    starts: Tensor  # (sentences + 1,) int64: where each sentence begins, and where the last one ends
    unknown: int  # tokens that the vocabulary lacks

    @property
    def lengths(self) -> Tensor:  # (sentences,)
        return self.starts.diff()


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by number, the most frequent first, with UNK and the end of a line."""

    words: Sequence[str]
    level: str  # word or char

    def __post_init__(self) -> None:
        others = self.index.keys() - {UNK, self.end}
        fit = all(len(word) == 1 if self.level == "char" else word.split() == [word] for word in others)
        if not fit or not len(others) + 2 == len(self.index) == len(self):
            raise PlaitError(f"A vocabulary must be of {self.level}s, each once, with {UNK} and {self.end!r}.")

    @classmethod
    def build(cls, text: str, level: str, min_count: int = 1) -> "Vocabulary":
        """The tokens that the training text has at least min_count times."""
        between("min_count", min_count, 1, 10**9)
        special = {UNK, end_of(level)}
        counts = Counter(ended(text) if level == "char" else (word for line in sentences(text) for word in line))
        if counts.total() - counts[end_of(level)] < 2:
            raise PlaitError(f"The training part has fewer than two {level}s: there is nothing to predict; add text.")
        rare = [word for word, count in counts.items() if count < min_count and word not in special]
        counts[UNK] += sum(counts.pop(word) for word in rare)
        if rare and counts.keys() == special:
            raise PlaitError(f"min_count {min_count}: no {level} of the training part is seen so often; lower it.")
        return cls(tuple(sorted(counts, key=lambda word: (-counts[word], word))), level)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def end(self) -> str:
        return end_of(self.level)

    @cached_property
    def index(self) -> Mapping[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, text: str) -> Encoded:
        if self.level == "char":
            table = np.full(0x110000, -1, np.int32)  # by code point
            for word in self.index.keys() - {UNK}:
                table[ord(word)] = self.index[word]
            codes = np.frombuffer(ended(text).encode("utf-32-le", "surrogatepass"), "<u4")  # (n,)
            ids, ends = table[codes], np.flatnonzero(codes == ord("\n")) + 1  # (n,), (sentences,)
        else:
            numbers, lengths = array("i"), array("q")
            for line in sentences(text):
                numbers.extend(map(self.index.get, line, repeat(-1)))
                lengths.append(len(line))
            ids, ends = np.array(numbers, np.int32), np.cumsum(lengths, dtype=np.int64)  # (n,), (sentences,)
        missing = ids < 0
        ids[missing] = self.index[UNK]
        starts = np.concatenate((np.zeros(1, np.int64), ends))
        return Encoded(torch.from_numpy(ids), torch.from_numpy(starts), int(missing.sum()))

    def decode(self, ids: Tensor | Iterable[int]) -> str:
        words = [self.words[number] for number in (ids.tolist() if isinstance(ids, Tensor) else ids)]
        if self.level == "char":
            return "".join(words)
        return "".join("\n" if word == EOS else word + " " for word in words).replace(" \n", "\n").removesuffix(" ")

    def to_json(self) -> dict[str, Any]:
        return {"level": self.level, "words": list(self.words)}

    @classmethod
    def from_json(cls, value: Any, name: str = "The vocabulary") -> "Vocabulary":
        """What to_json gave, checked; `name`: the file, for the error."""
        try:
            if not isinstance(value["words"], list) or not all(isinstance(word, str) for word in value["words"]):
                raise TypeError("words must be a list of strings")
            return cls(tuple(value["words"]), value["level"])
        except (KeyError, TypeError, PlaitError) as e:
            raise PlaitError(f"{name} is damaged ({e}): restore it from a copy, or train again.") from None


def end_of(level: str) -> str:
    if level not in ENDS:
        raise unknown("level", level, ENDS)
    return ENDS[level]
