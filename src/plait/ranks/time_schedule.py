"""Who does what when, if ranks share the steps of a sequence out: for the simulation of more ranks than there are."""

from collections.abc import Callable
from typing import NamedTuple

from .schedule import Line, Op, Schedule, check_count, simulate


class TimeCosts(NamedTuple):
    """Seconds, measured on this machine."""

    forward: float  # a step of all pieces of a rank, with a tape
    back: float  # the same, back, with the gradients of the weights
    sweep: float  # a step without a tape, forward or back
    call: float  # what a pass over the pieces costs beside its steps
    coarse: float  # a step of a coarse grid, which all ranks take
    message: float  # a state from one rank to the next
    meet: float  # a number that all ranks agree on, for each doubling of their number
    loss: float  # a row of the output, which all ranks judge
    gather: float  # a row of another rank's output
    walk: float  # a step of one walk
    walk_back: float  # the same, back


def shooting(ranks: int) -> Schedule:
    """Warm-ups, pieces, and a look at their gaps; then the loss, and the same backward.

    A: warm-up, F: forward, C: compare, D: loss, B: warm-up back, I: back, R: gradients are added up
    """
    check_count("ranks", ranks)
    lines: list[Line] = []
    needs: dict[Op, tuple[Op, ...]] = {}
    for r in range(ranks):
        A, F, C, D, B, I, R = (Op(kind, r, 0, 0) for kind in "AFCDBIR")
        needs[F] = (A._replace(place=r - 1),) if r else ()
        needs[C] = tuple(F._replace(place=k) for k in range(ranks) if k != r)
        needs[I] = (B._replace(place=r + 1),) if r < ranks - 1 else ()
        needs[R] = tuple(I._replace(place=k) for k in range(ranks) if k != r)
        lines.append(Line((A, F, C, D, B, I, R)))
    return Schedule(tuple(lines), needs)


def multigrid(ranks: int, forward: int, backward: int) -> Schedule:
    """Sweeps over all pieces (S), coarse grids (C) after each, which need all ranks; then as in shooting.

    The micro number of an op counts the iterations, forward ones first.
    """
    check_count("ranks", ranks)
    lines: list[Line] = []
    needs: dict[Op, tuple[Op, ...]] = {}
    for r in range(ranks):
        main: list[Op] = []
        for k in range(forward + backward):
            S, C = Op("S", r, k, 0), Op("C", r, k, 0)
            needs[C] = tuple(S._replace(place=other) for other in range(ranks) if other != r)
            if k == forward:
                main += [Op("F", r, 0, 0), Op("D", r, 0, 0)]
            main += [S, C]
        I, R = Op("I", r, 0, 0), Op("R", r, 0, 0)
        needs[R] = tuple(I._replace(place=other) for other in range(ranks) if other != r)
        lines.append(Line((*main, I, R)))
    return Schedule(tuple(lines), needs)


def predicted(schedule: Schedule, cost: Callable[[Op], float], message: float) -> float:
    """Seconds of a step."""
    return simulate(schedule, cost, lambda a, b: message).total


def shooting_cost(costs: TimeCosts, ranks: int, T: int, warm: int, back: int) -> Callable[[Op], float]:
    """T: steps of the sequence, of which each rank has its share, in as many pieces as keep its threads busy"""
    mine, rounds = T / ranks, max(1, ranks - 1).bit_length() if ranks > 1 else 0
    met = costs.meet * rounds

    def cost(op: Op) -> float:
        seconds = {
            "A": costs.call + min(warm, mine) * costs.sweep,
            "F": costs.call + mine * costs.forward,
            "C": met,
            "D": T * costs.loss + met + (T - mine) * costs.gather,
            "B": costs.call + min(back, mine) * costs.sweep,
            "I": costs.call + mine * costs.back,
            "R": met,
        }
        return seconds[op.kind]

    return cost


def multigrid_cost(costs: TimeCosts, ranks: int, T: int, c: int, levels: int, sweeps: int) -> Callable[[Op], float]:
    """sweeps: over the finest grid, in an iteration"""
    mine, rounds = T / ranks, max(1, ranks - 1).bit_length() if ranks > 1 else 0
    met, coarsest = costs.meet * rounds, T / float(c ** (levels - 1))
    between = sum(T / ranks / float(c**l) for l in range(1, levels - 1))  # the levels between could be shared out, too

    def cost(op: Op) -> float:
        seconds = {
            "S": sweeps * (costs.call + mine * costs.sweep),
            "C": met + costs.call + coarsest * costs.coarse + between * costs.sweep,
            "F": costs.call + mine * costs.forward,
            "D": T * costs.loss + met + (T - mine) * costs.gather,
            "I": costs.call + mine * costs.back,
            "R": met,
        }
        return seconds[op.kind]

    return cost
