"""Multigrid in time: pieces of a few steps run side by side, and coarser grids carry the news across."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..engines import Gradients, Layout
from ..errors import PlaitError
from .base import check_finite, check_flag, check_number, check_tolerance
from .grid import Backward, Direction, Joints, States, largest, taken
from .levels import Solution, level_ends
from .pieces import OF_GRADIENTS, OF_STATES, InPieces, Walked, about
from .solve import Solve
from .warm_start import Visit

LARGEST = 0.5  # a gap of this size, after the last iteration, is no solution
MOST = 1000  # iterations, if there is a tolerance
Cycle = Callable[..., tuple[States, float]]  # departures -> better ones, and their gap before


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
    fallback: walk serially if it does not converge; False is for study
    check_every: every so many calls, compare with an exact walk, and report the error

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

    # --- forward
    def walk(self, direction: Direction, x: Tensor, initial: States, joints: Joints) -> Walked | None:
        p, grid, visit = direction.p, joints.grid, direction.visit
        rows, bound = taken(x, grid.rows), OF_STATES * self.tight(visit)
        solution = Solution(direction, joints, direction.engine.project(p, rows), self.levels, self.relax, initial)
        finest, gaps, is_again = solution.levels[0], list[float](), visit.starts is not None
        if visit.starts is None:
            between = self.stored(joints, visit, x)
            if between is None:
                between = [point[finest.rows] for point in solution.guess()]
            cycle = partial(solution.cycle, 0, source=None)
            between, gaps = self.iterate(cycle, between, self.forward_iterations, bound, joints)
            starts = finest.starts(between, solution.own_initial(0))
        else:
            starts = [s.clone() for s in visit.starts]
        y, ends, (memory,) = direction.forward(p, rows, starts, grid.layout)
        count, true = 0 if is_again else 1 + len(gaps), joints.on([e[joints.departures] for e in ends])
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
        visit.joints, visit.starts = joints, starts
        return Walked(taken(y, grid.places), [e[grid.last] for e in ends], memory)

    def iterate(
        self, cycle: Cycle, between: States, count: int, bound: float, joints: Joints
    ) -> tuple[States, list[float]]:
        """V-cycles after the coarse solve -> departures, the gap before each"""
        gaps: list[float] = []
        while 1 + len(gaps) < (MOST if self.tolerance else count):
            between, gap = cycle(between=between)
            gaps += joints.most(gap)
            if (self.tolerance and gap <= bound) or (self.fallback and self.is_hopeless(gaps, bound)):
                break
        return between, gaps

    @staticmethod
    def is_hopeless(gaps: Sequence[float], bound: float) -> bool:
        """The gaps grow, or are not numbers. (The first guess may be far off.)"""
        return not gaps[-1] <= max(bound, 2 * min(gaps))

    def has_failed(self, gaps: Sequence[float], bound: float) -> bool:
        return self.is_hopeless(gaps, bound) or gaps[-1] > (bound if self.tolerance else LARGEST)

    def diverged(self, visit: Visit, gaps: Sequence[float], what: str) -> None:
        found = ", ".join(f"{gap:.2g}" for gap in gaps[-3:])
        why = f"does not converge on this network (gaps between the pieces, of the {what}: {found})"
        self.give_up(visit, why, " Use fewer levels, a smaller coarsening, or plait.Shooting().")

    def stored(self, joints: Joints, visit: Visit, like: Tensor) -> States | None:  # (m, .) each
        has, _, states = visit.warm_start.table.find(visit.ids, about(joints.grid), like)
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
        visit.warm_start.table.put(visit.ids, np.column_stack([about(grid), number]), states)

    @staticmethod
    def places(joints: Joints) -> tuple[Tensor, Tensor]:  # (m,) each
        which, grid = joints.departures.numpy(), joints.grid
        return torch.from_numpy(grid.sequence[which]), torch.from_numpy(grid.piece[which])

    # --- backward
    def walk_back(self, direction: Direction, given: Backward) -> Gradients | None:
        engine, p, visit = direction.engine, direction.p, direction.visit
        joints: Joints = visit.joints
        grid, x, initial = joints.grid, given.rows, list(visit.initial or ())
        rows, d_out = taken(x, grid.rows), None if given.d_rows is None else taken(given.d_rows, grid.rows)
        tape = direction.tape(given.memory, grid.layout)
        solution = Solution(direction, joints, engine.project(p, rows), self.levels, self.relax, initial)
        level, departures = solution.levels[0], joints.departures
        tapes = solution.linearise(grid.states_at(tape, departures, grid.layout.lengths[departures.numpy()]))
        d_ends = grid.at_ends(given.d_last, direction.zeros(grid.n, x))

        def sweep(between: States) -> States:
            d = [d_out, *[None] * (len(d_ends) - 1)]
            _, d_starts = engine.recur_vjp(p, tape, d, level_ends(level, between, d_ends))
            solution.work += grid.layout.N
            return joints.back([d[joints.arrivals] for d in d_starts])

        between, bound = direction.zeros(len(departures), x), OF_GRADIENTS * self.tight(visit)
        between = solution.correction(0, tapes, sweep(between))
        cycle = partial(solution.cycle_back, 0, tapes, sweep)
        between, gaps = self.iterate(cycle, between, self.backward_iterations, bound, joints)
        of_pieces = given._replace(rows=rows, d_rows=d_out, d_last=level_ends(level, between, d_ends))
        g = direction.backward(p, of_pieces, grid.layout)
        count, true = 1 + len(gaps), joints.back([d[joints.arrivals] for d in g.states])
        (gap,) = joints.most(largest([t - b for t, b in zip(true, between, strict=True)], g.states))
        gaps.append(gap)
        visit.backward = Solve(count, gap, gap <= bound, 1 + solution.work / len(rows), True)
        if self.fallback and self.has_failed(gaps, bound):
            self.diverged(visit, gaps, "gradients")
            return None
        check_finite(gap, "the gradients of the states")
        d_x = None if g.x is None else taken(g.x, grid.places)
        return g._replace(x=d_x, states=[d[grid.first] for d in g.states])
