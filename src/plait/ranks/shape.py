"""The shape of a mesh: how many ranks along each axis, as `--parallel data=2,layers=2:micro=2` says it."""

import re
from dataclasses import dataclass, replace
from typing import Any

from ..errors import PlaitError, unknown

AXES = ("data", "layers", "time")
MOST_RANKS = 100_000
WAYS = ("auto", "shared", "network", "server")  # how the gradients of data ranks meet
WHOLE = re.compile(r"0*[1-9][0-9]{0,5}", re.ASCII)


@dataclass(frozen=True)
class Shape:
    """data x layers x time ranks. data None: as many as there are left."""

    data: int | None = None
    layers: int = 1
    time: int = 1
    way: str = "auto"  # shared memory on one host, the network between hosts, or a server with all parameters
    micro: int = 1  # micro-batches of a pipeline
    chunks: int | None = None  # of time in a pipeline; None: chosen by what is measured at the start

    def __post_init__(self) -> None:
        for name in ("data", "layers", "time", "micro", "chunks"):
            value = getattr(self, name)
            if not (value is None and name in ("data", "chunks")) and value not in range(1, MOST_RANKS + 1):
                raise PlaitError(f"a mesh with {name}={value!r}: expected a whole number from 1 to {MOST_RANKS}.")
        if self.way not in WAYS:
            raise unknown("a mesh with data ranks by", self.way, WAYS)
        if self.time > 1 and self.layers > 1:
            raise PlaitError(
                f"--parallel layers={self.layers},time={self.time}: the stages of a pipeline take the steps one after "
                "another; use one of the two, with data= if you like."
            )

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """data=2,layers=4:micro=2:chunks=7"""
        found: dict[str, Any] = {}
        for given in text.split(","):
            (axis, count), *options = (word.strip().partition("=")[::2] for word in given.split(":"))
            if axis not in AXES:
                raise unknown("--parallel: axis", axis, AXES)
            if axis in found:
                raise PlaitError(f"--parallel {text}: {axis} is given twice; give it once.")
            found[axis] = whole(f"--parallel {axis}={count}", count)
            for name, value in options:
                one = option(axis, name, value)
                if one.keys() & found.keys():
                    raise PlaitError(f"--parallel {given}: it has two options of the same kind; give one.")
                found |= one
        return cls(**found)

    @property
    def size(self) -> int:
        return (self.data or 1) * self.layers * self.time

    def filled(self, world: int) -> "Shape":
        rest = self.layers * self.time
        if self.data is None and world % rest == 0:
            return replace(self, data=world // rest)
        if self.size != world:
            todo = f"start {self.size} ranks" if self.size > 1 else "start one process"
            raise PlaitError(f"--parallel {self} needs {self.size} ranks, and {world} were started: {todo}.")
        return replace(self, data=self.data or 1)

    def __str__(self) -> str:
        """As it was given, without what is 1."""
        words = []
        if self.data is not None and (self.data > 1 or self.layers == self.time == 1):
            words.append(f"data={self.data}" + (f":{self.way}" if self.way != "auto" else ""))
        if self.layers > 1:
            micro = f":micro={self.micro}" if self.micro > 1 else ""
            words.append(f"layers={self.layers}{micro}" + (f":chunks={self.chunks}" if self.chunks else ""))
        if self.time > 1:
            words.append(f"time={self.time}")
        return ",".join(words)


def option(axis: str, name: str, value: str) -> dict[str, Any]:
    if axis == "data" and not value:
        if name not in WAYS:
            raise unknown("--parallel: data ranks by", name, WAYS)
        return {"way": name}
    if axis == "layers" and name == "chunks" and value == "auto":
        return {}
    if axis == "layers" and name in ("micro", "chunks"):
        return {name: whole(f"--parallel layers: {name}={value}", value)}
    known = {"data": ", ".join(WAYS), "layers": "micro=N and chunks=N"}.get(axis, "no options")
    raise PlaitError(f"--parallel {axis}: option '{name}' is not known; expected {known}.")


def whole(name: str, text: str) -> int:
    if not WHOLE.fullmatch(text) or int(text) > MOST_RANKS:
        raise PlaitError(f"{name}: expected a whole number from 1 to {MOST_RANKS}.")
    return int(text)
