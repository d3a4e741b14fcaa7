"""What a solver remembers of a layer from call to call, and what it knows of one call."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .solve import EXACT, Solve

if TYPE_CHECKING:
    from .grid import Link

MOST_STORED = 1 << 26  # bytes for each layer and direction; the oldest states go first
LOCK = threading.RLock()  # several Python threads may be in one layer
Whole = NDArray[np.int64]


class WarmStart:
    """Of one layer and direction. numbers: what the solver counts and adapts"""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.table = StateTable()
        self.said: set[str] = set()  # what the user was told already

    def tensors(self) -> dict[str, Tensor]:
        found = {f"number.{name}": torch.tensor(value) for name, value in self.numbers.items()}
        return found | self.table.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.numbers |= {
            name.removeprefix("number."): int(t) for name, t in tensors.items() if name.startswith("number.")
        }
        self.table.load({name: t for name, t in tensors.items() if not name.startswith("number.")})


class Visit:
    """One call of a layer, seen from one direction, for both passes."""

    def __init__(
        self,
        warm_start: WarmStart | None = None,
        ids: Tensor | None = None,
        link: "Link | None" = None,
        name: str = "the layer",
    ) -> None:
        self.warm_start = WarmStart() if warm_start is None else warm_start
        self.name = name
        self.link = link  # to other ranks, if each has some of the steps
        self.ids = ids  # (B,): which sequences these are, longest first; None: nobody has said
        self.rows: Tensor | None = None  # the input, in the order of the pieces
        self.forward: Solve | None = None
        self.backward: Solve | None = None
        self.cut: tuple[int | None] | None = None  # steps of a piece, once decided; (None,): one walk
        self.joints: Any = None  # where the pieces of the forward pass meet; None: the walk was serial
        self.initial: Sequence[Tensor] | None = None  # per state (B, .): what the sequences began with
        self.starts: Sequence[Tensor] | None = None  # per state: of the pieces, for a second run

    def not_cut(self) -> None:
        """The forward pass is one exact walk."""
        self.forward, self.joints, self.cut = EXACT, None, None

    def not_cut_back(self) -> None:
        """The backward pass was one exact walk."""
        self.backward = EXACT
        self.count()

    def count(self) -> None:
        """Both passes are done."""
        numbers, passes = self.warm_start.numbers, (self.forward, self.backward)
        numbers["calls"] = numbers.get("calls", 0) + 1
        numbers["cut"] = numbers.get("cut", 0) + all(solve is not None and solve.split for solve in passes)

    def __deepcopy__(self, memo: object) -> None:
        return

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


class StateTable:
    """States at the boundaries of pieces, by the sequences' ids."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}  # id -> row of the tables, in the order of last use
        self.about = np.zeros((0, 3), np.int64)  # (slots, 3): length, steps of a piece, steps before a boundary
        self.tables: list[Tensor] = []  # per state (slots, boundaries, .)

    def rows(self, ids: Tensor | None, about: Whole, like: Tensor | None = None) -> Whole:  # (B, 2) -> (B,)
        """Of each sequence, -1 where there is none. about: length, steps of a piece"""
        nothing = np.full(len(about), -1, np.int64)
        with LOCK:
            if ids is None or not len(self.about) or (like is not None and self.tables[0].dtype != like.dtype):
                return nothing
            rows = np.array([self.slots.get(i, -1) for i in ids.tolist()], np.int64)
            return np.where((self.about[rows, :2] == about).all(1), rows, nothing)

    def find(
        self, ids: Tensor | None, about: Whole, like: Tensor
    ) -> tuple[NDArray[np.bool_], Whole, list[Tensor]]:  # (B, 2) -> (B,), (found,), per state (found, boundaries, .)
        with LOCK:
            rows = self.rows(ids, about, like)
            has = rows >= 0
            return has, self.about[rows[has], 2], [table[torch.from_numpy(rows[has])] for table in self.tables]

    def put(self, ids: Tensor, about: Whole, states: Sequence[Tensor]) -> None:  # (B, 3), per state (B, boundaries, .)
        with LOCK:
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
        with LOCK:
            if not self.slots:
                return {}
            rows = np.array(list(self.slots.values()))
            found = {"ids": torch.tensor(list(self.slots)), "about": torch.from_numpy(self.about[rows])}
            return found | {f"states.{k}": t[torch.from_numpy(rows)] for k, t in enumerate(self.tables)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        with LOCK:
            self.slots, self.about, self.tables = {}, np.zeros((0, 3), np.int64), []
            if tensors:
                n = len(tensors["ids"])
                if tensors["about"].shape != (n, 3) or any(len(t) != n for t in tensors.values()) or len(tensors) < 3:
                    raise ValueError("its stored states do not go together")
                self.about = tensors["about"].numpy().copy()
                self.slots = {int(i): row for row, i in enumerate(tensors["ids"])}
                self.tables = [tensors[f"states.{k}"].clone() for k in range(len(tensors) - 2)]


class WarmStarts:
    def __init__(self, solver: str) -> None:
        self.solver = solver  # its text
        self.found: dict[tuple[int, int], WarmStart] = {}

    def of(self, layer: int, direction: int) -> WarmStart:
        return self.found.setdefault((layer, direction), WarmStart())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for (layer, direction), warm_start in self.found.items():
            for name, t in warm_start.tensors().items():
                yield f"{layer}.{direction}.{name}", t

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        found: dict[tuple[int, int], dict[str, Tensor]] = {}
        for key, t in tensors.items():
            layer, direction, name = key.split(".", 2)
            found.setdefault((int(layer), int(direction)), {})[name] = t
        self.found = {}
        for place, some in found.items():
            self.found[place] = WarmStart()
            self.found[place].load(some)
