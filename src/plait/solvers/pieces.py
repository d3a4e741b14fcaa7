"""What solvers share that cut time into pieces: each direction of a layer by itself, and the fallback to one walk."""

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..engines import Gradients, Layout, Needs
from ..errors import PlaitWarning
from .base import Problem, Solver, say
from .comparison import error
from .grid import Backward, Direction, Grid, Joints, States
from .solve import EXACT, Solve
from .warm_start import Visit, Whole

USUAL, MOST_OFF = 0.01, 0.05  # without a tolerance: a gap that counts as converged, an error that passes a check
MOST_HALVED = 6  # times that the tolerance is halved, before the solver gives up
OF_STATES, OF_GRADIENTS = 0.1, 0.3  # how large a gap between two pieces may be, for a tolerance of 1
REST, LONGEST_REST = 50, 1600  # calls without a cut, before it is tried again


class Walked(NamedTuple):
    rows: Tensor  # (N, P)
    last: States  # per state (B, .)
    memory: Tensor  # of the tape


class InPieces(Solver):
    """Without gradients, or without visits, it is always one exact walk."""

    fallback: bool
    tolerance: float | None
    check_every: int
    sweeps = True

    @abstractmethod
    def cut(self, H: int, layout: Layout, visit: Visit) -> int | None:
        """The steps of a piece; None if the sequences are better walked serially."""

    @abstractmethod
    def walk(self, direction: Direction, x: Tensor, initial: States, joints: Joints) -> Walked | None:
        """One direction, forward; None if it does not work."""

    @abstractmethod
    def walk_back(self, direction: Direction, given: Backward) -> Gradients | None:
        """The same, backward; None if it does not work."""

    def forward(
        self, problem: Problem, x: Tensor, state0: Sequence[Tensor] | None, *, keep: bool
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        engine, ps, layout, visits = problem
        is_split = any(visit.link is not None for visit in visits)
        cuts = self.cuts(ps[0].H, layout, visits) if keep and visits and layout.N else [None] * len(ps)
        for visit in visits:
            visit.cut = None
        if not layout.N or not (any(cuts) or is_split):
            for visit in visits:
                visit.not_cut()
            return engine.forward(ps, x, state0, layout, keep=keep)
        rows, found = x.flatten(0, -2), []
        for d, (visit, c) in enumerate(zip(visits, cuts, strict=True)):
            walked, direction = None, Direction(problem, d)
            visit.initial = initial = direction.initial(state0, x)
            if c is not None:
                joints = Joints(Grid.of(layout, c, direction.given.reverse), visit.link)
                walked = self.walk(direction, rows, initial, joints)
            if walked is None:
                walked, visit.joints = in_order(direction, rows), None
                visit.forward = serially(visit.forward)
            found.append(walked)
        y = found[0].rows if len(found) == 1 else torch.cat([w.rows for w in found], 1)
        finals = [torch.stack(some) for some in zip(*(w.last for w in found), strict=True)]
        return y.view(*x.shape[:-1], y.shape[1]), finals, [w.memory for w in found] if keep else []

    def is_cut(self, H: int, layout: Layout, visits: Sequence[Visit], keep: bool) -> bool:
        mine = type(self)
        if mine.forward is not InPieces.forward or mine.backward is not InPieces.backward:
            return True  # a subclass is asked, whatever it does
        if any(visit.link is not None for visit in visits):
            return True
        if keep and visits and layout.N and any(self.cuts(H, layout, visits)):
            return True
        for visit in visits:
            visit.not_cut()
        return False

    def cuts(self, H: int, layout: Layout, visits: Sequence[Visit]) -> list[int | None]:
        """As `cut`, for all directions, and decided once for a call."""
        for visit in visits:
            if visit.cut is None:
                c = self.cut_again(H, layout, visit)
                is_off = visit.link is not None and visit.link.most(float(c is None))[0]  # then none cuts
                visit.cut = (None if is_off else c,)
        return [visit.cut[0] for visit in visits if visit.cut is not None]

    def cut_again(self, H: int, layout: Layout, visit: Visit) -> int | None:
        """As `cut`; a call that runs again, for its tape was spent, is cut as before."""
        if visit.forward is None:
            return self.cut(H, layout, visit)
        return None if visit.joints is None else int(visit.joints.grid.c)

    def backward(
        self,
        problem: Problem,
        x: Tensor,
        saved: Sequence[Tensor],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
        *,
        needs: Needs,
        spend: bool,
    ) -> Gradients:
        engine, ps, layout, visits = problem
        if all(visit.joints is None and visit.link is None for visit in visits):
            for visit in visits:
                visit.not_cut_back()
            return engine.backward(ps, x, saved, d_rows, d_finals, layout, needs=needs, spend=spend)
        d_x, d_states, d_weights, P = None, [], [], ps[0].P
        rows, d_flat = x.flatten(0, -2), None if d_rows is None else d_rows.flatten(0, -2)
        for d, (visit, memory) in enumerate(zip(visits, saved, strict=True)):
            mine = None if d_flat is None else d_flat[:, d * P : (d + 1) * P]
            d_last = [None if f is None else f[d] for f in d_finals]
            wanted = Needs(needs.x, [True] * len(d_finals), [needs.weights[d]])
            g = self.of_direction(Direction(problem, d), Backward(rows, memory, mine, d_last, wanted, spend))
            if g.x is not None:
                d_x = g.x if d_x is None else d_x.add_(g.x)
            d_states.append(g.states)
            if visit.link is not None:
                for s in g.states:
                    s[: visit.link.enters] = 0  # the rank before has it
            d_weights.append(g.weights[0])
        d_initial = [torch.stack(some) for some in zip(*d_states, strict=True)]
        return Gradients(None if d_x is None else d_x.view(x.shape), d_initial, d_weights, [])

    def of_direction(self, direction: Direction, given: Backward) -> Gradients:
        """In pieces, or serially if that fails; now and then checked."""
        visit, g = direction.visit, None
        if visit.joints is not None:
            g = self.walk_back(direction, given)
        if g is None:
            if visit.joints is not None:  # its tape is in pieces
                given = given._replace(memory=in_order(direction, given.rows).memory)
            g = in_order_back(direction, given)
            visit.backward = serially(visit.backward)
        visit.count()
        if self.check_every and visit.warm_start.numbers["calls"] % self.check_every == 0:
            given = given._replace(memory=in_order(direction, given.rows).memory, spend=True)
            exact = in_order_back(direction, given)
            self.check(visit, g.weights[0], exact.weights[0])
        return g

    def is_resting(self, visit: Visit) -> bool:
        """Whether time is not cut for a while. It counts the calls."""
        numbers = visit.warm_start.numbers
        if not self.fallback or not numbers.get("rest", 0):
            return False
        numbers["rest"] -= 1
        return True

    def give_up(self, visit: Visit, why: str, todo: str = "") -> None:
        """For a number of calls, which grows each time."""
        if not self.fallback:
            return
        numbers = visit.warm_start.numbers
        numbers["rest"] = numbers.get("pause", REST)
        numbers["pause"] = min(2 * numbers["rest"], LONGEST_REST)
        then = f"sequences are walked serially, and cut again after {numbers['rest']} calls"
        say(visit, "gave up", f"solver {self.name}: {why}: {then}.{todo}")

    # --- checks
    def tight(self, visit: Visit) -> float:
        """The tolerance, halved each time that a check has found a larger error."""
        return (self.tolerance or USUAL) / (1 << visit.warm_start.numbers.get("halved", 0))

    def check(self, visit: Visit, found: Sequence[Tensor | None], exact: Sequence[Tensor | None]) -> None:
        """Reports the error of a gradient, and reacts if it is too large."""
        known = [(a, b) for a, b in zip(found, exact, strict=True) if a is not None and b is not None]
        if not known:
            return
        numbers, most = visit.warm_start.numbers, self.tolerance or MOST_OFF
        off = error(*zip(*known, strict=True))
        if visit.link is not None:
            (off,) = visit.link.most(off)
        text = f"given the gradient of its outputs, that of its weights is {off:.2%} off an exact walk's"
        calls = f"after {numbers['calls']} calls"
        warnings.warn(f"solver {self.name}, {visit.name}: {text}, {calls}.", PlaitWarning, stacklevel=2)
        if off <= most:
            return
        if self.tolerance is None or numbers.get("halved", 0) >= MOST_HALVED:
            self.give_up(visit, f"gradients are off by more than {most:.0%}")
        else:
            numbers["halved"] = numbers.get("halved", 0) + 1
            text = f"more than {most:.0%} is too much, so it works with half the tolerance"
            say(visit, "tighter", f"solver {self.name}, {visit.name}: {text}.")


def in_order(direction: Direction, rows: Tensor) -> Walked:
    """One exact walk. A rank waits for the one before it."""
    given, link = list(direction.visit.initial or ()), direction.visit.link
    if link is not None and link.enters:
        given = [torch.cat([a, s[link.enters :]]) for a, s in zip(link.arrived(given), given, strict=True)]
    y, ends, (memory,) = direction.forward(direction.given, rows, given, direction.layout)
    if link is not None and link.leaves:
        link.send([e[: link.leaves] for e in ends])
    return Walked(y, ends, memory)


def in_order_back(direction: Direction, given: Backward) -> Gradients:
    link, layout = direction.visit.link, direction.layout
    if link is not None and link.leaves:
        nothing = direction.zeros(layout.B, given.rows)
        came = link.arrived(nothing, back=True)
        rest = [n if d is None else d for d, n in zip(given.d_last, nothing, strict=True)]
        last = [torch.cat([a, r[link.leaves :]]) for a, r in zip(came, rest, strict=True)]
        given = given._replace(d_last=last)
    g = direction.backward(direction.given, given, layout)
    if link is not None and link.enters:
        link.send([s[: link.enters] for s in g.states], back=True)
    return g


def serially(tried: Solve | None) -> Solve:
    return EXACT if tried is None else replace(tried, residual=0.0, converged=True, work=tried.work + 1, split=False)


def about(grid: Grid) -> Whole:  # (B, 2)
    """What must not change for stored states to be of use."""
    lengths = grid.whole.lengths
    return np.column_stack([lengths, np.full_like(lengths, grid.c)])
