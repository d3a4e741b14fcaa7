"""Pieces that run again: from better states, or with more of the gradient."""

import numpy as np
import torch
from torch import Tensor

from ..engines import Gradients, Needs, Tape
from .grid import Grid, Joints, Line, States, norms, taken

SEGMENT = 64  # steps of a repair, after which it is seen whether it is still needed


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
