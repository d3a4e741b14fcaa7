"""Multiple shooting: pieces of a sequence start from guesses, run side by side, and are repaired where they do not fit.

A network forgets: started from a wrong state, it comes back to its true path within its memory. So a piece that starts
a little earlier than it has to, from zeros or from the state of the last visit, begins right. Where a piece ends and
the next one has begun, the two must agree; if they do not, the next one runs again from the right state, until it meets
its own earlier path. So the result is exact within the tolerance, or the sequence is walked in one go.

The way back is the same for gradients: what comes from later pieces is first carried back through some steps of them.
It is linear, so what is missing is added.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..engines import Gradients, Layout, Needs, Prepared, Tape
from .base import Solve, check_finite, check_number, check_tolerance, say
from .grid import Grid, Joints, Line, States, norms, relative, taken
from .past import Visit
from .pieces import OF_GRADIENTS, OF_STATES, InPieces, Walked, about

FIRST = {"cold": 192, "warm": 64, "back": 192}  # steps of a warm-up: from zeros, from a stored state, on the way back
STRIDE, LEAST, CALM, HOT = (
    32,
    32,
    4,
    4,
)  # a warm-up changes by so many steps; its least; gaps far below the bound, in a row
SEGMENT = 64  # steps of a repair, after which it is seen whether it has met the old path
MOST = 1 << 20  # steps of a warm-up
BUDGET, STRIKES = 0.5, 3  # steps of repairs for each step of the sequence that are too much; how often
NARROW, LANES_OF_NARROW, LANES_OF_WIDE = 128, 4, 2  # pieces for each thread: the kernel's speed hardly grows with more


@dataclass(eq=False, repr=False)
class Shooting(InPieces):
    """Cuts time into pieces that run side by side, for a few long sequences. Exact within a tolerance.

        layer = plait.GRU(16, 64, solver=plait.Shooting())
        y, h = layer(x, ids=numbers)  # ids: which sequences these are, so that the next visit can start from this one

    chunks: how many pieces; auto: as many as keep this machine's cores busy
    tolerance: of the gradient, relative
    warmup: steps before each piece; auto: adapted to what the network needs
    fallback: walk in one go if the network does not forget, or if pieces do not pay; False is for study
    check_every: every so many calls, compare with an exact walk, and say the error

    Without gradients (torch.no_grad) it is always one exact walk.
    """

    chunks: int | str = "auto"
    tolerance: float = 0.01
    warmup: int | str = "auto"
    fallback: bool = True
    check_every: int = 0

    name = "shooting"

    def __post_init__(self) -> None:
        check_tolerance(self.name, self.tolerance)
        if self.chunks != "auto":
            check_number(self.name, "chunks", self.chunks, 1, 10**6)
        if self.warmup != "auto":
            check_number(self.name, "warmup", self.warmup, 0, 10**9)
        check_number(self.name, "check_every", self.check_every, 0, 10**9)

    # --- there
    def cut(self, p: Prepared, layout: Layout, visit: Visit) -> int | None:
        if visit.left is not None:  # this call runs for the second time
            return int(visit.left.grid.c)
        numbers = visit.past.numbers
        for name, steps in FIRST.items():
            numbers.setdefault(name, steps)
        if self.warmup != "auto":
            numbers |= dict.fromkeys(FIRST, int(self.warmup))
        if self.is_resting(visit):
            return None
        share = 1.0 if visit.link is None else layout.T / visit.link.steps
        least = 2 if visit.link is None else 1  # of several ranks, each may have one piece
        if self.chunks == "auto":
            count = self.count(p, layout, visit, least)
        else:
            count = min(layout.T, math.ceil(int(self.chunks) * share))
        return -(-layout.T // count) if count >= least else None

    def count(self, p: Prepared, layout: Layout, visit: Visit, least: int) -> int:
        """How many pieces keep the cores busy, and are long enough for their warm-ups."""
        lanes = torch.get_num_threads() * (LANES_OF_NARROW if p.H <= NARROW else LANES_OF_WIDE)
        steps = max(visit.past.numbers[name] for name in ("cold", "back"))
        fill, fit = max(least - 1, int(lanes * layout.T / layout.N)), layout.T // (2 * steps)
        if not self.fallback:
            return max(least, min(fill, fit))
        if fill < least:
            say(
                visit,
                "batch",
                f"solver shooting: a batch of {layout.B} keeps {torch.get_num_threads()} threads busy by itself, so "
                "time is not cut.",
            )
        elif fit < least:
            why = f"sequences of {layout.T} steps, and warm-ups of {steps}: they are too short to be cut"
            say(visit, "short", f"solver shooting: {why}, and are walked in one go.")
        return min(fill, fit)

    def walk(self, line: Line, x: Tensor, initial: States, joints: Joints, visit: Visit) -> Walked | None:
        engine, p, grid, numbers = line.engine, line.p, joints.grid, visit.past.numbers
        rows, bound, is_again = taken(x, grid.rows), OF_STATES * self.tight(visit), visit.starts is not None
        if visit.starts is None:
            starts, steps = self.guesses(line, x, initial, joints, visit)
        else:
            starts, steps = [s.clone() for s in visit.starts], 0
        y, found, (memory,) = engine.forward([p], rows, [s.unsqueeze(0) for s in starts], grid.layout, keep=True)
        ends = [e[0] for e in found]
        tape, repairs, gaps = p.room(grid.layout, 1).tape(memory, grid.layout), 0.0, []
        while True:
            true = joints.on([e[joints.departures] for e in ends])
            off = relative([t - s[joints.arrivals] for t, s in zip(true, starts, strict=True)], ends)
            residual, repairs = joints.most(float(off.max()) if len(off) else 0.0, repairs)
            check_finite(residual, "the states")
            gaps.append(residual)
            solve = Solve(len(gaps), residual, True, 1 + steps / len(rows) + repairs, True)
            if residual <= bound:
                break
            if self.fallback and not is_again and repairs > BUDGET:
                visit.forward = solve
                self.adapt(numbers, grid, visit, gaps[0], bound)
                self.judge(visit, repairs)
                return None
            bad = off > bound
            pieces, new = joints.arrivals[bad], [t[bad] for t in true]
            repairs += repair(line, rows, grid, tape, y, starts, ends, pieces, new, bound) / len(rows)
        if not is_again:
            self.adapt(numbers, grid, visit, gaps[0], bound)
            self.remember(grid, tape, visit)
        visit.left, visit.starts, visit.forward = joints, starts, solve
        return Walked(taken(y, grid.places), [e[grid.last] for e in ends], memory)

    def judge(self, visit: Visit, repairs: float) -> None:
        """repairs: steps of them, for each step of the sequences. Too many in three passes in a row are too much."""
        numbers = visit.past.numbers
        numbers["strikes"] = numbers.get("strikes", 0) + 1 if repairs > BUDGET else 0
        if numbers["strikes"] >= STRIKES:
            numbers["strikes"] = 0
            self.give_up(visit, f"this network does not forget within {numbers['cold']} steps")

    def adapt(
        self, numbers: dict[str, int], grid: Grid, visit: Visit, gap: float, bound: float, name: str | None = None
    ) -> None:
        """A warm-up grows if it is too short time and again, and shrinks if it was far too long several times."""
        if self.warmup != "auto":
            return
        name = name or ("warm" if self.knows(grid, visit) else "cold")
        hot, calm = f"hot {name}", f"calm {name}"
        numbers[hot] = numbers.get(hot, 0) // 2 + (HOT if gap > bound else 0)
        numbers[calm] = numbers.get(calm, 0) + 1 if gap < bound / 8 else 0
        if numbers[hot] > HOT:  # twice within three calls: a repair now and then costs less than a longer warm-up
            numbers[name] += max(STRIDE, numbers[name] // 4 // STRIDE * STRIDE)
            numbers[hot] = HOT // 2
        elif numbers[calm] >= CALM and numbers[name] > LEAST:
            numbers[name], numbers[calm] = numbers[name] - STRIDE, 0
        numbers[name] = min(numbers[name], MOST)

    # --- what the pieces start from
    def guesses(
        self, line: Line, x: Tensor, initial: States, joints: Joints, visit: Visit
    ) -> tuple[States, int]:  # (n, .) each
        """The initial states for the first pieces, and for the others the ends of short walks before them; and how many
        steps these take. A walk before another rank's first piece is done here, where its steps are.
        """
        engine, p, grid, store = line.engine, line.p, joints.grid, visit.past.store
        link, cold = joints.link, visit.past.numbers["cold"]
        enters, leaves = (0, 0) if link is None else (link.enters, link.leaves)
        starts = [x.new_empty(grid.n, width) for width in line.widths]
        for start, state in zip(starts, initial, strict=True):
            start[grid.first] = state
        piece, sequence = grid.of_inner
        m, steps = len(piece), np.full(len(piece) + leaves, cold)
        begin = line.zeros(m + leaves, x)
        has, slots = store.find(visit.ids, about(grid))
        if has.any():
            known = has[sequence]
            steps[:m][known] = store.about[slots[sequence[known]], 2]
            at = torch.from_numpy(slots[sequence[known]]), torch.from_numpy(piece[known] - 1)
            for state, table in zip(begin, store.tables, strict=True):
                state[:m][torch.from_numpy(known)] = table[at]
        whole = torch.from_numpy((steps[:m] >= piece * grid.c) & (sequence >= enters))  # from the start of the sequence
        if whole.any():
            for state, given in zip(begin, initial, strict=True):
                state[:m][whole] = given[torch.from_numpy(sequence)[whole]]
        layout, rows, order = grid.windows(steps, leaves)
        _, ends, _ = engine.forward([p], taken(x, rows), [s[order].unsqueeze(0) for s in begin], layout, keep=False)
        for state, end in zip(begin, ends, strict=True):
            state[order] = end[0]
        for start, state in zip(starts, joints.on(begin), strict=True):
            start[joints.arrivals] = state
        return starts, layout.N

    def knows(self, grid: Grid, visit: Visit) -> bool:
        return bool(visit.past.store.find(visit.ids, about(grid))[0].all()) if visit.ids is not None else False

    def remember(self, grid: Grid, tape: Tape, visit: Visit) -> None:
        """The states some steps before each boundary, for the next visit."""
        if visit.ids is None:
            return
        steps = visit.past.numbers["warm"]
        piece, sequence = grid.of_inner
        rows = grid.row_of(sequence, np.maximum(0, piece * grid.c - steps - 1))
        at = torch.from_numpy(sequence), torch.from_numpy(piece - 1)
        states = []
        for state in tape.states:
            found = state.new_zeros(grid.whole.B, len(grid.place) - 1, state.shape[1])
            found[at] = state[rows]
            states.append(found)
        visit.past.store.put(visit.ids, np.column_stack([about(grid), np.full(grid.whole.B, steps)]), states)

    # --- back
    def walk_back(
        self,
        line: Line,
        x: Tensor,
        memory: Tensor,
        d_rows: Tensor | None,
        d_last: Sequence[Tensor | None],
        visit: Visit,
        needs: Needs,
        spend: bool,
    ) -> Gradients:
        joints, numbers = visit.left, visit.past.numbers
        engine, p, grid = line.engine, line.p, joints.grid
        rows, d_out = taken(x, grid.rows), None if d_rows is None else taken(d_rows, grid.rows)
        tape = p.room(grid.layout, 1).tape(memory, grid.layout)
        d_ends = line.zeros(grid.n, x)
        for d_end, d in zip(d_ends, d_last, strict=True):
            if d is not None:
                d_end[grid.last] = d
        steps = carry_back(line, joints, tape, d_out, d_ends, numbers["back"])
        at_ends = [d.unsqueeze(0) for d in d_ends]
        g = engine.backward([p], rows, [memory], d_out, at_ends, grid.layout, needs=needs, spend=spend)
        total = Gradients(g.x, [d[0] for d in g.states], g.weights, [])
        bound, repairs, gaps = OF_GRADIENTS * self.tight(visit), 0.0, []
        while True:
            true = joints.back([d[joints.arrivals] for d in total.states])
            missing = [t - d[joints.departures] for t, d in zip(true, d_ends, strict=True)]
            off = relative(missing, total.states)
            residual, repairs = joints.most(float(off.max()) if len(off) else 0.0, repairs)
            check_finite(residual, "the gradients of the states")
            gaps.append(residual)
            if residual <= bound:
                break
            bad = off > bound
            pieces, more = joints.departures[bad], [m[bad] for m in missing]
            repairs += add_missing(line, rows, grid, tape, total, d_ends, pieces, more, bound, needs) / len(rows)
        self.adapt(numbers, grid, visit, gaps[0], bound, "back")
        self.judge(visit, repairs)
        visit.backward = Solve(len(gaps), residual, True, 1 + steps / len(rows) + repairs, True)
        d_x = None if total.x is None else taken(total.x, grid.places)
        return Gradients(d_x, [d[grid.first].unsqueeze(0) for d in total.states], total.weights, [])


def repair(
    line: Line,
    x: Tensor,
    grid: Grid,
    tape: Tape,
    y: Tensor,
    starts: States,
    ends: States,
    pieces: Tensor,
    running: States,
    bound: float,
) -> int:
    """Runs some pieces again, from other states, until they meet their own path -> steps taken

    What is there of them in tape, rows, starts and ends is replaced.
    """
    engine, p, work = line.engine, line.p, 0
    size = norms(ends).square().mean().sqrt()
    for start, kept, new in zip(starts, tape.initial, running, strict=True):
        start[pieces] = new
        kept[pieces] = new
    if not len(pieces):
        return 0
    for t in range(0, grid.c, SEGMENT):
        spans = grid.some(pieces, t, t + SEGMENT)
        pieces = pieces[spans.order]
        wx = engine.project(p, taken(x, spans.rows))
        running, again = engine.recur(p, wx, [s[spans.order] for s in running], spans.layout)
        assert again is not None
        lengths = torch.from_numpy(grid.layout.lengths)[pieces]
        at = (lengths.clamp(max=t + SEGMENT) - 1).numpy()
        rows = torch.from_numpy(grid.layout.first_rows[at]) + pieces
        gap = norms([s - old[rows] for s, old in zip(running, tape.states, strict=True)])
        for old, fresh in zip(matrices(tape), matrices(again), strict=True):
            old[spans.rows] = fresh
        y[spans.rows] = again.states[0]
        work += spans.layout.N
        ended = lengths <= t + SEGMENT
        for end, state in zip(ends, running, strict=True):
            end[pieces[ended]] = state[ended]
        on = ~ended & ~(gap <= bound * size)
        if not on.any():
            break
        pieces, running = pieces[on], [s[on] for s in running]
    return work


def matrices(tape: Tape) -> list[Tensor]:  # (N, .) each
    return [tape.gates, tape.extra, *([] if tape.raw is None else [tape.raw]), *tape.states]


def add_missing(
    line: Line,
    x: Tensor,
    grid: Grid,
    tape: Tape,
    total: Gradients,
    d_ends: States,
    pieces: Tensor,
    missing: States,
    bound: float,
    needs: Needs,
) -> int:
    """Carries what is missing at the ends of some pieces back through them, until nothing is left of it, and adds it to
    all gradients -> steps taken
    """
    engine, p, work = line.engine, line.p, 0
    size = norms(total.states).square().mean().sqrt()
    for d_end, more in zip(d_ends, missing, strict=True):
        d_end[pieces] += more
    end = grid.layout.lengths[pieces.numpy()]
    while len(pieces):
        first = np.maximum(0, end - SEGMENT)
        spans = grid.layout.spans(pieces.numpy(), first, end)
        pieces, first = pieces[spans.order], first[spans.order.numpy()]
        begin = [s.unsqueeze(0) for s in grid.states_at(tape, pieces, first)]
        again = taken(x, spans.rows)
        _, _, tapes = engine.forward([p], again, begin, spans.layout, keep=True)
        d_last = [m[spans.order].unsqueeze(0) for m in missing]
        g = engine.backward([p], again, tapes, None, d_last, spans.layout, needs=needs, spend=True)
        if total.x is not None and g.x is not None:
            total.x.index_add_(0, spans.rows, g.x)
        for whole, part in zip(total.weights[0], g.weights[0], strict=True):
            if whole is not None and part is not None:
                whole.add_(part)
        work += 2 * spans.layout.N
        missing, is_done = [d[0] for d in g.states], torch.from_numpy(first == 0)
        for d_start, more in zip(total.states, missing, strict=True):
            d_start[pieces[is_done]] += more[is_done]
        on = ~is_done & ~(norms(missing) <= bound * size)
        pieces, missing, end = pieces[on], [m[on] for m in missing], first[on.numpy()]
    return work


def carry_back(line: Line, joints: Joints, tape: Tape, d_rows: Tensor | None, d_ends: States, steps: int) -> int:
    """Fills in d_ with respect to the end of every piece that another one follows: what comes from so many steps of
    the pieces after it -> steps taken

    d_ends: (n, .), so far zero but for the last piece of each sequence
    """
    engine, p, grid, work, S = line.engine, line.p, joints.grid, 0, len(d_ends)
    whole, rest = divmod(steps if joints.link is None else min(steps, joints.link.steps), grid.c)
    if joints.link is None and whole >= len(grid.place) - 1:  # back to the beginning
        whole, rest = len(grid.place) - 1, 0
    cuts = [rest] * (rest > 0) + [grid.c] * whole
    cuts += [grid.c] * (int(joints.most(len(cuts))[0]) - len(cuts))  # all ranks hand on as often
    lengths = torch.from_numpy(grid.layout.lengths)
    for cut in cuts:
        part = min(cut, grid.layout.T)
        is_whole = part == grid.layout.T
        some = tape if is_whole else tape.cut(0, part)
        given = d_ends if is_whole else [torch.where((lengths <= part).unsqueeze(1), d, 0) for d in d_ends]
        d = [None if d_rows is None else d_rows[: some.layout.N], *[None] * (S - 1)]
        _, d_starts = engine.recur_vjp(p, some, d, given)
        for d_end, d_start in zip(d_ends, joints.back([d[joints.arrivals] for d in d_starts]), strict=True):
            d_end[joints.departures] = d_start
        work += some.layout.N
    return work
