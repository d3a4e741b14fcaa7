"""Who does what when, if ranks share the steps of a sequence out: what more ranks than there are would take."""

from typing import NamedTuple

from ...ranks.schedule import Line, Op, Schedule, check_count, simulate


def shooting(ranks: int) -> Schedule:
    """Warm-ups, pieces, and a look at their gaps; then the loss, and the same backward.

    A: warm-up, F: forward, C: compare, D: loss, B: warm-up of the backward pass, I: backward, R: gradients are added up
    """
    check_count("ranks", ranks)
    lines: list[Line] = []
    needs: dict[Op, tuple[Op, ...]] = {}
    for r in range(ranks):
        A, F, C, D, B, I, R = (Op(kind, r, 0, 0) for kind in "AFCDBIR")
        needs |= {C: elsewhere(F, ranks), R: elsewhere(I, ranks)}
        needs[F] = (A._replace(place=r - 1),) if r else ()
        needs[I] = (B._replace(place=r + 1),) if r < ranks - 1 else ()
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
            needs[C] = elsewhere(S, ranks)
            main += [Op("F", r, 0, 0), Op("D", r, 0, 0)] if k == forward else []
            main += [S, C]
        I, R = Op("I", r, 0, 0), Op("R", r, 0, 0)
        needs[R] = elsewhere(I, ranks)
        lines.append(Line((*main, I, R)))
    return Schedule(tuple(lines), needs)


def elsewhere(op: Op, ranks: int) -> tuple[Op, ...]:
    """The same op of all other ranks."""
    return tuple(op._replace(place=r) for r in range(ranks) if r != op.place)


class TimeCosts(NamedTuple):
    """Seconds, measured on this machine."""

    forward: float  # a step of all pieces of a rank, with a tape
    backward: float  # the same in the backward pass, with the gradients of the weights
    sweep: float  # a step without a tape, forward or backward
    call: float  # what a pass over the pieces costs beside its steps
    coarse: float  # a step of a coarse grid, which all ranks take
    message: float  # a state from one rank to the next
    meet: float  # a number that all ranks agree on, for each doubling of their number
    loss: float  # a row of the output, which all ranks judge
    gather: float  # a row of another rank's output
    walk: float  # a step of one walk
    walk_backward: float  # the same in the backward pass

    def shooting(self, ranks: int, T: int, warm: int) -> float:
        """Seconds of a training step. T: steps of the sequence, of which each rank has its share"""
        warm_up = self.call + min(warm, T / ranks) * self.sweep
        return self.total(shooting(ranks), T, {"A": warm_up, "B": warm_up, "C": self.met(ranks)})

    def multigrid(self, ranks: int, T: int, c: int = 4, levels: int = 3, sweeps: int = 2, forward: int = 2) -> float:
        """The same, with one iteration in the backward pass. sweeps: over the finest grid, in an iteration"""
        coarsest, mine = T / float(c ** (levels - 1)), T / ranks
        between = sum(mine / float(c**l) for l in range(1, levels - 1))  # the levels between could be shared out, too
        sweep = sweeps * (self.call + mine * self.sweep)
        coarse = self.met(ranks) + self.call + coarsest * self.coarse + between * self.sweep
        return self.total(multigrid(ranks, forward, 1), T, {"S": sweep, "C": coarse})

    def met(self, ranks: int) -> float:
        return self.meet * (ranks - 1).bit_length()

    def total(self, schedule: Schedule, T: int, own: dict[str, float]) -> float:
        """own: seconds of the ops of a solver; the others are the same for all of them"""
        ranks = len(schedule.lines)
        mine, met = T / ranks, self.met(ranks)
        cost = {
            "F": self.call + mine * self.forward,
            "D": T * self.loss + met + (T - mine) * self.gather,
            "I": self.call + mine * self.backward,
            "R": met,
            **own,
        }
        return simulate(schedule, lambda op: cost[op.kind], lambda a, b: self.message).total
