"""What solvers share that cut time into pieces: every direction of a layer by itself, and the way back to one walk."""

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..engines import Engine, Gradients, Layout, Needs, Prepared
from ..errors import PlaitWarning
from .base import EXACT, Solve, Solver, say
from .comparison import error
from .grid import Grid, Joints, Line, Link, States
from .past import Visit, Whole

USUAL, MOST_OFF = 0.01, 0.05  # without a tolerance: what counts as converged, and an error that a check lets pass
MOST_HALVED = 6  # times that the tolerance is halved, before time is not cut any more
OF_STATES, OF_GRADIENTS = 0.1, 0.3  # how large a gap between two pieces may be, for a tolerance of 1
REST, LONGEST_REST = 50, 1600  # calls that are walked in one go, before time is cut again


class Walked(NamedTuple):
    rows: Tensor  # (N, P)
    last: States  # per state (B, .)
    memory: Tensor  # of the tape


class InPieces(Solver):
    """Without gradients (torch.no_grad), and for a caller that gives no visits, it is always one exact walk."""

    fallback: bool
    tolerance: float | None
    check_every: int
    sweeps = True

    @abstractmethod
    def cut(self, H: int, layout: Layout, visit: Visit) -> int | None:
        """The steps of a piece; None if the sequences are better walked in one go."""

    @abstractmethod
    def walk(self, line: Line, x: Tensor, initial: States, joints: Joints, visit: Visit) -> Walked | None:
        """One direction, forward; None if it does not work. It leaves in the visit what the way back needs."""

    @abstractmethod
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
        """The same, backward; None if it does not work."""

    def forward(
        self,
        engine: Engine,
        ps: Sequence[Prepared],
        x: Tensor,
        state0: Sequence[Tensor] | None,
        layout: Layout,
        *,
        keep: bool,
        visits: Sequence[Visit] = (),
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        is_split = any(visit.link is not None for visit in visits)
        cuts = self.cuts(ps[0].H, layout, visits) if keep and visits and layout.N else [None] * len(ps)
        for visit in visits:
            visit.cut = None
        if not layout.N or not (any(cuts) or is_split):
            self.was_exact(visits)
            return engine.forward(ps, x, state0, layout, keep=keep)
        rows, found = x.flatten(0, -2), []
        for d, (p, visit, c) in enumerate(zip(ps, visits, cuts, strict=True)):
            walked, line = None, Line(engine, p)
            visit.initial = initial = line.initial(state0, d, layout.B, x)
            if c is not None:
                joints = Joints(Grid.of(layout, c, p.reverse), visit.link)
                walked = self.walk(line, rows, initial, joints, visit)
            if walked is None:
                walked, visit.left = in_order(engine, p, rows, initial, layout, visit.link), None
                visit.forward = in_one_go(visit.forward)
            found.append(walked)
        y = found[0].rows if len(found) == 1 else torch.cat([w.rows for w in found], 1)
        finals = [torch.stack(some) for some in zip(*(w.last for w in found), strict=True)]
        return y.view(*x.shape[:-1], y.shape[1]), finals, [w.memory for w in found] if keep else []

    def is_exact(self, H: int, layout: Layout, visits: Sequence[Visit], keep: bool) -> bool:
        mine = type(self)
        if mine.forward is not InPieces.forward or mine.backward is not InPieces.backward:
            return False  # a subclass is asked, whatever it does
        if any(visit.link is not None for visit in visits):
            return False
        return not (keep and visits and layout.N and any(self.cuts(H, layout, visits)))

    def was_exact(self, visits: Sequence[Visit]) -> None:
        for visit in visits:
            visit.forward, visit.left, visit.cut = EXACT, None, None

    def was_exact_back(self, visits: Sequence[Visit]) -> None:
        for visit in visits:
            visit.backward = EXACT
            counted(visit)

    def cuts(self, H: int, layout: Layout, visits: Sequence[Visit]) -> list[int | None]:
        """As `cut`, for all directions, and decided once for a call."""
        for visit in visits:
            if visit.cut is None:
                visit.cut = (agreed(self.cut_again(H, layout, visit), visit),)
        return [visit.cut[0] for visit in visits if visit.cut is not None]

    def cut_again(self, H: int, layout: Layout, visit: Visit) -> int | None:
        """As `cut`; a call that runs for the second time, because its tape was spent, is cut as before."""
        if visit.forward is None:
            return self.cut(H, layout, visit)
        return None if visit.left is None else int(visit.left.grid.c)

    def backward(
        self,
        engine: Engine,
        ps: Sequence[Prepared],
        x: Tensor,
        kept: Sequence[Tensor],
        d_rows: Tensor | None,
        d_finals: Sequence[Tensor | None],
        layout: Layout,
        *,
        needs: Needs,
        spend: bool,
        visits: Sequence[Visit] = (),
    ) -> Gradients:
        if all(visit.left is None and visit.link is None for visit in visits):
            self.was_exact_back(visits)
            return engine.backward(ps, x, kept, d_rows, d_finals, layout, needs=needs, spend=spend)
        d_x, d_states, d_weights, P = None, [], [], ps[0].P
        rows, d_flat = x.flatten(0, -2), None if d_rows is None else d_rows.flatten(0, -2)
        for d, (p, visit, memory) in enumerate(zip(ps, visits, kept, strict=True)):
            mine = None if d_flat is None else d_flat[:, d * P : (d + 1) * P]
            d_last = [None if f is None else f[d] for f in d_finals]
            wanted, g = Needs(needs.x, [True] * len(d_finals), [needs.weights[d]]), None
            if visit.left is not None:
                g = self.walk_back(Line(engine, p), rows, memory, mine, d_last, visit, wanted, spend)
            if g is None:
                if visit.left is not None:  # its tape is in pieces
                    memory = in_order(engine, p, rows, visit.initial or (), layout, visit.link).memory
                g = in_order_back(engine, p, rows, memory, mine, d_last, layout, visit.link, wanted, spend)
                visit.backward = in_one_go(visit.backward)
            counted(visit)
            if self.check_every and visit.past.numbers["calls"] % self.check_every == 0:
                memory = in_order(engine, p, rows, visit.initial or (), layout, visit.link).memory
                exact = in_order_back(engine, p, rows, memory, mine, d_last, layout, visit.link, wanted, True)
                self.check(visit, g.weights[0], exact.weights[0])
            if g.x is not None:
                d_x = g.x if d_x is None else d_x.add_(g.x)
            d_states.append([s[0] for s in g.states])
            if visit.link is not None:
                for s in d_states[-1]:
                    s[: visit.link.enters] = 0  # the rank before has it
            d_weights.append(g.weights[0])
        d_initial = [torch.stack(some) for some in zip(*d_states, strict=True)]
        return Gradients(None if d_x is None else d_x.view(x.shape), d_initial, d_weights, [])

    def is_resting(self, visit: Visit) -> bool:
        """Whether time is not cut for a while. It counts the calls."""
        numbers = visit.past.numbers
        if not self.fallback or not numbers.get("rest", 0):
            return False
        numbers["rest"] -= 1
        return True

    def give_up(self, visit: Visit, why: str, todo: str = "") -> None:
        """For a number of calls, which grows each time."""
        if not self.fallback:
            return
        numbers = visit.past.numbers
        numbers["rest"] = numbers.get("pause", REST)
        numbers["pause"] = min(2 * numbers["rest"], LONGEST_REST)
        then = f"sequences are walked in one go, and cut again after {numbers['rest']} calls"
        say(visit, "gave up", f"solver {self.name}: {why}: {then}.{todo}")

    # --- checks
    def tight(self, visit: Visit) -> float:
        """The tolerance, halved each time that a check has found a larger error."""
        return (self.tolerance or USUAL) / (1 << visit.past.numbers.get("halved", 0))

    def check(self, visit: Visit, found: Sequence[Tensor | None], exact: Sequence[Tensor | None]) -> None:
        """Says the error of a gradient, and does something about it if it is too large."""
        known = [(a, b) for a, b in zip(found, exact, strict=True) if a is not None and b is not None]
        if not known:
            return
        numbers, most = visit.past.numbers, self.tolerance or MOST_OFF
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


def agreed(c: int | None, visit: Visit) -> int | None:
    """Time is cut on all ranks, or on none."""
    return None if visit.link is not None and visit.link.most(float(c is None))[0] else c


def in_order(
    engine: Engine, p: Prepared, rows: Tensor, initial: Sequence[Tensor], layout: Layout, link: Link | None
) -> Walked:
    """One exact walk. A rank waits for the one before it."""
    given = list(initial)
    if link is not None and link.enters:
        given = [torch.cat([a, s[link.enters :]]) for a, s in zip(link.arrived(given), given, strict=True)]
    y, last, (memory,) = engine.forward([p], rows, [s.unsqueeze(0) for s in given], layout, keep=True)
    ends = [s[0] for s in last]
    if link is not None and link.leaves:
        link.send([e[: link.leaves] for e in ends])
    return Walked(y, ends, memory)


def in_order_back(
    engine: Engine,
    p: Prepared,
    rows: Tensor,
    memory: Tensor,
    d_rows: Tensor | None,
    d_last: Sequence[Tensor | None],
    layout: Layout,
    link: Link | None,
    needs: Needs,
    spend: bool,
) -> Gradients:
    last = list(d_last)
    if link is not None and link.leaves:
        nothing = [rows.new_zeros(layout.B, width) for width in p.widths]
        came = link.arrived(nothing, back=True)
        rest = [n if d is None else d for d, n in zip(d_last, nothing, strict=True)]
        last = [torch.cat([a, r[link.leaves :]]) for a, r in zip(came, rest, strict=True)]
    ends = [None if d is None else d.unsqueeze(0) for d in last]
    g = engine.backward([p], rows, [memory], d_rows, ends, layout, needs=needs, spend=spend)
    if link is not None and link.enters:
        link.send([s[0, : link.enters] for s in g.states], back=True)
    return g


def counted(visit: Visit) -> None:
    """Both passes are done."""
    numbers, passes = visit.past.numbers, (visit.forward, visit.backward)
    numbers["calls"] = numbers.get("calls", 0) + 1
    numbers["cut"] = numbers.get("cut", 0) + all(solve is not None and solve.split for solve in passes)


def in_one_go(tried: Solve | None) -> Solve:
    """After pieces that did not work: an exact walk, and the work of both."""
    return EXACT if tried is None else replace(tried, residual=0.0, converged=True, work=tried.work + 1, split=False)


def about(grid: Grid) -> Whole:  # (B, 2)
    """What of a sequence must be as it was, so that stored states are of use."""
    lengths = grid.whole.lengths
    return np.column_stack([lengths, np.full_like(lengths, grid.c)])
