"""Writes the program of a layer: where its matrices are, and which products the launch computes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ..layout import Layout
from . import split
from .addresses import Table, Where
from .costs import Costs
from .parts import Part
from .program import Left, Program, Side, rows_at_once
from .records import MOST_GATES
from .records import walk as WALK
from .records.product import APART, BIAS, GATE, W_BIAS, W
from .schedule import Schedule
from .target import Form

# Which products the launch computes, and not torch.mm: see `ours`
CALL = 3e-5  # seconds to leave the launch, call torch.mm and go on
LONG = 384  # terms of a sum: as many or more are long
OF_RATE = 0.85, 0.95  # what a whole product reaches of the tile's rate: others; long sums if the weights are in a cache
THIN = 24  # columns: fewer are thin
FEW = 384  # rows: fewer are few
PANELS = 1 << 21  # numbers of the weights that fit into the last cache
WIDE = 1000  # of a sum over rows: columns of x and h, and rows: those with as many or more are torch.mm's
# When W x is part of the walk: see `folds`
FOLD_ROWS, FOLD_BYTES = 4, 1 << 20  # sequences, at least; bytes of weights, at most,
FOLD_INPUTS = 4  # or times as many inputs as units, at most
PART_ROWS = 1  # parts: numbers that threads would share, at least, for each number of a weight
WORTH_A_TEAM = 4  # times as long as it takes to call a team: work that takes less is done by one thread alone
NO_COPIES = 0, 0  # of rows, before the walks and after all else


class Packs(NamedTuple):
    """Whether the panels of a direction have memory that outlives the call, and which of them are packed already."""

    lasting: bool = False
    r: bool = False  # R, and the projection with it
    w: bool = False


class Choices(NamedTuple):
    """What is decided by the costs, the number of rows and that of steps."""

    threads: int
    shared: bool  # they share the units of every step
    is_ours: bool  # the launch computes W x, or on the way back d_x
    over_rows: bool  # and the gradients of the weights
    is_one_step: bool


@dataclass
class Layer:
    """One layer and its batch. Products that the launch does not compute are left to torch."""

    schedule: Schedule
    costs: Costs
    layout: Layout
    table: Table
    form: Form
    count: int  # threads
    I: int
    H: int
    P: int
    bias: bool
    reverse: Sequence[bool]  # per direction
    packs: Packs
    folded: bool = False  # W x is part of the walk
    bounds: Sequence[int] = ()  # of the parts of the batch (parts.py); none: it is one part
    x_in_parts: bool = False  # the rows of x are
    rows_in_parts: bool = False  # those of the output
    lenient: float = 1.0  # the launch computes d_x if it takes so many times as long as torch.mm, or less

    def __post_init__(self) -> None:
        self.D, self.G, self.size = len(self.reverse), self.form.G, self.form.target.size
        bounds, T, B = self.bounds or (0, self.layout.B), self.layout.T, self.layout.B
        self.part_count = len(bounds) - 1
        self.parts = [
            Part(s, d, reverse, T, T * (hi - lo) if self.bounds else self.layout.N, lo, hi, B)
            for s, (lo, hi) in enumerate(pairwise(bounds))
            for d, reverse in enumerate(self.reverse)
        ]

    def separates(self, parts: int) -> bool:
        """Whether so many parts pay. Then threads share no rows, but each has its own gradients of the weights, which
        are added up. The launch must compute all products, and W x within the walk.
        """
        there, back, count = self.choices(False, True), self.choices(True, False), self.count
        weights, rows = self.G * self.H, self.I + self.P
        return (
            self.folded
            and not (self.unites or self.form.projected or there.shared or back.shared)
            and there.threads == back.threads == count > 1
            and back.is_ours
            and back.over_rows
            and self.layout.N * (rows + weights // parts) >= PART_ROWS * weights * rows
        )

    def choices(self, back: bool, project: bool) -> Choices:
        """project: forward, W x is wanted."""
        N, GH, I = self.layout.N, self.G * self.H, self.I
        if back:
            count = self.team(I)
            is_ours = self.ours(N, I, GH, count, self.lenient)
        else:
            is_ours = project and not self.folded and self.ours(N, GH, I, self.count)
            count = self.team(I if project and (is_ours or self.folded) else 0)
        shared = not self.unites and split.by_units(self.costs, self.form, self.layout, self.H, self.D, count)
        over_rows = back and ours_over_rows(self.schedule, I + self.P, N)
        return Choices(count, shared, is_ours, over_rows, self.layout.T == 1)

    def slices(self, count: int) -> list[int]:
        """The bounds of the slices of the batch, for so many threads."""
        parts = 1 if self.bounds else -(-count // self.D)  # a slice is a part, which is a walk
        return self.layout.shares(max(1, min(self.layout.B, parts)))

    def chunk(self, choices: Choices, back: bool) -> int:
        """How many rows of x, or on the way back of the gates, are multiplied at a time."""
        columns = self.G * self.H if back else self.I
        return rows_at_once(self.form.target.rows, choices.threads, self.layout.N, columns * self.size)

    def forward(
        self, choices: Choices, *, project: bool, stateful: bool, stride: int, copies: tuple[int, int] = NO_COPIES
    ) -> Program:
        """project: with W x, which else is given. stride: numbers from one row of the output to the next. copies: how
        many before and after
        """
        form, GH = self.form, self.G * self.H
        program = self.program(choices, back=False)
        if project and not self.folded and not choices.is_ours:
            program.left += [Left(d, "wx") for d in range(self.D)]
        for at, part in zip(program.walks, self.parts, strict=True):
            d = part.direction
            self.walk(program, at, part, stride=stride)
            program.set(at, STARTS_GIVEN=stateful, X_SKIP=part.skipped(self.x_in_parts))
            for k in range(form.S):
                program.point(at + WALK.FINAL + k, Where(d, "last", part.lo * self.width(k), k))
                program.point(at + WALK.GIVEN + k, Where(d, "given", part.lo * self.width(k), k))
            recurrent = self.recurrent(program, at, part)
            program.set(recurrent, IDLE=choices.is_one_step and not stateful and not self.packs.lasting)
            program.point(recurrent + BIAS, Where(d, "b_hh"))
            self.projection(program, at, part)
        for at, part in zip(program.walks, self.parts if choices.is_ours else (), strict=False):
            d, shape = part.direction, (part.N, GH, self.I)
            of_w = program.multiply(
                Where(d, "x"), Where(d, "w_ih"), Where(d, "gates"), shape, transposed=True, round=0, part=part
            )
            program.panels(of_w, Where(d, "w_panels") if self.packs.lasting else None, ready=self.packs.w)
            if self.bias:
                program.point(of_w + BIAS, Where(d, "b_ih"))
            if self.unites:
                program.unite(at)
        self.finish(program, choices, copies)
        return program

    def backward(
        self,
        choices: Choices,
        *,
        stride: int,
        needs_x: bool,
        needs_states: bool,
        needs: Sequence[Sequence[bool]],
        copies: tuple[int, int] = NO_COPIES,
    ) -> Program:
        """stride: numbers from one row of d_ of the output to the next. needs: per direction, for each weight."""
        form, I, GH, H = self.form, self.I, self.G * self.H, self.H
        program = self.program(choices, back=True)
        widths = {"D_PROJECTED": self.P, "D_GATES": GH, "D_EXTRA": form.E * H}
        for at, part in zip(program.walks, self.parts, strict=True):
            d = part.direction
            self.walk(program, at, part, stride=stride)
            program.set(at, FINISH=needs_states)
            for name, width in widths.items():
                program.point(at + getattr(WALK, name), Where(d, name.lower(), part.rows(width)))
            for k in range(form.S):
                width = self.width(k)
                program.point(at + WALK.OLD + k, Where(d, "old", part.states(width), k))
                program.point(at + WALK.GIVEN + k, Where(d, "given", part.lo * width, k))
                if needs_states:
                    program.point(at + WALK.CARRY + k, Where(d, "last", part.lo * width, k))
                else:
                    most = -(-part.all // self.part_count)  # the same in each part
                    program.reserve(at + WALK.CARRY + k, most * width, part)
            for k in range(form.K):
                program.point(at + WALK.D_PARAM + k, Where(d, "d_params", part.lo * H, k))
            recurrent = self.recurrent(program, at, part)
            program.set(recurrent, IDLE=choices.is_one_step and not needs_states and not self.packs.lasting)
            self.projection(program, at, part)
        of_first: dict[int, int] = {}  # per direction: the product of the first part, which packs the weights
        for at, part in zip(program.walks, self.parts, strict=True):
            d = part.direction
            wanted, gates, left = needs[d], Where(d, "d_gates", part.rows(GH)), program.left
            if needs_x and choices.is_ours:
                d_x, shape = Where(d, "d_x", part.outside(I, self.x_in_parts)), (part.N, I, GH)
                of_w = program.multiply(
                    gates, Where(d, "w_ih"), d_x, shape, transposed=False, round=d, part=part, in_parts=self.x_in_parts
                )
                place = Where(d, "w_panels") if self.packs.lasting else None
                program.panels(of_w, place, ready=self.packs.w, same=of_first.get(d))
                of_first.setdefault(d, of_w)
                if self.unites:
                    program.unite(at)
            elif needs_x:
                left.append(Left(d, "d_x"))
            self.weight_gradients(program, part, wanted, choices.over_rows)
            if form.projected and wanted[4 if self.bias else 2]:
                left.append(Left(d, "w_hr"))
        self.finish(program, choices, copies)
        return program

    def finish(self, program: Program, choices: Choices, copies: tuple[int, int]) -> None:
        if any(copies):
            program.copies(*copies)
        program.finish(self.slices(choices.threads), choices.shared)

    def weight_gradients(self, program: Program, part: Part, wanted: Sequence[bool], is_ours: bool) -> None:
        """Sums over all rows. Where d_w_ih and d_w_hh have the same d_, one sweep over the rows computes both."""
        form, H, I, P, d = self.form, self.H, self.I, self.P, part.direction
        of_bias = wanted[2:4] if self.bias else (False, False)
        x = Where(d, "x", part.outside(I, self.x_in_parts))
        before = Where(d, "history", part.history(P)) if self.layout.is_dense else Where(d, "before")
        if not is_ours:
            left = [("w_ih", wanted[0]), ("b_ih", of_bias[0])]
            program.left += [Left(d, name) for name, is_wanted in left if is_wanted]
            gate = 0
            for k, (_, _, count) in enumerate(form.runs):
                left = [("w_hh", wanted[1]), ("b_hh", of_bias[1])]
                program.left += [
                    Left(d, name, k, gate * H, (gate + count) * H) for name, is_wanted in left if is_wanted
                ]
                gate += count
            return
        for matrix, column, gate, count in form.sweeps:
            sides, sums = [], []
            if matrix == "gates":
                sides += [Side(x, I, Where(d, "d_w_ih", gate * H * I), self.x_in_parts)] if wanted[0] else []
                sums += [Where(d, "d_b_ih", gate * H)] if of_bias[0] else []
            if matrix == "extra" or gate not in form.apart:
                sides += [Side(before, P, Where(d, "d_w_hh", gate * H * P), True)] if wanted[1] else []
                sums += [Where(d, "d_b_hh", gate * H)] if of_bias[1] else []
            width = (self.G if matrix == "gates" else form.E) * H
            if sides or sums:
                d_rows = Where(d, f"d_{matrix}", part.rows(width) + column * H)
                program.outer(d_rows, count * H, width, part.N, sides, sums, part)

    def ours(self, M: int, N: int, K: int, count: int, lenient: float = 1.0) -> bool:
        """Whether the launch computes the product (M, K) (K, N) of a whole sequence itself, and not torch.mm.

        For the launch it is no call of its own. But it wastes the lanes that N does not fill, and it is slower if it
        reads many panels from memory. If they are packed already, it computes all with few rows.
        """
        if not self.schedule.torch_mm or (self.packs.lasting and M < FEW):
            return True
        target, costs, work = self.form.target, self.costs, M * N * K * self.size / 4 / count
        rest = N % target.width
        last = (
            0 if rest == 0 else target.lanes if rest <= target.lanes else target.width
        )  # the last block may be narrow
        share = OF_RATE[K >= LONG and N * K <= PANELS] * N / (N - rest + last)
        return work / (costs.rate * share) < lenient * (CALL + work / (costs.thin if N < THIN else costs.mm))

    def team(self, more: int) -> int:
        """How many threads: one for little work. more: columns of W that the launch multiplies with, besides R"""
        work = self.layout.N * self.D * self.G * self.H * (self.P + more)
        seconds = work * self.size / 4 / self.costs.rate
        is_worth_it = seconds >= WORTH_A_TEAM * self.costs.team and self.schedule.parallel
        return self.count if is_worth_it else 1

    @property
    def unites(self) -> bool:
        return self.schedule.fuse and self.D == 1

    def width(self, state: int) -> int:
        return self.P if state == 0 else self.H

    def program(self, choices: Choices, *, back: bool) -> Program:
        walks, parts = len(self.parts), self.part_count
        return Program(self.form, choices.threads, walks, self.table, back=back, parts=parts)

    def walk(self, program: Program, at: int, part: Part, *, stride: int) -> None:
        """The words that forward and backward have in common."""
        form, back, d, H = self.form, program.back, part.direction, self.H
        program.size(at + WALK.T, "T", self.layout.T)
        program.set(
            at,
            B=part.B,
            H=self.H,
            P=self.P,
            REVERSE=part.reverse,
            STATE_COUNT=form.S,
            PARAM_COUNT=form.K,
            SIZE=self.size,
            WIDTH=form.target.width,
            ROWS_STRIDE=stride * self.size,
            ROWS_SKIP=part.skipped(self.rows_in_parts) * stride * self.size,
            POINTWISE=program.leaves["plait_backward" if back else "plait_forward"],
            ENDING=program.leaves["plait_finish"],
        )
        rows = Where(d, "rows", part.outside(stride, self.rows_in_parts))
        program.point(at + WALK.ROWS, rows)
        program.point(at + WALK.FIRST_ROWS, rows)
        for name, width in (("WX", form.G * H), ("GATES", form.G * H), ("EXTRA", form.E * H), ("RAW", H)):
            if not (back and name == "WX"):
                program.point(at + getattr(WALK, name), Where(d, name.lower(), part.rows(width)))
        if not self.layout.is_dense:
            program.point_to_starts(at + WALK.STARTS)
        for k in range(form.S):
            width = self.width(k)
            program.point(at + WALK.STATES + k, Where(d, "states", part.states(width), k))
            program.point(at + WALK.INITIAL + k, Where(d, "initial", part.initial(width), k))
            if form.sourced:
                program.point(at + WALK.SOURCE + k, Where(d, "source", part.rows(width), k))
        for k in range(form.K):
            program.point(at + WALK.PARAM + k, Where(d, "params", k=k))

    def recurrent(self, program: Program, walk: int, part: Part) -> int:
        """h times R' forward, with x times W' if it is folded; d_rh times R back."""
        G, H, P, form, d = self.G, self.H, self.P, self.form, part.direction
        if program.back:
            at = self.of_walk(program, walk, d, WALK.RECURRENT, "w_hh", each=1, columns=P, depth=G * H, row=P)
            for matrix, column, count in form.runs:
                width = (G if matrix == "gates" else form.E) * H
                program.run_of(at, width, count * H, Where(d, f"d_{matrix}", part.rows(width) + column * H))
        elif self.folded:
            separate, I = len(form.apart), self.I
            at = self.of_walk(
                program, walk, d, WALK.RECURRENT, "w_hh", each=G + separate, columns=H, depth=P + I, row=P
            )
            program.run_of(at, P, P)
            program.run_of(at, I, I, Where(d, "x", part.outside(I, self.x_in_parts)))
            program.set(at, FOLDED=1, SEPARATE=separate, W_ROW=I * self.size)
            if separate:  # an infinite x times 0 is no number
                program.set(at, JOINED=0)
            program.words[at + GATE : at + GATE + G + separate] = [*form.order, *form.apart]
            program.point(at + W, Where(d, "w_ih"))
            program.point(at + W_BIAS, Where(d, "b_ih"))
            program.set(walk, POINTWISE=program.leaves["plait_forward_folded"])
        else:
            at = self.of_walk(program, walk, d, WALK.RECURRENT, "w_hh", each=G, columns=H, depth=P, row=P)
            program.run_of(at, P, P)
        first = program.products[d] if part.number else None  # the first products are those of the walks
        program.panels(at, Where(d, "r_panels") if self.packs.lasting else None, ready=self.packs.r, same=first)
        if not (program.back and form.projected):
            program.set(at, TOUCH=program.leaves["plait_touch_back" if program.back else "plait_touch"])
        return at

    def projection(self, program: Program, walk: int, part: Part) -> None:
        if not self.form.projected:
            return
        d = part.direction
        columns, depth = (self.H, self.P) if program.back else (self.P, self.H)
        at = self.of_walk(program, walk, d, WALK.PROJECTION, "w_hr", each=1, columns=columns, depth=depth, row=self.H)
        program.run_of(at, depth, depth)
        program.panels(at, Where(d, "p_panels") if self.packs.lasting else None, ready=self.packs.r)
        project = program.leaves["plait_d_projected" if program.back else "plait_projected"]
        program.set(walk, PROJECT=project)
        if program.back:
            program.set(at, TOUCH=program.leaves["plait_touch_back"])

    def of_walk(
        self,
        program: Program,
        owner: int,
        d: int,
        word: int,
        factor: str,
        *,
        each: int,
        columns: int,
        depth: int,
        row: int,
    ) -> int:
        at = program.product(
            Where(d, factor), each=each, columns=columns, depth=depth, row=row, transposed=not program.back, owner=owner
        )
        program.inner.append((owner + word, 8 * at))
        target = self.form.target
        left = columns % target.width
        program.set(
            at, JOINED=left if left <= target.most_joined(each) else 0, ADD_BIAS=program.leaves["plait_add_bias"]
        )
        program.words[at + GATE : at + GATE + each] = range(each)
        if target.apart:
            blocks = -(-columns // target.width)
            program.reserve(at + APART, self.layout.B * target.rows * blocks * each * target.width)
        return at


def folds(schedule: Schedule, form: Form, B: int, I: int, H: int, P: int) -> bool:
    """Whether W x is part of the sums of a step: then it never goes through memory. But every step reads W again, for a
    handful of rows or from a slow cache that takes longer. It depends neither on the threads nor on the number of
    steps, so that these do not change a result.
    """
    panels, target = form.G + len(form.apart), form.target
    is_small = panels * H * (I + P) * target.size <= FOLD_BYTES or I <= FOLD_INPUTS * P
    return schedule.fold and B >= FOLD_ROWS and is_small and panels <= MOST_GATES and not target.apart


def ours_over_rows(schedule: Schedule, N: int, K: int) -> bool:
    """The same for a sum over K rows, with N columns of x and h. torch.mm is faster where these are wide and long."""
    return N < WIDE or K < WIDE or not schedule.torch_mm
