"""Writes the program of a layer: where its matrices are, and which products the launch computes."""

from collections.abc import Callable, Sequence, Set
from itertools import pairwise
from struct import pack, unpack
from typing import NamedTuple

from ..emit.target import ONES, Target
from ..records import LINE, PIECE, Product, Tile, Walk
from .bindings import JOINT_HEAD, Bindings, Spot, Where
from .choices import Choices, Sized
from .program import ByTorch, Program, Run
from .slabs import Slab

# Of a sum over all rows: columns of the two factors that are packed at once, at most. They stay in the second cache.
MOST_COLUMNS, MOST_ROWS = 256, 224


class Wanted(NamedTuple):
    """Which gradients of a layer are wanted."""

    x: bool
    states: bool
    weights: Sequence[Sequence[bool]]  # per direction, in their order


class Side(NamedTuple):
    """A factor of a sum over all rows, and its place for the result."""

    a: Where
    columns: int
    c: Where
    in_slabs: bool  # its rows are


class Layer(NamedTuple):
    """One layer of a plan. Products that the launch does not compute are left to torch."""

    sized: Sized
    bindings: Bindings
    find: Callable[[Where], Spot]

    def forward(self, choices: Choices, *, stride: int) -> Program:
        """Without `finish`. stride: numbers from one row of the output to the next."""
        s, key, program = self.sized, self.sized.key, LayerProgram(*self, choices.threads, back=False)
        if not (key.walk or s.folded or choices.is_ours):
            program.by_torch += [ByTorch(d, "wx") for d in range(key.D)]
        for at, slab in program.walks.items():
            program.walk(at, slab, stride)
            program.set(at, STATEFUL=key.stateful, X_SKIP=slab.skipped(s.x_in_slabs))
            recurrent = program.recurrent(at, slab)
            program.set(recurrent, IDLE=choices.is_one_step and not key.stateful and not key.pinned)
            program.point(recurrent + Product.BIAS, Where(slab.direction, "b_hh"))
            program.projection(at, slab)
        for at, slab in program.walks.items() if choices.is_ours else ():
            assert s.slab_count == 1, "slabs multiply with W within the walk"
            program.over_all_steps(at, slab)
        return program

    def backward(self, choices: Choices, wanted: Wanted, *, stride: int) -> Program:
        """Without `finish`. stride: numbers from one row of d_ of the output to the next."""
        key, program = self.sized.key, LayerProgram(*self, choices.threads, back=True)
        for at, slab in program.walks.items():
            program.walk(at, slab, stride)
            program.carry(at, slab, wanted.states)
            if key.ours:
                program.joint(at, slab)
            recurrent = program.recurrent(at, slab)
            program.set(recurrent, IDLE=choices.is_one_step and not wanted.states and not key.pinned)
            program.projection(at, slab)
        for at, slab in program.walks.items():
            d = slab.direction
            if wanted.x and choices.is_ours:
                program.over_all_steps(at, slab)
            elif wanted.x:
                program.by_torch.append(ByTorch(d, "d_x"))
            learning = {name for name, is_wanted in zip(key.names, wanted.weights[d], strict=True) if is_wanted}
            compute = program.weight_gradients if choices.over_rows else program.weight_gradients_by_torch
            compute(slab, learning)
            if "w_hr" in learning:
                program.by_torch.append(ByTorch(d, "w_hr"))
        program.add_totals()
        return program


class LayerProgram(Program):
    def run(self, numbers: int, where: Where | None = None) -> Run:
        """A row of so many operands."""
        return Run(self.target.words(numbers), self.target.words(numbers), where)

    def terms(self, at: int, count: int, *, gates: bool = False) -> None:
        """How many terms a product has. gates: those of each gate begin with a new pair, if they come in pairs"""
        groups = self.form.G if gates and self.target.rounded else 1
        self.set(at, TERM_GROUPS=groups, TERMS=count // groups)

    def walk(self, at: int, slab: Slab, stride: int) -> None:
        s, form, d, H, back = self.sized, self.form, slab.direction, self.key.H, self.back
        rounded = self.target.rounded
        self.size(at + Walk.T, "T", s.key.T)
        self.set(
            at,
            B=slab.B,
            H=H,
            P=s.key.P,
            REVERSE=slab.reverse,
            STATE_COUNT=form.S,
            PARAM_COUNT=form.K,
            NUMBER=s.size,
            OPERAND=self.target.operand,
            RUNNING=rounded and not back,
            ROUNDING=self.functions["plait_round"] if rounded else 0,
            WIDTH=self.target.width,
            ROWS_STRIDE=stride * s.size,
            ROWS_SKIP=slab.skipped(s.rows_in_slabs) * stride * s.size,
            POINTWISE=self.functions["plait_backward" if back else "plait_forward"],
            ENDING=self.functions["plait_finish"],
        )
        for word in (Walk.ROWS, Walk.FIRST_ROWS):
            self.point(at + word, Where(d, "rows", slab.outside(stride, s.rows_in_slabs)))
        gates, extra = form.G * self.target.words(H), form.E * self.target.words(H)
        widths = {"GATES": gates, "EXTRA": extra, "RAW": self.target.words(H)}
        of_d = {"D_PROJECTED": self.target.words(s.key.P), "D_GATES": gates, "D_EXTRA": extra}
        widths |= of_d if back else {"WX": s.GH}
        for name, width in widths.items():
            self.point(at + getattr(Walk, name), Where(d, name.lower(), slab.rows(width)))
        places = {"STATES": slab.states, "INITIAL": slab.initial, "GIVEN": slab.own}
        places |= {"OLD": slab.states} if back else {"LAST": slab.own}
        places |= {"SOURCE": slab.rows} if form.sourced else {}
        for k in range(form.S):
            for name, place in places.items():
                self.point(at + getattr(Walk, name) + k, Where(d, name.lower(), place(s.key.widths[k]), k))
        for k in range(form.K):
            self.point(at + Walk.PARAM + k, Where(d, "params", k=k))
            if back:
                self.point(at + Walk.D_PARAM + k, Where(d, "d_params", slab.own(H), k))
        if s.key.ragged:
            self.bind(at + Walk.STARTS, Spot(self.bindings.numbers["starts"]))

    def carry(self, at: int, slab: Slab, is_wanted: bool) -> None:
        """Where d_ of the states is carried from step to step: in those of the initial states, if they are wanted."""
        self.set(at, FINISH=is_wanted)
        most = -(-slab.all // self.sized.slab_count)  # the same in each slab
        for k in range(self.form.S):
            width = self.key.widths[k]
            if is_wanted:
                self.point(at + Walk.CARRY + k, Where(slab.direction, "last", slab.own(width), k))
            else:
                self.reserve(at + Walk.CARRY + k, most * width, slab)

    def recurrent(self, walk: int, slab: Slab) -> int:
        """h times R' forward, with x times W' if it is folded; d_rh times R back."""
        s, form, d, back = self.sized, self.form, slab.direction, self.back
        G, H, P, I, each = form.G, s.key.H, s.key.P, s.I, form.G
        runs, folded, separate = [self.run(P)], s.folded and not back, len(form.apart)
        if back:
            each, unit = 1, self.target.words(H)
            widths = {"gates": G * unit, "extra": form.E * unit}
            places = [(widths[name], count, f"d_{name}", column * unit) for name, column, count in form.runs]
            runs = [Run(row, n * unit, Where(d, name, slab.rows(row) + after)) for row, n, name, after in places]
        elif folded:
            each += separate
            runs.append(self.run(I, Where(d, "x", slab.outside(I, s.x_in_slabs))))
        at = self.product(Where(d, "w_hh"), runs, columns=P if back else H, row=P, each=each)
        self.give_to(walk, Walk.RECURRENT, at)
        self.terms(at, G * H if back else P, gates=back)
        if folded:
            self.set(at, FOLDED=1, SEPARATE=separate, W_ROW=I * s.size, W_TERMS=I)
            if separate:  # an infinite x times 0 is no number
                self.set(at, JOINED=0)
            self.words[at + Product.GATE : at + Product.GATE + each] = [*form.order, *form.apart]
            self.point(at + Product.W, Where(d, "w_ih"))
            self.point(at + Product.W_BIAS, Where(d, "b_ih"))
            self.set(walk, POINTWISE=self.functions["plait_forward_folded"])
        self.panels(at, "f_panels" if folded else "r_panels", d)
        if not (back and form.projected):
            self.set(at, TOUCH=self.functions["plait_touch_back" if back else "plait_touch"])
        return at

    def joint(self, walk: int, slab: Slab) -> None:
        """d_rh times R, of a step in the stretch after this one: those rows are in the tape (engines/plan_map.py)."""
        key, form, d, unit = self.key, self.form, slab.direction, self.target.words(self.key.H)
        gates, extra = form.G * unit, form.E * unit
        starts = {"gates": (JOINT_HEAD, gates), "extra": (JOINT_HEAD + key.B * gates, extra)}
        assert key.pinned, "the panels of all stretches are the same"
        runs = []
        for name, column, count in form.runs:
            start, row = starts[name]
            runs.append(Run(row, count * unit, Where(d, "joint", start + column * unit)))
        at = self.product(Where(d, "w_hh"), runs, columns=key.P, row=key.P)
        self.give_to(walk, Walk.JOINT, at)
        self.terms(at, form.G * key.H, gates=True)
        self.point(at + Product.PANELS, Where(d, "r_panels"))
        self.set(at, READY=1)
        self.point(walk + Walk.COUNTS, Where(d, "joint"))

    def projection(self, walk: int, slab: Slab) -> None:
        key, d = self.key, slab.direction
        if not key.projected:
            return
        columns, depth = (key.H, key.P) if self.back else (key.P, key.H)
        at = self.product(Where(d, "w_hr"), [self.run(depth)], columns=columns, row=key.H)
        self.give_to(walk, Walk.PROJECTION, at)
        self.terms(at, depth)
        self.panels(at, "p_panels", d)
        self.set(walk, PROJECT=self.functions["plait_d_projected" if self.back else "plait_projected"])
        if self.back:
            self.set(at, TOUCH=self.functions["plait_touch_back"])

    def over_all_steps(self, walk: int, slab: Slab) -> None:
        """W x + b of all rows forward, d_x back. Of two directions the second adds its d_x, in the next round."""
        s, d, size = self.sized, slab.direction, self.target.size
        if self.back:
            width, N = self.form.G * self.target.words(self.key.H), s.I
            run = Run(width, width, Where(d, "d_gates", slab.rows(width)))
            c = Where(d, "d_x", slab.outside(s.I, s.x_in_slabs))
        else:
            run, c, N = self.run(s.I, Where(d, "x")), Where(d, "wx"), s.GH
        at = self.product(Where(d, "w_ih"), [run], columns=N, row=s.I)
        self.terms(at, s.GH if self.back else s.I, gates=self.back)
        self.inner.append((at + Product.OWNER, 8 * at))
        self.set(at, C_ROW=N * size, C_SKIP=slab.skipped(s.x_in_slabs) * N * size, STEP=slab.B)
        self.set(at, ROUND=d if self.back else 0, OF_WALK=self.walk_of(slab))
        self.size(at + Product.M, "N", slab.N)
        self.size(at + Product.CHUNK, f"chunk.{s.number}", s.chunk(slab.N, self.threads_each, self.back))
        self.point(at + Product.C, c)
        self.panels(at, "w_panels", d)
        if s.key.bias and not self.back:
            self.point(at + Product.BIAS, Where(d, "b_ih"))
        if s.unites:
            self.set(at, UNITED=1)
            self.inner.append((walk + Walk.WITHIN, 8 * at))

    def weight_gradients_by_torch(self, slab: Slab, learning: Set[str]) -> None:
        d, H, gate = slab.direction, self.key.H, 0
        self.by_torch += [ByTorch(d, name) for name in ("w_ih", "b_ih") if name in learning]
        for k, (_, _, count) in enumerate(self.form.runs):
            first, gate = gate, gate + count
            self.by_torch += [ByTorch(d, name, k, first * H, gate * H) for name in ("w_hh", "b_hh") if name in learning]

    def weight_gradients(self, slab: Slab, learning: Set[str]) -> None:
        """Sums over all rows. Where d_w_ih and d_w_hh have the same d_, one sweep over the rows computes both."""
        s, d, H, P, I, gate = self.sized, slab.direction, self.key.H, self.key.P, self.sized.I, 0
        runs = self.form.runs
        if self.target.rounded and H % 2:  # there is a zero between two gates
            runs = [(name, column + k, 1) for name, column, count in runs for k in range(count)]
        x = Where(d, "x", slab.outside(I, s.x_in_slabs))
        before = Where(d, "before") if s.key.ragged else Where(d, "history", slab.history(P))
        for matrix, column, count in runs:
            of_x = [Side(x, I, Where(d, "d_w_ih", gate * H * I), s.x_in_slabs)] if "w_ih" in learning else []
            of_h = [Side(before, P, Where(d, "d_w_hh", gate * H * P), True)] if "w_hh" in learning else []
            b_ih = [Where(d, "d_b_ih", gate * H)] if "b_ih" in learning else []
            b_hh = [Where(d, "d_b_hh", gate * H)] if "b_hh" in learning else []
            if matrix == "gates":
                self.sweep(slab, matrix, gate, count, of_x + of_h, b_ih + b_hh)
            else:
                self.sweep(slab, "gates", gate, count, of_x, b_ih)
                self.sweep(slab, matrix, column, count, of_h, b_hh)
            gate += count

    def sweep(
        self, slab: Slab, matrix: str, column: int, count: int, sides: Sequence[Side], sums: Sequence[Where]
    ) -> None:
        """C = B' A for each side, and the sums of the rows of B: some columns of H numbers of that matrix. The results
        of slabs are added up in the last round.
        """
        if not (sides or sums):
            return
        key, d, target = self.key, slab.direction, self.target
        columns, unit = count * key.H, self.target.words(key.H)
        width = (self.form.G if matrix == "gates" else self.form.E) * unit
        b = Where(d, f"d_{matrix}", slab.rows(width) + column * unit)
        runs = [Run(self.target.words(side.columns), side.columns, side.a) for side in sides]
        at = self.product(b, runs, columns=columns, row=width)
        self.size(at + Product.DEPTH, "N", slab.N)
        tiles: list[tuple[int, int, int]] = []
        for k, side in enumerate(sides):
            some, pair = -(-side.columns // target.rows), 2 if target.rounded else 1
            numbers = self.target.words(side.columns)
            bounds = pairwise(min(side.columns, numbers * i // some * pair) for i in range(some + 1))
            tiles += [(k, first, end - first) for first, end in bounds]
            self.words[at + Product.SIDE_SKIP + k] = slab.skipped(side.in_slabs) * side.columns * target.size
            self.result(at + Product.C + k, side.c, columns * side.columns, slab)
        for k, total in enumerate(sums):
            self.result(at + Product.SUMS + k, total, columns, slab)
        self.arrays.append((at + Product.TILES, [n for tile in tiles for n in (*tile, *[0] * (Tile.SIZE - 3))]))
        blocks, count = -(-columns // target.width), len(tiles)
        groups, threads = -(-columns // MOST_COLUMNS), self.threads_each
        groups = min(blocks, -(-groups // threads) * threads)
        chunks = min(max(1, count), max(-(-count * target.rows // MOST_ROWS), -(-threads // groups)))
        self.set(
            at,
            OF_WALK=self.walk_of(slab),
            # d_x of the first direction comes first, then that of the second: meanwhile the other has its sums
            ROUND=key.D - 1 - d if self.sized.slab_count > 1 else 0,
            STEP=slab.B,
            OUTER=1,
            READY=1,  # its panels are packed piece by piece
            M=count,
            GROUPS=groups,
            CHUNKS=chunks,
            PER_LINE=2 if target.rounded else 1,
            OPERAND=target.operand,
            PACK_ROWS=self.functions["plait_pack_short" if target.rounded else "plait_pack_columns"],
            PACK_SIDE=self.functions["plait_pack_side"],
            WRITE=self.functions["plait_write"],
            ONE=one(target),
        )
        most, some = -(-blocks // groups), -(-count // chunks)
        panels = most * (PIECE + 1) * target.width
        packed = some * (PIECE * target.rows + target.width)
        self.workspace.reserve_sums(LINE * 8 + panels + packed + (some + 1) * most * target.rows * target.width)


def one(target: Target) -> int:
    """The bits of ones, as a row of them begins."""
    if target.rounded:
        return ONES << 32 | ONES
    found: int = unpack("=q", pack("=d", 1) if target.double else pack("=2f", 1, 1))[0]
    return found
