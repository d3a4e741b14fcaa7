"""Writes the program of a layer: where its matrices are, and which products the launch computes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..records import Product, Walk
from .bindings import Bindings, Spot, Where
from .choices import Choices, Sized
from .parts import Part
from .program import ByTorch, Program, Side


class Wanted(NamedTuple):
    """Which gradients of a layer are wanted."""

    x: bool
    states: bool
    weights: Sequence[Sequence[bool]]  # per direction, in their order


class Layer(NamedTuple):
    """One layer of a plan. Products that the launch does not compute are left to torch."""

    sized: Sized
    bindings: Bindings
    find: Callable[[Where], Spot]

    def forward(self, choices: Choices, *, stride: int) -> Program:
        """Without `finish`. stride: numbers from one row of the output to the next."""
        s, key, form = self.sized, self.sized.key, self.sized.form
        program = self.program(choices, back=False)
        packed: dict[int, int] = {}
        if not (key.walk or s.folded or choices.is_ours):
            program.by_torch += [ByTorch(d, "wx") for d in range(key.D)]
        for at, part in zip(program.walks, s.parts, strict=True):
            d = part.direction
            self.walk(program, at, part, stride=stride)
            program.set(at, STATEFUL=key.stateful, X_SKIP=part.skipped(s.x_in_parts))
            for k in range(form.S):
                program.point(at + Walk.FINAL + k, Where(d, "last", part.lo * s.width(k), k))
                program.point(at + Walk.GIVEN + k, Where(d, "given", part.lo * s.width(k), k))
            recurrent = self.recurrent(program, at, part, packed)
            program.set(recurrent, IDLE=choices.is_one_step and not key.stateful and not key.pinned)
            program.point(recurrent + Product.BIAS, Where(d, "b_hh"))
            self.projection(program, at, part)
        for at, part in zip(program.walks, s.parts, strict=True) if choices.is_ours else ():
            assert s.part_count == 1, "parts multiply with W within the walk"
            d, shape = part.direction, (part.N, s.GH, s.I)
            of_w = program.multiply(
                Where(d, "x"), Where(d, "w_ih"), Where(d, "gates"), shape, transposed=True, round=0, part=part
            )
            program.panels(of_w, "w_panels" if key.pinned else None, direction=d)
            if key.bias:
                program.point(of_w + Product.BIAS, Where(d, "b_ih"))
            if s.unites:
                program.unite(at)
        return program

    def backward(self, choices: Choices, wanted: Wanted, *, stride: int) -> Program:
        """Without `finish`. stride: numbers from one row of d_ of the output to the next."""
        s, key, form = self.sized, self.sized.key, self.sized.form
        program = self.program(choices, back=True)
        packed: dict[int, int] = {}  # per direction: the product of the first part, which packs the weights
        of_first: dict[int, int] = {}  # the same for W
        for at, part in zip(program.walks, s.parts, strict=True):
            self.walk_back(program, at, part, wanted, stride=stride)
            recurrent = self.recurrent(program, at, part, packed)
            program.set(recurrent, IDLE=choices.is_one_step and not wanted.states and not key.pinned)
            self.projection(program, at, part)
        for at, part in zip(program.walks, s.parts, strict=True):
            d = part.direction
            gates = Where(d, "d_gates", part.rows(s.GH))
            if wanted.x and choices.is_ours:
                d_x, shape = Where(d, "d_x", part.outside(s.I, s.x_in_parts)), (part.N, s.I, s.GH)
                of_w = program.multiply(
                    gates, Where(d, "w_ih"), d_x, shape, transposed=False, round=d, part=part, in_parts=s.x_in_parts
                )
                program.panels(of_w, "w_panels" if key.pinned else None, direction=d, same=of_first.get(d))
                of_first.setdefault(d, of_w)
                if s.unites:
                    program.unite(at)
            elif wanted.x:
                program.by_torch.append(ByTorch(d, "d_x"))
            self.weight_gradients(program, part, wanted.weights[d], choices.over_rows)
            if form.projected and wanted.weights[d][4 if key.bias else 2]:
                program.by_torch.append(ByTorch(d, "w_hr"))
        return program

    def walk_back(self, program: Program, at: int, part: Part, wanted: Wanted, *, stride: int) -> None:
        s, form, d, H = self.sized, self.sized.form, part.direction, self.sized.key.H
        self.walk(program, at, part, stride=stride)
        program.set(at, FINISH=wanted.states)
        for name, width in {"D_PROJECTED": s.key.P, "D_GATES": s.GH, "D_EXTRA": form.E * H}.items():
            program.point(at + getattr(Walk, name), Where(d, name.lower(), part.rows(width)))
        for k in range(form.S):
            width = s.width(k)
            program.point(at + Walk.OLD + k, Where(d, "old", part.states(width), k))
            program.point(at + Walk.GIVEN + k, Where(d, "given", part.lo * width, k))
            if wanted.states:
                program.point(at + Walk.CARRY + k, Where(d, "last", part.lo * width, k))
            else:
                most = -(-part.all // s.part_count)  # the same in each part
                program.reserve(at + Walk.CARRY + k, most * width, part)
        for k in range(form.K):
            program.point(at + Walk.D_PARAM + k, Where(d, "d_params", part.lo * H, k))

    def weight_gradients(self, program: Program, part: Part, wanted: Sequence[bool], is_ours: bool) -> None:
        """Sums over all rows. Where d_w_ih and d_w_hh have the same d_, one sweep over the rows computes both."""
        s, key, form, H, I, d = (
            self.sized,
            self.sized.key,
            self.sized.form,
            self.sized.key.H,
            self.sized.I,
            part.direction,
        )
        of_bias, P = wanted[2:4] if key.bias else (False, False), key.P
        x = Where(d, "x", part.outside(I, s.x_in_parts))
        before = Where(d, "before") if key.ragged else Where(d, "history", part.history(P))
        if not is_ours:
            left = [("w_ih", wanted[0]), ("b_ih", of_bias[0])]
            program.by_torch += [ByTorch(d, name) for name, is_wanted in left if is_wanted]
            gate = 0
            for k, (_, _, count) in enumerate(form.runs):
                left = [("w_hh", wanted[1]), ("b_hh", of_bias[1])]
                program.by_torch += [
                    ByTorch(d, name, k, gate * H, (gate + count) * H) for name, is_wanted in left if is_wanted
                ]
                gate += count
            return
        for matrix, column, gate, count in form.sweeps:
            sides, sums = [], []
            if matrix == "gates":
                sides += [Side(x, I, Where(d, "d_w_ih", gate * H * I), s.x_in_parts)] if wanted[0] else []
                sums += [Where(d, "d_b_ih", gate * H)] if of_bias[0] else []
            if matrix == "extra" or gate not in form.apart:
                sides += [Side(before, P, Where(d, "d_w_hh", gate * H * P), True)] if wanted[1] else []
                sums += [Where(d, "d_b_hh", gate * H)] if of_bias[1] else []
            width = (form.G if matrix == "gates" else form.E) * H
            if sides or sums:
                d_rows = Where(d, f"d_{matrix}", part.rows(width) + column * H)
                # d_x of the first direction comes first, then that of the second: meanwhile the other has its sums
                turn = key.D - 1 - d if s.part_count > 1 else 0
                program.outer(d_rows, count * H, width, part.N, sides, sums, part, round=turn)

    def program(self, choices: Choices, *, back: bool) -> Program:
        s = self.sized
        return Program(
            s.form,
            self.bindings,
            self.find,
            layer=s.number,
            count=choices.threads,
            walks=len(s.parts),
            parts=s.part_count,
            back=back,
        )

    def walk(self, program: Program, at: int, part: Part, *, stride: int) -> None:
        """The words that forward and backward have in common."""
        s, form, back, d, H = self.sized, self.sized.form, program.back, part.direction, self.sized.key.H
        program.size(at + Walk.T, "T", s.key.T)
        program.set(
            at,
            B=part.B,
            H=H,
            P=s.key.P,
            REVERSE=part.reverse,
            STATE_COUNT=form.S,
            PARAM_COUNT=form.K,
            NUMBER=s.size,
            WIDTH=form.target.width,
            ROWS_STRIDE=stride * s.size,
            ROWS_SKIP=part.skipped(s.rows_in_parts) * stride * s.size,
            POINTWISE=program.functions["plait_backward" if back else "plait_forward"],
            ENDING=program.functions["plait_finish"],
        )
        rows = Where(d, "rows", part.outside(stride, s.rows_in_parts))
        program.point(at + Walk.ROWS, rows)
        program.point(at + Walk.FIRST_ROWS, rows)
        for name, width in (("WX", form.G * H), ("GATES", form.G * H), ("EXTRA", form.E * H), ("RAW", H)):
            if not (back and name == "WX"):
                program.point(at + getattr(Walk, name), Where(d, name.lower(), part.rows(width)))
        if s.key.ragged:
            program.bind(at + Walk.STARTS, Spot(self.bindings.numbers["starts"]))
        for k in range(form.S):
            width = s.width(k)
            program.point(at + Walk.STATES + k, Where(d, "states", part.states(width), k))
            program.point(at + Walk.INITIAL + k, Where(d, "initial", part.initial(width), k))
            if form.sourced:
                program.point(at + Walk.SOURCE + k, Where(d, "source", part.rows(width), k))
        for k in range(form.K):
            program.point(at + Walk.PARAM + k, Where(d, "params", k=k))

    def recurrent(self, program: Program, walk: int, part: Part, packed: dict[int, int]) -> int:
        """h times R' forward, with x times W' if it is folded; d_rh times R back. packed: per direction the product of
        the first part, which packs the weights
        """
        s, form, d = self.sized, self.sized.form, part.direction
        G, H, P = form.G, s.key.H, s.key.P
        if program.back:
            at = self.of_walk(program, walk, d, Walk.RECURRENT, "w_hh", each=1, columns=P, depth=G * H, row=P)
            for matrix, column, count in form.runs:
                width = (G if matrix == "gates" else form.E) * H
                program.run_of(at, width, count * H, Where(d, f"d_{matrix}", part.rows(width) + column * H))
        elif s.folded:
            separate, I = len(form.apart), s.I
            at = self.of_walk(
                program, walk, d, Walk.RECURRENT, "w_hh", each=G + separate, columns=H, depth=P + I, row=P
            )
            program.run_of(at, P, P)
            program.run_of(at, I, I, Where(d, "x", part.outside(I, s.x_in_parts)))
            program.set(at, FOLDED=1, SEPARATE=separate, W_ROW=I * s.size)
            if separate:  # an infinite x times 0 is no number
                program.set(at, JOINED=0)
            program.words[at + Product.GATE : at + Product.GATE + G + separate] = [*form.order, *form.apart]
            program.point(at + Product.W, Where(d, "w_ih"))
            program.point(at + Product.W_BIAS, Where(d, "b_ih"))
            program.set(walk, POINTWISE=program.functions["plait_forward_folded"])
        else:
            at = self.of_walk(program, walk, d, Walk.RECURRENT, "w_hh", each=G, columns=H, depth=P, row=P)
            program.run_of(at, P, P)
        pinned = "f_panels" if s.folded and not program.back else "r_panels"
        program.panels(at, pinned if s.key.pinned else None, direction=d, same=packed.get(d))
        packed.setdefault(d, at)
        if not (program.back and form.projected):
            program.set(at, TOUCH=program.functions["plait_touch_back" if program.back else "plait_touch"])
        return at

    def projection(self, program: Program, walk: int, part: Part) -> None:
        key, d = self.sized.key, part.direction
        if not key.projected:
            return
        columns, depth = (key.H, key.P) if program.back else (key.P, key.H)
        at = self.of_walk(program, walk, d, Walk.PROJECTION, "w_hr", each=1, columns=columns, depth=depth, row=key.H)
        program.run_of(at, depth, depth)
        program.panels(at, "p_panels" if key.pinned else None, direction=d)
        project = program.functions["plait_d_projected" if program.back else "plait_projected"]
        program.set(walk, PROJECT=project)
        if program.back:
            program.set(at, TOUCH=program.functions["plait_touch_back"])

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
        target = self.sized.form.target
        left = columns % target.width
        program.set(
            at, JOINED=left if left <= target.most_joined(each) else 0, ADD_BIAS=program.functions["plait_add_bias"]
        )
        program.words[at + Product.GATE : at + Product.GATE + each] = range(each)
        if target.apart:
            blocks = -(-columns // target.width)
            program.reserve(at + Product.APART, self.sized.key.B * target.rows * blocks * each * target.width)
        return at
