"""Multiple shooting: pieces of a sequence start from guesses, run side by side, and are repaired where they do not fit.

A network forgets: started from a wrong state, it comes back to its true path within its memory. So a piece that starts
a little earlier than it has to, from zeros or from the state of the last visit, begins right. Where a piece ends and
the next one has begun, the two must agree; if they do not, the next one runs again from the right state, until it meets
its own earlier path. So the result is exact within the tolerance, or the sequence is walked serially.

The backward pass does the same for gradients: what comes from later pieces is first carried back through some steps of
them. It is linear, so what is missing is added.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..engines import Gradients, Layout, Tape
from ..errors import counted
from .base import check_finite, check_flag, check_number, check_tolerance, say
from .grid import Backward, Direction, Grid, Joints, States, taken
from .pieces import OF_GRADIENTS, OF_STATES, InPieces, Walked, about
from .repairs import Gaps, add_missing, carry_back, repair
from .solve import Solve
from .warm_start import Visit

FIRST = {"cold": 192, "warm": 64, "back": 192}  # steps of a warm-up: from zeros, from a stored state, backward
STRIDE, LEAST, MOST = 32, 32, 1 << 20  # steps by which a warm-up changes, its least, its most
HOT = 4  # a large gap adds it to a counter that halves at every call; above it the warm-up grows
CALM = 4  # calls in a row with gaps far below the bound, after which the warm-up shrinks
BUDGET, STRIKES = 0.5, 3  # too many repairs per step, so often in a row: the solver gives up
WORTH = 1 << 18  # steps * units below which the overhead outweighs the gain
NARROW, LANES = 128, (4, 2)  # pieces for each thread, up to so many units and above


@dataclass(eq=False, repr=False)
class Shooting(InPieces):
    """Cuts time into pieces that run side by side, for a few long sequences. Exact within a tolerance.

        layer = plait.GRU(16, 64, solver=plait.Shooting())
        y, h = layer(x, ids=numbers)  # ids: which sequences these are, so that the next visit can start from this one

    chunks: how many pieces; auto: as many as keep this machine's cores busy
    tolerance: of the gradient, relative
    warmup: steps before each piece; auto: adapted to what the network needs
    fallback: walk serially if the network does not forget, or if pieces do not pay; False is for study
    check_every: every so many calls, compare with an exact walk, and report the error

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
        check_flag(self.name, "fallback", self.fallback)
        if self.chunks != "auto":
            check_number(self.name, "chunks", self.chunks, 1, 10**6)
        if self.warmup != "auto":
            check_number(self.name, "warmup", self.warmup, 0, 10**9)
        check_number(self.name, "check_every", self.check_every, 0, 10**9)

    # --- forward
    def cut(self, H: int, layout: Layout, visit: Visit) -> int | None:
        numbers = visit.warm_start.numbers
        for name, steps in FIRST.items():
            numbers.setdefault(name, steps)
        if self.warmup != "auto":
            numbers |= dict.fromkeys(FIRST, int(self.warmup))
        if self.is_resting(visit):
            return None
        share = 1.0 if visit.link is None else layout.T / visit.link.steps
        least = 2 if visit.link is None else 1  # of several ranks, each may have one piece
        if self.chunks == "auto":
            count = self.count(H, layout, visit, least)
        else:
            count = min(layout.T, math.ceil(int(self.chunks) * share))
        return -(-layout.T // count) if count >= least else None

    def count(self, H: int, layout: Layout, visit: Visit, least: int) -> int:
        lanes = torch.get_num_threads() * LANES[H > NARROW]
        steps = max(visit.warm_start.numbers[name] for name in ("cold", "back"))
        fill, fit = max(least - 1, int(lanes * layout.T / layout.N)), layout.T // max(1, 2 * steps)
        if layout.T * H < WORTH:
            fit = 0
        if not self.fallback:
            return max(least, min(fill, fit))
        if fill < least:
            say(
                visit,
                "batch",
                f"solver shooting: a batch of {layout.B} keeps {counted(torch.get_num_threads(), 'thread')} busy by "
                "itself, so time is not cut.",
            )
        elif fit < least:
            T = f"{layout.T} steps" if visit.link is None else f"{layout.T} steps on a rank"
            why = f"sequences of {T} are too short to be cut (with warm-ups of {steps}, and {H} units)"
            say(visit, "short", f"solver shooting: {why}, and are walked serially.")
        return min(fill, fit)

    def walk(self, direction: Direction, x: Tensor, initial: States, joints: Joints) -> Walked | None:
        grid, visit = joints.grid, direction.visit
        bound, is_again = OF_STATES * self.tight(visit), visit.starts is not None
        rows = visit.rows = taken(x, grid.rows)
        if visit.starts is None:
            starts, steps = self.guesses(direction, x, initial, joints)
        else:
            starts, steps = [s.clone() for s in visit.starts], 0
        y, ends, (memory,) = direction.forward(direction.p, rows, starts, grid.layout)
        tape, repairs, gaps = direction.tape(memory, grid.layout), 0.0, list[float]()
        while True:
            true = joints.on([e[joints.departures] for e in ends])
            off = joints.relative([t - s[joints.arrivals] for t, s in zip(true, starts, strict=True)], ends)
            residual, repairs = joints.most(float(off.max()) if len(off) else 0.0, repairs)
            check_finite(residual, "the states")
            gaps.append(residual)
            solve = Solve(len(gaps), residual, True, 1 + steps / len(rows) + repairs, True)
            if residual <= bound:
                break
            if self.fallback and not is_again and repairs > BUDGET:
                visit.forward = solve
                self.adapt(visit, self.warmed(grid, visit), gaps[0], bound)
                self.count_strikes(visit, repairs)
                return None
            bad = Gaps(joints.arrivals[off > bound], [t[off > bound] for t in true])
            repairs += repair(direction, rows, grid, tape, y, starts, ends, bad, bound) / len(rows)
        if not is_again:
            self.adapt(visit, self.warmed(grid, visit), gaps[0], bound)
            self.remember(grid, tape, visit)
        visit.joints, visit.starts, visit.forward = joints, starts, solve
        return Walked(taken(y, grid.places), [e[grid.last] for e in ends], memory)

    def count_strikes(self, visit: Visit, repairs: float) -> None:
        """repairs: for each step of the sequences"""
        numbers = visit.warm_start.numbers
        numbers["strikes"] = numbers.get("strikes", 0) + 1 if repairs > BUDGET else 0
        if numbers["strikes"] >= STRIKES:
            numbers["strikes"] = 0
            self.give_up(visit, f"this network does not forget within {numbers['cold']} steps")

    def adapt(self, visit: Visit, name: str, gap: float, bound: float) -> None:
        if self.warmup != "auto":
            return
        numbers = visit.warm_start.numbers
        hot, calm = f"hot {name}", f"calm {name}"
        numbers[hot] = numbers.get(hot, 0) // 2 + (HOT if gap > bound else 0)
        numbers[calm] = numbers.get(calm, 0) + 1 if gap < bound / 8 else 0
        if numbers[hot] > HOT:  # twice within three calls: rare repairs are cheaper than a longer warm-up
            numbers[name] += max(STRIDE, numbers[name] // 4 // STRIDE * STRIDE)
            numbers[hot] = HOT // 2
        elif numbers[calm] >= CALM and numbers[name] > LEAST:
            numbers[name], numbers[calm] = numbers[name] - STRIDE, 0
        numbers[name] = min(numbers[name], MOST)

    # --- what the pieces start from
    def guesses(
        self, direction: Direction, x: Tensor, initial: States, joints: Joints
    ) -> tuple[States, int]:  # (n, .) each
        """What the pieces start from, and how many steps the walks before them take."""
        grid, link, visit = joints.grid, joints.link, direction.visit
        cold = visit.warm_start.numbers["cold"]
        enters, leaves = (0, 0) if link is None else (link.enters, link.leaves)
        starts = [x.new_empty(grid.n, width) for width in direction.widths]
        for start, state in zip(starts, initial, strict=True):
            start[grid.first] = state
        piece, sequence = grid.of_inner
        m, steps = len(piece), np.full(len(piece) + leaves, cold)
        begin = direction.zeros(m + leaves, x)
        has, before, states = visit.warm_start.table.find(visit.ids, about(grid), x)
        if has.any():
            known = has[sequence]
            which = np.cumsum(has)[sequence[known]] - 1  # among those that were found
            steps[:m][known] = before[which]
            at = torch.from_numpy(which), torch.from_numpy(piece[known] - 1)
            for state, stored in zip(begin, states, strict=True):
                state[:m][torch.from_numpy(known)] = stored[at]
        of = np.concatenate([sequence, np.arange(leaves)])
        reach = np.concatenate([piece * grid.c, grid.whole.lengths[:leaves]])
        whole = torch.from_numpy((steps >= reach) & (of >= enters))  # from the start of the sequence
        if whole.any():
            for state, given in zip(begin, initial, strict=True):
                state[whole] = given[torch.from_numpy(of)[whole]]
        layout, rows, order = grid.windows(steps, leaves)
        _, ends, _ = direction.forward(direction.p, taken(x, rows), [s[order] for s in begin], layout, keep=False)
        for state, end in zip(begin, ends, strict=True):
            state[order] = end
        for start, state in zip(starts, joints.on(begin), strict=True):
            start[joints.arrivals] = state
        return starts, layout.N

    def warmed(self, grid: Grid, visit: Visit) -> str:
        if visit.ids is None or visit.link is not None:
            return "cold"
        return "warm" if (visit.warm_start.table.rows(visit.ids, about(grid)) >= 0).all() else "cold"

    def remember(self, grid: Grid, tape: Tape, visit: Visit) -> None:
        if visit.ids is None:
            return
        steps = visit.warm_start.numbers["warm"]
        piece, sequence = grid.of_inner
        first, step = np.divmod(np.maximum(0, piece * grid.c - steps), grid.c)
        at = torch.from_numpy(sequence), torch.from_numpy(piece - 1)
        states = []
        for state in grid.states_at(tape, torch.from_numpy(grid.place[first, sequence]), step):
            found = state.new_zeros(grid.whole.B, len(grid.place) - 1, state.shape[1])
            found[at] = state
            states.append(found)
        visit.warm_start.table.put(visit.ids, np.column_stack([about(grid), np.full(grid.whole.B, steps)]), states)

    # --- backward
    def walk_back(self, direction: Direction, given: Backward) -> Gradients:
        visit, p, x = direction.visit, direction.p, given.rows
        joints: Joints = visit.joints
        grid, d_out = joints.grid, None if given.d_rows is None else taken(given.d_rows, joints.grid.rows)
        rows = taken(x, grid.rows) if visit.rows is None else visit.rows
        tape = direction.tape(given.memory, grid.layout)
        d_ends = grid.at_ends(given.d_last, direction.zeros(grid.n, x))
        steps = carry_back(direction, joints, tape, d_out, d_ends, visit.warm_start.numbers["back"])
        g = direction.backward(p, given._replace(rows=rows, d_rows=d_out, d_last=d_ends), grid.layout)
        bound, repairs, gaps = OF_GRADIENTS * self.tight(visit), 0.0, list[float]()
        while True:
            true = joints.back([d[joints.arrivals] for d in g.states])
            missing = [t - d[joints.departures] for t, d in zip(true, d_ends, strict=True)]
            off = joints.relative(missing, g.states)
            residual, repairs = joints.most(float(off.max()) if len(off) else 0.0, repairs)
            check_finite(residual, "the gradients of the states")
            gaps.append(residual)
            if residual <= bound:
                break
            bad = Gaps(joints.departures[off > bound], [m[off > bound] for m in missing])
            repairs += add_missing(direction, rows, grid, tape, g, d_ends, bad, bound, given.needs) / len(rows)
        self.adapt(visit, "back", gaps[0], bound)
        self.count_strikes(visit, repairs)
        visit.backward = Solve(len(gaps), residual, True, 1 + steps / len(rows) + repairs, True)
        d_x = None if g.x is None else taken(g.x, grid.places)
        return g._replace(x=d_x, states=[d[grid.first] for d in g.states])
