"""Grids in time, coarser and coarser, and how they are solved together.

Level 0 has the steps of the sequence. A step of level l is c**l of them, taken at once: the cells say what such a step
is. A coarse grid joins the ends of the pieces of c steps of the grid below. It is solved for a correction, in the same
way, and the coarsest one step after another. (Full approximation scheme; reduction in time: only the points between two
pieces are unknown.)

The backward pass has the same shape. It is linear, so the coarse grids solve for what is missing.

If several ranks share the steps, each has its share of level 0, and each solves all of the coarser levels.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..engines import Layout, Tape
from ..layout import Whole
from .grid import Direction, Grid, Joints, States, largest, taken

Sweep = Callable[[States], States]


class Level:
    """A grid in time. The departures of its pieces are the points of the next grid."""

    def __init__(self, joints: Joints, dt: int, wx: Tensor) -> None:
        """wx: of the pieces"""
        self.joints, self.grid, self.dt, self.wx = joints, joints.grid, dt, wx
        grid, link = joints.grid, joints.link
        departures = joints.departures.numpy()
        piece, sequence = grid.piece[departures], grid.sequence[departures]
        if link is None:
            lengths = np.bincount(sequence, minlength=grid.whole.B)
        else:
            lengths, before = link.departures(grid.c)
            piece = piece + before[sequence]
        self.coarse = coarse_layout(lengths)
        self.rows = torch.from_numpy(self.coarse.first_rows[piece] + sequence)  # (m,): on the next grid

    def points(self, values: States) -> States:  # (m, .) -> (Nc, .)
        """From what this rank's departures have to all points of the next grid."""
        rows, link = self.rows, self.joints.link
        if link is not None:
            *values, rows = link.all_rows([*values, rows])
        found = [v.new_empty(self.coarse.N, v.shape[1]) for v in values]
        for f, v in zip(found, values, strict=True):
            f[rows] = v
        return found

    def starts(self, between: States, initial: States) -> States:  # (m, .), (B, .) -> (n, .)
        """What the pieces begin with, if their departures are these."""
        found = []
        for state, first in zip(self.joints.on(between), initial, strict=True):
            start = state.new_empty(self.grid.n, state.shape[1])
            start[self.grid.first] = first
            start[self.joints.arrivals] = state
            found.append(start)
        return found


def coarse_layout(lengths: Whole) -> Layout:  # (B,), longest first
    """Without the sequences that have no steps."""
    lengths = lengths[lengths > 0]
    if not len(lengths) or (lengths == lengths[0]).all():
        return Layout(int(lengths[0]) if len(lengths) else 0, len(lengths))
    return Layout.of_sorted(lengths)


class Solution:
    """One direction of one call: its levels, and their work."""

    def __init__(
        self, direction: Direction, joints: Joints, wx: Tensor, levels: int, relax: str, initial: States
    ) -> None:
        """wx: of the pieces"""
        self.direction, self.relax, self.work = direction, relax, 0
        self.levels, c, dt = [Level(joints, 1, wx)], joints.grid.c, 1
        self.initial = [initial if joints.link is None else joints.link.whole_initial(initial)]
        while True:
            above = self.levels[-1]
            layout, dt = above.coarse, dt * c
            (rows,) = above.points([taken(above.wx, above.joints.departures)])  # the input at the start of each step
            self.initial.append([s[: layout.B] for s in self.initial[-1]])
            if len(self.levels) == levels - 1 or c >= layout.T:
                break
            joints = Joints(Grid.of(layout, c, False), None)
            self.levels.append(Level(joints, dt, taken(rows, joints.grid.rows)))
        self.coarsest, self.wx, self.dt = layout, rows, dt
        self.last = len(self.levels)  # the number of the coarsest

    # --- forward
    def pieces(self, l: int, between: States, source: States | None, path: bool = False) -> tuple[States, States]:
        """All pieces of a level -> their points (N, .) if `path`, true departures (m, .)"""
        level, layout = self.levels[l], self.levels[l].grid.layout
        starts = level.starts(between, self.own_initial(l))
        points, ends = self.direction.recur(level.wx, starts, layout, level.dt, source=source, path=path)
        self.work += layout.N
        return points, [e[level.joints.departures] for e in ends]

    def own_initial(self, l: int) -> States:
        return [s[: self.levels[l].grid.whole.B] for s in self.initial[l]]

    def walk(self, source: States | None) -> States:
        self.work += self.coarsest.N
        return self.direction.recur(self.wx, self.initial[-1], self.coarsest, self.dt, source=source)[0]

    def guess(self, l: int = 1) -> States:
        if l == self.last:
            return self.walk(None)
        level = self.levels[l]
        found, _ = self.pieces(l, [p[level.rows] for p in self.guess(l + 1)], None, path=True)
        return [taken(f, level.grid.places) for f in found]

    def cycle(self, l: int, between: States, source: States | None) -> tuple[States, float]:
        """Better departures of a level, and how far they were off before."""
        level = self.levels[l]
        if self.relax == "FCF":
            _, between = self.pieces(l, between, source)
        _, found = self.pieces(l, between, source)
        missing = [f - b for f, b in zip(found, between, strict=True)]
        residual = largest(missing, between)
        before = [s[level.joints.departures] for s in level.starts(between, self.own_initial(l))]
        m = len(level.rows)
        wx = taken(level.wx, level.joints.departures)
        _, wide = self.direction.recur(wx, before, Layout(1, m), level.dt * level.grid.c, path=False)
        self.work += m
        right = [b - w + off for b, w, off in zip(between, wide, missing, strict=True)]
        both = level.points([*right, *between])
        points = self.solve(l + 1, both[: len(right)], both[len(right) :])
        return [p[level.rows] for p in points], residual

    def solve(self, l: int, source: States, guess: States) -> States:  # (N, .) each
        if l == self.last:
            return self.walk(source)
        level = self.levels[l]
        mine = [taken(s, level.grid.rows) for s in source]
        between, _ = self.cycle(l, self.departing(l, guess), mine)
        found, _ = self.pieces(l, between, mine, path=True)
        return [taken(f, level.grid.places) for f in found]

    def departing(self, l: int, points: States) -> States:  # (N, .) -> (m, .)
        grid = self.levels[l].grid
        before = self.levels[l].joints.departures.numpy()
        rows = torch.from_numpy(grid.whole.first_rows[(grid.piece[before] + 1) * grid.c - 1] + grid.sequence[before])
        return [p[rows] for p in points]

    # --- backward
    def linearise(self, between: States) -> list[Tape]:  # (m, .): what the departures of level 0 have
        """Tapes of the coarse grids, at the states of the finest."""
        direction, tapes = self.direction, []
        points = self.levels[0].points(between)
        for l in range(1, self.last):
            level = self.levels[l]
            grid = level.grid
            starts = level.starts(self.departing(l, points), self.own_initial(l))
            path = [taken(p, grid.rows) for p in points]
            tapes.append(direction.engine.linearise(direction.p, level.wx, path, starts, grid.layout, dt=level.dt))
            points = level.points(self.departing(l, points))
            self.work += grid.layout.N
        tapes.append(
            direction.engine.linearise(direction.p, self.wx, points, self.initial[-1], self.coarsest, dt=self.dt)
        )
        self.work += self.coarsest.N
        return tapes

    def carry(self, tape: Tape, source: States, d_ends: States) -> States:  # (N, .), (n, .) -> (N, .)
        engine, p, layout = self.direction.engine, self.direction.p, tape.layout
        found, running = [s.clone() for s in source], [d.clone() for d in d_ends]
        for t in range(layout.T - 1, -1, -1):
            rows, n = layout.rows(t, t + 1), layout.sizes[t]
            here = [f[rows].add_(r[:n]) for f, r in zip(found, running, strict=True)]
            _, before = engine.recur_vjp(p, tape.cut(t, t + 1), None, here)
            for r, b in zip(running, before, strict=True):
                r[:n] = b
        self.work += layout.N
        return found

    def solve_back(self, l: int, tapes: Sequence[Tape], source: States) -> States:  # (N, .) -> (N, .)
        """The gradients at all points of a coarse grid, given what is added at each."""
        direction, tape = self.direction, tapes[l - 1]
        if l == self.last:
            return self.carry(tape, source, direction.zeros(self.coarsest.B, source[0]))
        level = self.levels[l]
        mine = [taken(s, level.grid.rows) for s in source]
        nothing = direction.zeros(level.grid.n, mine[0])

        def sweep(between: States) -> States:
            _, d_starts = direction.engine.recur_vjp(direction.p, tape, mine, level_ends(level, between, nothing))
            self.work += level.grid.layout.N
            return level.joints.back([d[level.joints.arrivals] for d in d_starts])

        between, _ = self.cycle_back(l, tapes, sweep, direction.zeros(len(level.rows), mine[0]))
        found = self.carry(tape, mine, level_ends(level, between, nothing))
        return [taken(f, level.grid.places) for f in found]

    def cycle_back(self, l: int, tapes: Sequence[Tape], sweep: Sweep, between: States) -> tuple[States, float]:
        """Better gradients at the departures, and how far they were off before."""
        if self.relax == "FCF":
            between = sweep(between)
        found = sweep(between)
        missing = [f - b for f, b in zip(found, between, strict=True)]
        more = self.correction(l, tapes, missing)
        return [b + m for b, m in zip(between, more, strict=True)], largest(missing, found)

    def correction(self, l: int, tapes: Sequence[Tape], missing: States) -> States:  # (m, .) -> (m, .)
        level = self.levels[l]
        return [s[level.rows] for s in self.solve_back(l + 1, tapes, level.points(missing))]


def level_ends(level: Level, between: States, d_ends: States) -> States:  # (m, .), (n, .) -> (n, .)
    """The gradients at the ends of all pieces: `between` at the departures."""
    for d_end, d in zip(d_ends, between, strict=True):
        d_end[level.joints.departures] = d
    return d_ends
