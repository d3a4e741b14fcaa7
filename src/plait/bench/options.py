"""The options of a question: fields of a dataclass, each with its default and its sentence for --help.

What several questions ask for is made here, so that it has one sentence and one check.
"""

from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from functools import partial
from typing import Any, dataclass_transform

from ..errors import between, unknown
from ..training.settings import check_seed

LAST = ("quick", "picture", "repeats", "seed")  # in this order, after a question's own options
CELLS = ("lstm", "gru", "rnn")  # those that torch.nn has, too
SHAPES = "B,T,I,H,layers: batch, steps, inputs, units, layers; several with spaces."


def option(default: Any, text: str, metavar: str | None = None, **checks: Any) -> Any:
    """checks: limits=(least, most), choices=(names)"""
    return field(default=default, metadata={"help": text, "metavar": metavar, **checks})


def sized(usual: Any, quick: Any, text: str, **checks: Any) -> Any:
    """An option that --quick makes smaller, unless it is given."""
    about = f"{text}  (default: {usual}; with --quick {quick})"
    return option(None, about, sizes=(usual, quick), **checks)


repeats = partial(option, text="Measurements of each contender, at least 5.", limits=(5, 10_000))
quick = partial(option, False)
parts = partial(option, None, "Which sections, with commas.  (default: all)")
cell = partial(option, text="lstm, gru or rnn.", choices=CELLS)
cells = partial(option, text="Of lstm, gru and rnn, with commas.", choices=CELLS)
engine = partial(option, "auto", "What runs plait's layers; see `plait engines`.")
text_data = partial(option, None, "A text file, a folder or a zip, such as Penn Treebank's.")
picture = partial(option, None, text="Draw the sections there, as a PNG file.", metavar="FILE")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option, sized))
@dataclass(frozen=True, kw_only=True)
class Options:
    """Those of one question. What is out of range is refused before any measurement."""

    seed: int = option(0, "Seed of everything random.")

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        given = vars(self)
        for f in fields(self):
            if "sizes" in f.metadata and given[f.name] is None:
                object.__setattr__(self, f.name, f.metadata["sizes"][given["quick"]])
            value, checks = given[f.name], f.metadata
            if "limits" in checks and value is not None:
                between(f.name, value, *checks["limits"])
            if "choices" in checks and value is not None:
                for name in value.split(",") if f.name == "cells" else [value]:
                    if name not in checks["choices"]:
                        raise unknown(f.name.removesuffix("s"), name, checks["choices"])
        check_seed(self.seed)
        if "engine" in given:
            from ..engines import check_name

            check_name(given["engine"])
        if given.get("picture") is not None:
            from ..tasks.pictures import check_picture

            check_picture(given["picture"])

    def some(self, *names: str) -> dict[str, Any]:
        """Those of these names, for settings that have the same."""
        return {name: getattr(self, name) for name in names}

    @classmethod
    def listed(cls) -> list[Field[Any]]:
        """In the order of --help."""
        return sorted(fields(cls), key=lambda f: LAST.index(f.name) if f.name in LAST else -1)


def chosen(text: str | None, known: Sequence[str], what: str) -> list[str]:
    """Names with commas, in the order of those that are known; all of them if none are given."""
    if text is None:
        return list(known)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise unknown(what, name, known)
    return [name for name in known if name in names]
