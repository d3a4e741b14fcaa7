"""Multigrid in time: pieces of a few steps run side by side, and coarser grids carry the news across."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..engines import Gradients, Layout, Needs
from ..errors import PlaitError
from .base import Solve, check_finite, check_flag, check_number, check_tolerance
from .grid import Joints, Line, States, largest, taken
from .levels import Solution, level_ends
from .past import Visit
from .pieces import OF_GRADIENTS, OF_STATES, InPieces, Walked, about

LARGEST = 0.5  # a gap of this size, after the last iteration, is no solution
MOST = 1000  # iterations, if there is a tolerance


@dataclass(eq=False, repr=False)
class Multigrid(InPieces):
    """Cuts time into pieces of a few steps, and lets coarser grids in time carry the news from piece to piece.

        layer = plait.ImplicitGRU(9, 100, 2, solver=plait.Multigrid(levels=3, coarsening=4))

    levels: grids; 1 is one exact walk
    coarsening: steps of a grid that are one step of the next
    forward_iterations, backward_iterations: the first one is the coarse solve alone, the others are V-cycles
    relax: FCF or F
    tolerance: of the gradient, relative; then iterations go on until it is reached, and the counts do not matter
    start: auto (from the last visit's states, where ids are given and known) or coarse
    fallback: walk in one go if it does not converge; False is for study
    check_every: every so many calls, compare with an exact walk, and say the error

    Without gradients (torch.no_grad) it is always one exact walk.
    """

    levels: int = 3
    coarsening: int = 4
    forward_iterations: int = 2
    backward_iterations: int = 1
    relax: str = "FCF"
    tolerance: float | None = None
    start: str = "auto"
    fallback: bool = True
    check_every: int = 0

    name = "multigrid"

    def __post_init__(self) -> None:
        check_number(self.name, "levels", self.levels, 1, 100)
        check_number(self.name, "coarsening", self.coarsening, 2, 10**6)
        check_number(self.name, "forward_iterations", self.forward_iterations, 1, 10**6)
        check_number(self.name, "backward_iterations", self.backward_iterations, 1, 10**6)
        for name, known in (("relax", ("F", "FCF")), ("start", ("auto", "coarse"))):
            if getattr(self, name) not in known:
                raise PlaitError(f"solver {self.name}: {name}={getattr(self, name)}: expected {' or '.join(known)}.")
        check_flag(self.name, "fallback", self.fallback)
        check_number(self.name, "check_every", self.check_every, 0, 10**9)
        if self.tolerance is not None:
            check_tolerance(self.name, self.tolerance)

    def cut(self, H: int, layout: Layout, visit: Visit) -> int | None:
        T = layout.T if visit.link is None else visit.link.steps
        self.check_steps(T)
        is_whole = self.levels == 1 or self.coarsening >= T
        return None if is_whole or self.is_resting(visit) else self.coarsening

    def check_steps(self, T: int) -> None:
        fit, steps = 1, T
        while steps >= self.coarsening:
            fit, steps = fit + 1, steps // self.coarsening
        if self.levels > fit:
            raise PlaitError(
                f"solver {self.name}: {self.levels} levels of coarsening {self.coarsening} need at least "
                f"{self.coarsening ** (self.levels - 1)} steps, and the sequences have {T}: use at most {fit}."
            )

    # --- there
    def walk(self, line: Line, x: Tensor, initial: States, joints: Joints, visit: Visit) -> Walked | None:
        engine, p, grid = line.engine, line.p, joints.grid
        rows, bound = taken(x, grid.rows), OF_STATES * self.tight(visit)
        solution = Solution(line, joints, engine.project(p, rows), self.levels, self.relax, initial)
        finest, count, gaps, is_again = solution.levels[0], 0, [], visit.starts is not None
        if visit.starts is None:
            between = self.stored(joints, visit, x)
            if between is None:
                between = [point[finest.rows] for point in solution.guess()]
            count = 1
            while count < (MOST if self.tolerance else self.forward_iterations):
                between, gap = solution.cycle(0, between, None)
                (gap,) = joints.most(gap)
                gaps.append(gap)
                count += 1
                if (self.tolerance and gap <= bound) or (self.fallback and self.is_hopeless(gaps, bound)):
                    break
            starts = finest.starts(between, solution.own_initial(0))
        else:
            starts = [s.clone() for s in visit.starts]
        y, found, (memory,) = engine.forward([p], rows, [s.unsqueeze(0) for s in starts], grid.layout, keep=True)
        ends = [e[0] for e in found]
        true = joints.on([e[joints.departures] for e in ends])
        (gap,) = joints.most(largest([t - s[joints.arrivals] for t, s in zip(true, starts, strict=True)], ends))
        gaps.append(gap)
        visit.forward = Solve(count, gap, gap <= bound, 1 + solution.work / len(rows), True)
        if not is_again:
            if not math.isfinite(gap) and not rows.isfinite().all():
                check_finite(gap, "the states")
            if self.fallback and self.has_failed(gaps, bound):
                self.diverged(visit, gaps, "states")
                return None
            check_finite(gap, "the states")
            self.remember(joints, [e[joints.departures] for e in ends], visit)
        visit.left, visit.starts = joints, starts
        return Walked(taken(y, grid.places), [e[grid.last] for e in ends], memory)

    @staticmethod
    def is_hopeless(gaps: Sequence[float], bound: float) -> bool:
        """The gaps between the pieces grow, or are not numbers any more. (The first guess may be far off.)"""
        return not gaps[-1] <= max(bound, 2 * min(gaps))

    def has_failed(self, gaps: Sequence[float], bound: float) -> bool:
        """After the last iteration."""
        return self.is_hopeless(gaps, bound) or gaps[-1] > (bound if self.tolerance else LARGEST)

    def diverged(self, visit: Visit, gaps: Sequence[float], what: str) -> None:
        found = ", ".join(f"{gap:.2g}" for gap in gaps[-3:])
        why = f"does not converge on this network (gaps between the pieces, of the {what}: {found})"
        self.give_up(visit, why, " Use fewer levels, a smaller coarsening, or plait.Shooting().")

    def stored(self, joints: Joints, visit: Visit, like: Tensor) -> States | None:  # (m, .) each
        """What the departures of the pieces were at the last visit, if it is known of all sequences."""
        has, _, states = visit.past.store.find(visit.ids, about(joints.grid), like)
        (lacks,) = joints.most(float(self.start != "auto" or not len(has) or not has.all()))
        if lacks:
            return None
        sequence, piece = self.places(joints)
        return [state[sequence, piece] for state in states]

    def remember(self, joints: Joints, between: States, visit: Visit) -> None:
        if visit.ids is None or self.start != "auto":
            return
        grid, states = joints.grid, []
        for state in between:
            found = state.new_zeros(grid.whole.B, len(grid.place), state.shape[1])
            found[self.places(joints)] = state
            states.append(found)
        number = np.zeros(grid.whole.B, np.int64)
        visit.past.store.put(visit.ids, np.column_stack([about(grid), number]), states)

    @staticmethod
    def places(joints: Joints) -> tuple[Tensor, Tensor]:  # (m,) each
        """The sequence and the piece of each departure."""
        which, grid = joints.departures.numpy(), joints.grid
        return torch.from_numpy(grid.sequence[which]), torch.from_numpy(grid.piece[which])

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
    ) -> Gradients | None:
        engine, p = line.engine, line.p
        joints: Joints = visit.left
        grid, initial = joints.grid, list(visit.initial or ())
        rows, d_out = taken(x, grid.rows), None if d_rows is None else taken(d_rows, grid.rows)
        tape = p.room(grid.layout, 1).tape(memory, grid.layout)
        solution = Solution(line, joints, engine.project(p, rows), self.levels, self.relax, initial)
        level, departures = solution.levels[0], joints.departures
        tapes = solution.linearise(grid.states_at(tape, departures, grid.layout.lengths[departures.numpy()]))
        d_ends = grid.at_ends(d_last, line.zeros(grid.n, x))

        def sweep(between: States) -> States:
            d = [d_out, *[None] * (len(d_ends) - 1)]
            _, d_starts = engine.recur_vjp(p, tape, d, level_ends(level, between, d_ends))
            solution.work += grid.layout.N
            return joints.back([d[joints.arrivals] for d in d_starts])

        between, bound = line.zeros(len(departures), x), OF_GRADIENTS * self.tight(visit)
        between = solution.correction(0, tapes, sweep(between))
        count, gaps = 1, []
        while count < (MOST if self.tolerance else self.backward_iterations):
            between, gap = solution.cycle_back(0, tapes, sweep, between)
            (gap,) = joints.most(gap)
            gaps.append(gap)
            count += 1
            if (self.tolerance and gap <= bound) or (self.fallback and self.is_hopeless(gaps, bound)):
                break
        ends = [d.unsqueeze(0) for d in level_ends(level, between, d_ends)]
        g = engine.backward([p], rows, [memory], d_out, ends, grid.layout, needs=needs, spend=spend)
        d_starts = [d[0] for d in g.states]
        true = joints.back([d[joints.arrivals] for d in d_starts])
        (gap,) = joints.most(largest([t - b for t, b in zip(true, between, strict=True)], d_starts))
        gaps.append(gap)
        visit.backward = Solve(count, gap, gap <= bound, 1 + solution.work / len(rows), True)
        if self.fallback and self.has_failed(gaps, bound):
            self.diverged(visit, gaps, "gradients")
            return None
        check_finite(gap, "the gradients of the states")
        d_x = None if g.x is None else taken(g.x, grid.places)
        return Gradients(d_x, [d[grid.first].unsqueeze(0) for d in d_starts], g.weights, [])
