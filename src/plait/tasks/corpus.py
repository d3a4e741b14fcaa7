"""A text as numbers: read from files, and stored in the folder of a run."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..data import text
from ..data.text import Encoded, Vocabulary
from ..data.text_batches import before
from ..errors import PlaitError
from ..training.run import Run
from ..training.tensors import dumps, loads
from .settings import LanguageSettings


@dataclass(frozen=True)
class Corpus:
    name: str
    vocabulary: Vocabulary
    parts: Mapping[str, Encoded]

    @classmethod
    def read(cls, s: LanguageSettings) -> "Corpus":
        assert s.data is not None
        texts = text.read(s.data, s.validation, s.test)
        vocabulary = Vocabulary.build(texts.parts["train"], s.level, s.min_count)
        parts = {part: vocabulary.encode(t) for part, t in texts.parts.items()}
        for part, encoded in parts.items():
            if not len(encoded.ids):
                raise PlaitError(f"{s.data} has no {s.level} in its {part} part: expected text in it.")
        return cls(texts.name, vocabulary, parts)

    @classmethod
    def reopen(cls, run: Run, name: str) -> "Corpus":
        path = run.path / "vocabulary.json"
        content = run.read(path.name)
        try:
            vocabulary = Vocabulary.from_json(json.loads(content), str(path))
        except (ValueError, RecursionError) as e:
            raise PlaitError(f"{path} cannot be read ({e}): restore it from a copy, or train again.") from None
        path = run.path / "tokens.safetensors"
        tensors, unknown = loads(path, run.read(path.name))
        try:
            parts = {p: Encoded(tensors[f"{p}.ids"], tensors[f"{p}.starts"], unknown[p]) for p in text.PARTS}
        except KeyError as e:
            raise PlaitError(f"{path} lacks {e}: restore it from a copy, or train again.") from None
        for part, encoded in parts.items():
            if wrong := misfit(encoded, len(vocabulary)):
                raise PlaitError(f"{path}: {wrong} in part {part}: restore it from a copy, or train again.")
        return cls(name, vocabulary, parts)

    def files(self) -> dict[str, bytes]:
        tensors = {f"{p}.ids": e.ids for p, e in self.parts.items()}
        tensors |= {f"{p}.starts": e.starts for p, e in self.parts.items()}
        vocabulary = json.dumps(self.vocabulary.to_json(), ensure_ascii=False).encode()
        unknown = {p: e.unknown for p, e in self.parts.items()}
        return {"vocabulary.json": vocabulary, "tokens.safetensors": dumps(tensors, unknown)}

    @property
    def end(self) -> int:
        return self.vocabulary.index[self.vocabulary.end]

    @cached_property
    def before(self) -> dict[str, Tensor]:
        return {part: before(encoded.ids, self.end) for part, encoded in self.parts.items()}

    @cached_property
    def digest(self) -> str:
        content = hashlib.sha256(json.dumps(self.vocabulary.to_json()).encode())
        for part in text.PARTS:
            content.update(self.parts[part].ids.numpy().tobytes())
            content.update(self.parts[part].starts.numpy().tobytes())
        return content.hexdigest()


def misfit(encoded: Encoded, V: int) -> str | None:
    ids, starts, unknown = encoded.ids, encoded.starts, encoded.unknown
    if ids.dtype != torch.int32 or ids.dim() != 1 or not len(ids):
        return f"ids of shape {tuple(ids.shape)} and {ids.dtype}, not a row of int32,"
    if int(ids.min()) < 0 or int(ids.max()) >= V:
        return f"ids from {int(ids.min())} to {int(ids.max())}, with a vocabulary of {V},"
    if starts.dtype != torch.int64 or starts.dim() != 1 or len(starts) < 2:
        return f"starts of shape {tuple(starts.shape)} and {starts.dtype}, not a row of int64,"
    if int(starts[0]) != 0 or int(starts[-1]) != len(ids) or int(starts.diff().min()) < 1:
        return f"starts that do not rise from 0 to {len(ids)}"
    if type(unknown) is not int or not 0 <= unknown <= len(ids):
        return f"{unknown!r:.40} unknown ones of {len(ids)}"
    return None
