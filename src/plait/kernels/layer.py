"""What the kernels are told about a layer: where its matrices are, and which products belong to the launch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from ..layout import Layout
from . import job, split
from .program import (
    B_HH,
    B_IH,
    BEFORE,
    BOUNDS,
    D_PROJECTED,
    D_W,
    D_X,
    GIVEN,
    KEPT,
    LAST,
    ROWS,
    W_HH,
    W_HR,
    W_IH,
    Program,
    X,
    place,
)  # fmt: skip
from .schedule import Schedule
from .target import Form

SMALL, THIN, LONG, PANELS = 1 << 21, 24, 384, 1 << 21  # multiplications, columns, terms of a sum, numbers


@dataclass(frozen=True)
class Kept:
    """Where each direction has its matrices of rows in the one tensor that a walk keeps, in numbers."""

    form: Form
    N: int
    B: int
    H: int
    P: int

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """gates, extra, raw, then per state its history"""
        form, N, H = self.form, self.N, self.H
        raw = H if form.projected else 0
        histories = [(self.B + N, self.P if k == 0 else H) for k in range(form.S)]
        return [(N, form.G * H), (N, form.E * H), (N, raw), *histories]

    @cached_property
    def starts(self) -> list[int]:
        """Of each of them, and the end."""
        return [0, *accumulate(rows * columns for rows, columns in self.shapes)]

    @property
    def each(self) -> int:
        """Numbers that a direction has."""
        return self.starts[-1]


GATES, EXTRA, RAW, HISTORY = range(4)  # in Kept.shapes


class Sizes(NamedTuple):
    form: Form
    D: int  # directions
    I: int
    H: int
    P: int
    bias: bool


class Layer:
    """One layer and its batch, for the threads there are."""

    def __init__(self, schedule: Schedule, batch: Layout, count: int, sizes: Sizes) -> None:
        self.schedule, self.batch, self.count = schedule, batch, count
        self.form, self.D, self.I, self.H, self.P, self.bias = sizes

    @cached_property
    def kept(self) -> Kept:
        return Kept(self.form, self.batch.N, self.batch.B, self.H, self.P)

    def forward(self, *, project: bool, stateful: bool) -> Program:
        """project: the launch computes W x, too."""
        form, N = self.form, self.batch.N
        program, fuse = Program(form, self.count, back=False), self.schedule.fuse and self.D == 1
        for d in range(self.D):
            at = self.walk(program, d, given=[stateful] * form.S)
            program.words[at + job.ROWS_STRIDE] = self.D * self.P * form.target.size
            program.words[at + job.IDLE] = self.batch.T == 1 and not stateful
            program.point(at + job.BIAS, place(d, B_HH))
            for k in range(form.S):
                program.point(at + job.FINAL + k, LAST + k, d * self.batch.B * self.width(k))
        for d in range(self.D if project else 0):
            bias = place(d, B_IH) if self.bias else None
            gates, shape = (KEPT, self.start(d, GATES)), (N, form.G * self.H, self.I)
            program.multiply((X, 0), (place(d, W_IH), 0), gates, shape, transposed=True, bias=bias)
            if fuse:
                program.unite(d)
        self.finish(program, fuse)
        return program

    def backward(
        self, *, stride: int, given: Sequence[bool], needs_x: bool, needs_states: bool, needs: Sequence[Sequence[bool]]
    ) -> Program:
        """stride: numbers from row to row of d_rows. given: which of the last states' d_ there are."""
        form, N, B, P, I, GH = self.form, self.batch.N, self.batch.B, self.P, self.I, self.form.G * self.H
        program, fuse = Program(form, self.count, back=True), self.schedule.fuse and self.D == 1
        for d in range(self.D):
            at = self.walk(program, d, given=given)
            program.words[at + job.ROWS_STRIDE] = stride * form.target.size
            program.words[at + job.FINISH] = needs_states
            program.words[at + job.IDLE] = self.batch.T == 1 and not needs_states
            program.point(at + job.D_PROJECTED, place(d, D_PROJECTED))
            for k in range(form.S):
                if needs_states:
                    program.point(at + job.CARRY + k, LAST + k, d * B * self.width(k))
                else:
                    program.reserve(at + job.CARRY + k, B * self.width(k))
        for d in range(self.D):
            wanted, gates = needs[d], (KEPT, self.start(d, GATES))
            whole = not form.projected or not wanted[-1]  # or else torch must do the rest
            if needs_x and ours(self.schedule, N, I, GH):
                program.multiply(gates, (place(d, W_IH), 0), (D_X, 0), (N, I, GH), transposed=False, phase=d)
                if fuse:
                    program.unite(d)
            elif needs_x:
                whole = False
            if wanted[0] and ours(self.schedule, GH, I, N, outer=True):
                sums = (place(d, D_W + 2), 0) if self.bias and wanted[2] else None
                program.outer(gates, (X, 0), (place(d, D_W), 0), (GH, I, N), stride=GH, sums=sums)
            elif wanted[0] or (self.bias and wanted[2]):
                whole = False
            h = KEPT, self.start(d, HISTORY) + (B * P if d == 1 else 0)
            before = h if self.batch.is_dense else (place(d, BEFORE), 0)
            for matrix, row, end, width in self.parts:
                if wanted[1] and ours(self.schedule, end - row, P, N, outer=True):
                    sums = (place(d, D_W + 3), row) if self.bias and wanted[3] else None
                    to, shape = (place(d, D_W + 1), row * P), (end - row, P, N)
                    program.outer((KEPT, self.start(d, matrix)), before, to, shape, stride=width, sums=sums)
                elif wanted[1] or (self.bias and wanted[3]):
                    whole = False
            program.complete = program.complete and whole
        self.finish(program, fuse)
        return program

    @property
    def parts(self) -> list[tuple[int, int, int, int]]:
        """Where d_rh is: a matrix, the first row that it has of d_R and their end, and its columns."""
        shared, GH = self.form.shared * self.H, self.form.G * self.H
        every = [(GATES, 0, shared, GH), (EXTRA, shared, GH, self.form.E * self.H)]
        return [part for part in every if part[1] < part[2]]

    def width(self, state: int) -> int:
        return self.P if state == 0 else self.H

    def start(self, direction: int, matrix: int) -> int:
        return direction * self.kept.each + self.kept.starts[matrix]

    def walk(self, program: Program, d: int, *, given: Sequence[bool]) -> int:
        """What both ways have in common: -> where the walk's words begin."""
        form, N, B, reverse = self.form, self.batch.N, self.batch.B, d == 1
        at = program.walk(self.batch.T, B, self.H, self.P, reverse)
        program.point(at + job.ROWS, ROWS, d * self.P)
        for field, matrix in ((job.GATES, GATES), (job.EXTRA, EXTRA), (job.RAW, RAW)):
            program.point(at + field, KEPT, self.start(d, matrix))
        for field, tensor in ((job.WEIGHT, W_HH), (job.PROJECTION, W_HR)):
            program.point(at + field, place(d, tensor))
        if not self.batch.is_dense:
            program.point(at + job.STARTS, BOUNDS)
        for k in range(form.S):
            width, history = self.width(k), self.start(d, HISTORY + k)
            program.point(at + job.STATES + k, KEPT, history + (0 if reverse else B * width))
            program.point(at + job.INITIAL + k, KEPT, history + (N * width if reverse else 0))
            if given[k]:
                program.point(at + job.GIVEN + k, GIVEN + k, d * B * width)
        return at

    def finish(self, program: Program, fuse: bool) -> None:
        shared = not fuse and split.by_units(self.form, self.batch, self.H, self.D, self.count)
        program.finish(self.batch.shares(-(-self.count // self.D)), shared)
        program.kept = self.kept.each


def ours(schedule: Schedule, M: int, N: int, K: int, *, outer: bool = False) -> bool:
    """Whether the launch does the product (M, K) (K, N) itself: small ones, for one call less, and those that torch.mm
    is slow at: thin ones, and long sums for so many rows that packing pays, while the last cache holds the panels. But
    sums over all steps (outer) torch.mm does as well.
    """
    long = min(M, K) >= LONG and N * K <= PANELS and not outer
    return M * N * K < SMALL or N < THIN or long or not schedule.torch_mm
