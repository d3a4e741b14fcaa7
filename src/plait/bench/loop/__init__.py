"""What does the training loop cost a step, beyond forward, backward and optimizer?

The calls that any loop must make are timed where they are made; the rest of the wall clock is the loop's own. (The
difference of two runs, one of them without the loop, is lost in the noise of a shared machine: 0.02 ms of 3.)
"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    steps: int = option(400, "Steps in one measurement.")
    repeats: int = options.repeats(9)
