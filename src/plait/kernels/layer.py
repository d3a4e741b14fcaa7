"""Writes the program of a layer: where its matrices are, and which products the launch computes."""

from collections.abc import Sequence

from .addresses import Where
from .choices import Choices, Sized
from .parts import Part
from .program import Left, Program, Side
from .records import walk as WALK
from .records.product import APART, BIAS, GATE, W_BIAS, W

NO_COPIES = 0, 0  # of rows, before the walks and after all else


class Layer(Sized):
    """One layer and its batch. Products that the launch does not compute are left to torch."""

    def forward(
        self, choices: Choices, *, project: bool, stateful: bool, stride: int, copies: tuple[int, int] = NO_COPIES
    ) -> Program:
        """project: with W x, which else is given. stride: numbers from one row of the output to the next. copies: how
        many before and after
        """
        form, GH = self.form, self.G * self.H
        program = self.program(choices, back=False)
        packed: dict[int, int] = {}
        if self.marked:
            program.mark(Where(0, "mark"))
        if project and not self.folded and not choices.is_ours:
            program.left += [Left(d, "wx") for d in range(self.D)]
        for at, part in zip(program.walks, self.parts, strict=True):
            d = part.direction
            self.walk(program, at, part, stride=stride)
            program.set(at, STARTS_GIVEN=stateful, X_SKIP=part.skipped(self.x_in_parts))
            for k in range(form.S):
                program.point(at + WALK.FINAL + k, Where(d, "last", part.lo * self.width(k), k))
                program.point(at + WALK.GIVEN + k, Where(d, "given", part.lo * self.width(k), k))
            recurrent = self.recurrent(program, at, part, packed)
            program.set(recurrent, IDLE=choices.is_one_step and not stateful and not self.packs.lasting)
            program.point(recurrent + BIAS, Where(d, "b_hh"))
            self.projection(program, at, part)
        for at, part in zip(program.walks, self.parts, strict=True) if choices.is_ours else ():
            assert self.part_count == 1, "parts multiply with W within the walk"
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
        packed: dict[int, int] = {}  # per direction: the product of the first part, which packs the weights
        of_first: dict[int, int] = {}  # the same for W
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
            recurrent = self.recurrent(program, at, part, packed)
            program.set(recurrent, IDLE=choices.is_one_step and not needs_states and not self.packs.lasting)
            self.projection(program, at, part)
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
                # d_x of the first direction comes first, then that of the second: meanwhile the other has its sums
                turn = self.D - 1 - d if self.part_count > 1 else 0
                program.outer(d_rows, count * H, width, part.N, sides, sums, part, round=turn)

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

    def recurrent(self, program: Program, walk: int, part: Part, packed: dict[int, int]) -> int:
        """h times R' forward, with x times W' if it is folded; d_rh times R back. packed: per direction the product of
        the first part, which packs the weights
        """
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
        place = Where(d, "r_panels") if self.packs.lasting else None
        program.panels(at, place, ready=self.packs.r, same=packed.get(d))
        packed.setdefault(d, at)
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
