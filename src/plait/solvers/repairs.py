"""Pieces that run again: from better states, or with more of the gradient."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..engines import Gradients, Needs, Tape
from .grid import Backward, Direction, Grid, Joints, States, norms, taken

SEGMENT = 64  # steps of a repair between two looks at whether it is still needed


class Gaps(NamedTuple):
    """Pieces that do not fit to their neighbours."""

    pieces: Tensor  # (n,): their numbers
    states: States  # (n, .) each: their true starts; backward: what is missing at their ends


def repair(
    direction: Direction,
    x: Tensor,
    grid: Grid,
    tape: Tape,
    y: Tensor,
    starts: States,
    ends: States,
    gaps: Gaps,
    bound: float,
) -> int:
    """Runs some pieces again, until they meet their own path -> steps taken"""
    (pieces, running), engine, p, work = gaps, direction.engine, direction.p, 0
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
    direction: Direction,
    x: Tensor,
    grid: Grid,
    tape: Tape,
    total: Gradients,
    d_ends: States,
    gaps: Gaps,
    bound: float,
    needs: Needs,
) -> int:
    """Adds missing gradients, carried back until they vanish -> steps taken"""
    (pieces, missing), p, work = gaps, direction.p, 0
    size = norms(total.states).square().mean().sqrt()
    for d_end, lacks in zip(d_ends, missing, strict=True):
        d_end[pieces] += lacks
    end = grid.layout.lengths[pieces.numpy()]
    while len(pieces):
        first = np.maximum(0, end - SEGMENT)
        spans = grid.layout.spans(pieces.numpy(), first, end)
        pieces, first = pieces[spans.order], first[spans.order.numpy()]
        again = taken(x, spans.rows)
        _, _, (memory,) = direction.forward(p, again, grid.states_at(tape, pieces, first), spans.layout)
        d_last = [m[spans.order] for m in missing]
        g = direction.backward(p, Backward(again, memory, None, d_last, needs, spend=True), spans.layout)
        if total.x is not None and g.x is not None:
            total.x.index_add_(0, spans.rows, g.x)
        for whole, more in zip(total.weights[0], g.weights[0], strict=True):
            if whole is not None and more is not None:
                whole.add_(more)
        work += 2 * spans.layout.N
        missing, is_done = g.states, torch.from_numpy(first == 0)
        for d_start, rest in zip(total.states, missing, strict=True):
            d_start[pieces[is_done]] += rest[is_done]
        on = ~is_done & ~(norms(missing) <= bound * size)
        pieces, missing, end = pieces[on], [m[on] for m in missing], first[on.numpy()]
    return work


def carry_back(
    direction: Direction, joints: Joints, tape: Tape, d_rows: Tensor | None, d_ends: States, steps: int
) -> int:
    """Fills in d_ with respect to the end of every piece that another one follows: what comes from so many steps of
    the pieces after it -> steps taken

    d_ends: (n, .), so far zero but for the last piece of each sequence
    """
    engine, p, grid, work, S = direction.engine, direction.p, joints.grid, 0, len(d_ends)
    whole, rest = divmod(steps if joints.link is None else min(steps, joints.link.steps), grid.c)
    if joints.link is None and whole >= len(grid.place) - 1:  # back to the beginning
        whole, rest = len(grid.place) - 1, 0
    cuts = [rest] * (rest > 0) + [grid.c] * whole
    cuts += [grid.c] * (int(joints.most(len(cuts))[0]) - len(cuts))  # all ranks hand on as often
    lengths = torch.from_numpy(grid.layout.lengths)
    for cut in cuts:
        steps = min(cut, grid.layout.T)
        is_whole = steps == grid.layout.T
        some = tape if is_whole else tape.cut(0, steps)
        given = d_ends if is_whole else [torch.where((lengths <= steps).unsqueeze(1), d, 0) for d in d_ends]
        d = [None if d_rows is None else d_rows[: some.layout.N], *[None] * (S - 1)]
        _, d_starts = engine.recur_vjp(p, some, d, given)
        for d_end, d_start in zip(d_ends, joints.back([d[joints.arrivals] for d in d_starts]), strict=True):
            d_end[joints.departures] = d_start
        work += some.layout.N
    return work
