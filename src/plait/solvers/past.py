"""What a solver remembers of a layer from call to call, and what it knows of one call."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from .base import Solve
    from .grid import Link

MOST_STORED = 1 << 26  # bytes of states for each layer and direction: those that were not seen for longest go first
STORING = threading.RLock()  # while a store is read or changed: several Python threads may be in one layer
Whole = NDArray[np.int64]


class Past:
    """Of one layer and direction. It belongs to a checkpoint: a run that goes on then takes the same steps.

    numbers: whatever the solver counts and adapts, by name
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.store = Store()
        self.said: set[str] = set()  # what the user was told already

    def tensors(self) -> dict[str, Tensor]:
        found = {f"number.{name}": torch.tensor(value) for name, value in self.numbers.items()}
        return found | self.store.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.numbers |= {
            name.removeprefix("number."): int(t) for name, t in tensors.items() if name.startswith("number.")
        }
        self.store.load({name: t for name, t in tensors.items() if not name.startswith("number.")})


class Visit:
    """One call of a layer, seen from one direction. The way back is given what the way there has left in it."""

    def __init__(
        self,
        past: Past | None = None,
        ids: Tensor | None = None,
        link: "Link | None" = None,
        name: str = "the layer",
    ) -> None:
        self.past = Past() if past is None else past
        self.name = name
        self.link = link  # to other ranks, if each has some of the steps
        self.ids = ids  # (B,): which sequences these are, longest first; None: nobody has said
        self.rows: Tensor | None = None  # the input, in the order of the pieces
        self.forward: Solve | None = None
        self.backward: Solve | None = None
        self.cut: tuple[int | None] | None = None  # the steps of a piece, once that is decided; None in it: one walk
        self.left: Any = None  # whatever the solver's way back needs, beside the tape; None: the walk was serial
        self.initial: Sequence[Tensor] | None = None  # per state (B, .): what the sequences began with
        self.starts: Sequence[Tensor] | None = None  # per state: what the pieces began with; a second run takes them

    def __deepcopy__(self, memo: object) -> None:
        return

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


class Store:
    """States inside of sequences, by the sequences' ids: with them the next visit begins.

    A sequence has as many as it has boundaries between pieces. They are of use as long as it is cut in the same way.
    """

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}  # id -> row of the tables; the sequence seen last is the last one
        self.about = np.zeros((0, 3), np.int64)  # (slots, 3): its length, the steps of a piece, steps before a boundary
        self.tables: list[Tensor] = []  # per state (slots, boundaries, .)

    def rows(self, ids: Tensor | None, about: Whole, like: Tensor | None = None) -> Whole:  # (B, 2) -> (B,)
        """In which row it has each of the sequences, -1 where it has not. about: length, steps of a piece"""
        nothing = np.full(len(about), -1, np.int64)
        with STORING:
            if ids is None or not len(self.about) or (like is not None and self.tables[0].dtype != like.dtype):
                return nothing
            rows = np.array([self.slots.get(i, -1) for i in ids.tolist()], np.int64)
            return np.where((self.about[rows, :2] == about).all(1), rows, nothing)

    def find(
        self, ids: Tensor | None, about: Whole, like: Tensor
    ) -> tuple[NDArray[np.bool_], Whole, list[Tensor]]:  # (B, 2) -> (B,), (found,), per state (found, boundaries, .)
        """Which of the sequences it has; their steps before a boundary, and their states."""
        with STORING:
            rows = self.rows(ids, about, like)
            has = rows >= 0
            return has, self.about[rows[has], 2], [table[torch.from_numpy(rows[has])] for table in self.tables]

    def put(self, ids: Tensor, about: Whole, states: Sequence[Tensor]) -> None:  # (B, 3), per state (B, boundaries, .)
        """The states of these sequences, which take the place of older ones."""
        with STORING:
            kinds = [(s.dtype, s.shape[2]) for s in states]
            if kinds != [(t.dtype, t.shape[2]) for t in self.tables]:
                self.slots, self.about = {}, np.zeros((0, 3), np.int64)
                self.tables = [s.new_empty(0, *s.shape[1:]) for s in states]
            width = states[0].shape[1]
            if (more := width - self.tables[0].shape[1]) > 0:  # some sequences have more boundaries than any before
                self.tables = [torch.cat([t, t.new_zeros(len(t), more, t.shape[2])], 1) for t in self.tables]
            each = sum(t.shape[1] * t.shape[2] * t.element_size() for t in self.tables)
            most = max(1, MOST_STORED // max(1, each))
            for i in ids.tolist():
                slot = self.slots.pop(i, None)
                if slot is None:
                    slot = self.slots.pop(next(iter(self.slots))) if len(self.slots) >= most else len(self.slots)
                self.slots[i] = slot
            need, have = len(self.slots), len(self.about)
            if need > have:
                room = max(need, min(most, 2 * have))
                self.about = np.concatenate([self.about, np.zeros((room - have, 3), np.int64)])
                self.tables = [torch.cat([t, t.new_zeros(room - have, *t.shape[1:])]) for t in self.tables]
            # if not all have room, the first are gone
            mine = [k for k, i in enumerate(ids.tolist()) if i in self.slots]
            rows = np.array([self.slots[int(ids[k])] for k in mine], np.int64)
            self.about[rows] = about[mine]
            for table, state in zip(self.tables, states, strict=True):
                table[torch.from_numpy(rows), :width] = state[mine]

    def tensors(self) -> dict[str, Tensor]:
        with STORING:
            if not self.slots:
                return {}
            rows = np.array(list(self.slots.values()))
            found = {"ids": torch.tensor(list(self.slots)), "about": torch.from_numpy(self.about[rows])}
            return found | {f"states.{k}": t[torch.from_numpy(rows)] for k, t in enumerate(self.tables)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        with STORING:
            self.slots, self.about, self.tables = {}, np.zeros((0, 3), np.int64), []
            if tensors:
                n = len(tensors["ids"])
                if tensors["about"].shape != (n, 3) or any(len(t) != n for t in tensors.values()) or len(tensors) < 3:
                    raise ValueError("its stored states do not go together")
                self.about = tensors["about"].numpy().copy()
                self.slots = {int(i): row for row, i in enumerate(tensors["ids"])}
                self.tables = [tensors[f"states.{k}"].clone() for k in range(len(tensors) - 2)]


class Pasts:
    """Of all layers and directions of a module, for one solver."""

    def __init__(self, solver: str) -> None:
        self.solver = solver  # its text
        self.found: dict[tuple[int, int], Past] = {}

    def past(self, layer: int, direction: int) -> Past:
        return self.found.setdefault((layer, direction), Past())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for (layer, direction), past in self.found.items():
            for name, t in past.tensors().items():
                yield f"{layer}.{direction}.{name}", t

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        found: dict[tuple[int, int], dict[str, Tensor]] = {}
        for key, t in tensors.items():
            layer, direction, name = key.split(".", 2)
            found.setdefault((int(layer), int(direction)), {})[name] = t
        self.found = {}
        for place, some in found.items():
            self.found[place] = Past()
            self.found[place].load(some)
