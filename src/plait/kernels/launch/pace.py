"""How many threads a launch gets at the moment: those that its program was written for, or fewer.

Beside other busy processes a team can take many times as long as one thread: whenever one of its threads has lost its
core, all others wait. So the launches of a team are timed. If they lose against one thread, the next launches have one,
and after a while a team is tried again. Who computes a number changes nothing about it: results stay the same, bit for
bit.
"""

from time import perf_counter

from ... import system

# A team pauses when it has lost more seconds against one thread than LOSS + TRIED * the pause before: one launch that
# was disturbed says little. What it has gained since then counts against that, up to CREDIT.
LOSS, TRIED, CREDIT = 1e-3, 0.01, 0.02
AMORTISED = 10  # times what was lost: how long a pause is, at the least
LONGEST = 2.0  # seconds: a pause after a try that failed is twice as long as the one before, up to this
CHECKED = 1.0  # seconds from one look at the CPUs of this process to the next
SLOWEST = 4  # times as long as its multiplications take at the full rate: no launch takes longer on one thread
WEIGHT = 0.25  # of the latest launch in what one thread takes


class Estimate:
    """Seconds that a launch takes on one thread, for each row of its batch."""

    __slots__ = ("seconds",)

    def __init__(self, at_full_rate: float) -> None:
        self.seconds = SLOWEST * at_full_rate


class Pace:
    """Of all launches of this process."""

    def __init__(self) -> None:
        self.debt = 0.0  # seconds that teams have lost since the last pause; negative: gained
        self.worked = 0.0  # seconds of all launches of teams since then
        self.until = 0.0  # the end of the last pause
        self.pause = 0.0  # how long it was
        self.cpus, self.checked = 1, -CHECKED

    def threads(self, count: int, now: float) -> int:
        """How many of so many threads the launch gets."""
        if now < self.until:
            return 1
        if now >= self.checked + CHECKED:
            self.cpus, self.checked = system.cpus(), now
        return min(count, self.cpus)

    def took(self, estimate: Estimate, rows: int, threads: int, seconds: float) -> None:
        """What a launch took. A single thread teaches how long others need; a team is compared with that."""
        alone = estimate.seconds * rows
        if threads == 1:
            estimate.seconds += WEIGHT * (seconds - alone) / rows
            return
        self.worked += seconds
        self.debt = max(-CREDIT, self.debt + seconds - alone)
        estimate.seconds = min(estimate.seconds, threads * seconds / rows)
        if self.debt > LOSS + TRIED * self.pause:
            doubled = 2 * self.pause if self.worked < self.pause else 0.0
            self.pause = min(LONGEST, max(AMORTISED * self.debt, doubled))
            self.until, self.debt, self.worked = perf_counter() + self.pause, 0.0, 0.0


pace = Pace()
