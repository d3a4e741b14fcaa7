"""Where the matrices of a call are: which of its addresses, and how far behind it.

The call of a layer has few addresses, because the tape of a direction is one tensor. A walk from given wx has an
address for each matrix, because they may be parts of other tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import NamedTuple

from .target import Form

WORKSPACE, STARTS, FIRST = 0, 1, 2  # the first addresses of any call; STARTS: the first row of each step
# Ragged batches seldom have the same number of steps and rows. So their programs do not contain these: they come with
# each call, as if they were addresses. bounds: of the slices; chunk: rows of a product that are multiplied at a time
SIZES = ("T", "N", "bounds", "chunk")


class Where(NamedTuple):
    """A place in one of the matrices of a direction: `numbers` numbers after its beginning."""

    direction: int
    name: str
    numbers: int = 0
    k: int = 0  # of which state or parameter


WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr")
PANELS = ("r_panels", "w_panels", "p_panels")  # R, W and the projection, packed, if they are not in the workspace
GRADIENTS = ("d_w_ih", "d_w_hh", "d_b_ih", "d_b_hh")


class Table(ABC):
    ragged: bool

    @property
    def first(self) -> int:
        """The number of the first address after those that every call has, and the SIZES of a ragged one."""
        return FIRST + len(SIZES) if self.ragged else FIRST

    @abstractmethod
    def find(self, where: Where) -> tuple[int, int]:
        """The number of an address, and how many numbers after it the matrix begins."""


@dataclass(frozen=True)
class OfLayer(Table):
    """starts, SIZES if the batch is ragged, per state given, per state last; then per direction: OF_DIRECTION, params,
    d_params, and the matrices within the tapes if the batch is ragged

    given and last are (D, B, .): the states that the walk starts from, or 0, and the place for those that it ends with.
    """

    form: Form
    D: int
    B: int
    widths: Sequence[int]  # of the states
    in_tape: Sequence[Mapping[tuple[str, int], int]]  # per direction: (matrix, state) -> numbers before it in the tape
    ragged: bool

    @cached_property
    def each(self) -> int:
        return len(OF_DIRECTION) + 2 * self.form.K + (len(in_tapes(self.form.S)) if self.ragged else 0)

    @property
    def end(self) -> int:
        """How many addresses there are, without those of copies."""
        return self.first + 2 * self.form.S + self.D * self.each

    def find(self, where: Where) -> tuple[int, int]:
        d, name, _, k = where
        S, K, start = self.form.S, self.form.K, self.first + 2 * self.form.S + where.direction * self.each
        if name in ("given", "last"):
            return self.first + k + (S if name == "last" else 0), d * self.B * self.widths[k]
        if name in ("params", "d_params"):
            return start + len(OF_DIRECTION) + k + (K if name == "d_params" else 0), 0
        if name in OF_DIRECTION:
            return start + OF_DIRECTION.index(name), 0
        if self.ragged:
            name = {"wx": "gates", "old": "states"}.get(name, name)
            return start + len(OF_DIRECTION) + 2 * K + in_tapes(S).index((name, k)), 0
        tape = "d_tape" if name in ("d_gates", "d_extra") else "tape"
        return start + OF_DIRECTION.index(tape), self.in_tape[d][name.removeprefix("d_"), k]


# rows: h for the caller, or d_ of it. d_tape: where the way back writes, the tape itself or another tensor. before:
# the h that each step starts from, if they are not one matrix in the tape
OF_DIRECTION = ("x", "rows", "d_x", "tape", "d_tape", "before", "d_projected", *WEIGHTS, *PANELS, *GRADIENTS)


def of_direction(
    *,
    x: int,
    rows: int,
    d_x: int = 0,
    tape: int,
    d_tape: int = 0,
    before: int = 0,
    d_projected: int = 0,
    weights: Sequence[int],
    panels: Sequence[int],
    gradients: Sequence[int] = (0,) * len(GRADIENTS),
    params: Sequence[int],
    d_params: Sequence[int],
    within: Sequence[int] = (),
) -> list[int]:
    """The addresses of a direction of a layer in their order; 0 for a matrix that does not exist."""
    return [x, rows, d_x, tape, d_tape, before, d_projected, *weights, *panels, *gradients, *params, *d_params, *within]


@cache
def in_tapes(S: int) -> list[tuple[str, int]]:
    """The matrices of a tape and of the way back, each with the number of its state."""
    of_states = [(name, k) for k in range(S) for name in ("states", "initial")]
    return [("gates", 0), ("extra", 0), ("raw", 0), *of_states, ("d_gates", 0), ("d_extra", 0)]


def within_tapes(S: int, places: Mapping[tuple[str, int], int], size: int, tape: int, d_tape: int = 0) -> list[int]:
    """Their addresses. places: as in OfLayer.in_tape; size: bytes of a number"""
    names = in_tapes(S)
    found = [tape + places[name] * size for name in names[:-2]]
    return [*found, *(d_tape + places[name[2:], k] * size for name, k in names[-2:])]


OF_STACK = ("x", "rows", "d_x", "memory", "d_memory", "between")  # after given and last; then weights, and d_ of them


@dataclass(frozen=True)
class OfStack(Table):
    """One layer of a stack, whose tapes, and the rows from layer to layer, are in one tensor.

    starts, per state given, per state last; OF_STACK; per layer and direction the weights; the same for their gradients
    """

    form: Form
    layer: int
    layers: int
    D: int
    B: int
    widths: Sequence[int]  # of the states
    weights: Sequence[str]  # of a direction
    tapes: Sequence[int]  # per layer and direction: numbers before it in the memory
    rows: Sequence[int]  # the same for the rows that a layer gives to the next
    d_rows: Sequence[int]  # the same for their gradients, in `between`
    in_tape: Sequence[Mapping[tuple[str, int], int]]  # per direction
    mark: int  # the same for the number of parts
    back: bool
    ragged = False

    def find(self, where: Where) -> tuple[int, int]:
        d, name, _, k = where
        S, first = self.form.S, FIRST + 2 * self.form.S
        mine, each, is_last = self.layer * self.D + d, len(self.weights), self.layer == self.layers - 1
        if name in ("given", "last"):
            return FIRST + k + (S if name == "last" else 0), mine * self.B * self.widths[k]
        if name in ("d_projected", *WEIGHTS, *GRADIENTS):
            if name.removeprefix("d_") not in self.weights:
                return STARTS, 0  # there is none: that address is 0, because the batch is dense
            number = mine * each + self.weights.index(name.removeprefix("d_"))
            return first + len(OF_STACK) + number + (self.layers * self.D * each if name[:2] == "d_" else 0), 0
        if name == "mark":
            return first + OF_STACK.index("memory"), self.mark
        if name == "x" and self.layer:
            return first + OF_STACK.index("memory"), self.rows[self.layer - 1]
        if name == "d_x" and self.layer:
            return first + OF_STACK.index("between"), self.d_rows[self.layer - 1]
        if name == "rows" and not is_last:
            tensor, place = ("between", self.d_rows) if self.back else ("memory", self.rows)
            return first + OF_STACK.index(tensor), place[self.layer] + d * self.widths[0]
        if name in OF_STACK:
            return first + OF_STACK.index(name), d * self.widths[0] if name == "rows" else 0
        tape = "d_memory" if name in ("d_gates", "d_extra") else "memory"
        return first + OF_STACK.index(tape), self.tapes[mine] + self.in_tape[d][name.removeprefix("d_"), k]


class Direction(NamedTuple):
    """The addresses of a walk from given wx; 0 for a matrix that does not exist."""

    rows: int = 0
    d_projected: int = 0
    wx: int = 0  # these six as in records/walk.py
    gates: int = 0
    extra: int = 0
    raw: int = 0
    d_gates: int = 0
    d_extra: int = 0
    w_hh: int = 0
    b_hh: int = 0
    w_hr: int = 0
    r_panels: int = 0
    p_panels: int = 0
    states: Sequence[int] = ()  # per state
    old: Sequence[int] = ()
    initial: Sequence[int] = ()
    given: Sequence[int] = ()
    last: Sequence[int] = ()
    source: Sequence[int] = ()
    params: Sequence[int] = ()  # per parameter
    d_params: Sequence[int] = ()

    def flat(self, form: Form) -> list[int]:
        single, groups = list(self[:BY_STATE]), self[BY_STATE:]
        counts = [form.S] * (BY_PARAM - BY_STATE) + [form.K] * (len(self) - BY_PARAM)
        return [*single, *chain(*[g or (0,) * n for g, n in zip(groups, counts, strict=True)])]  # type: ignore


BY_STATE, BY_PARAM = Direction._fields.index("states"), Direction._fields.index("params")


@dataclass(frozen=True)
class OfWalk(Table):
    """starts, SIZES if the batch is ragged, then the fields of Direction"""

    form: Form
    ragged: bool

    def find(self, where: Where) -> tuple[int, int]:
        field, S, K = Direction._fields.index(where.name), self.form.S, self.form.K
        if field >= BY_PARAM:
            field = BY_STATE + (BY_PARAM - BY_STATE) * S + (field - BY_PARAM) * K + where.k
        elif field >= BY_STATE:
            field = BY_STATE + (field - BY_STATE) * S + where.k
        return self.first + field, 0
