"""What does each decision about the loops buy? About 30 minutes.

One training step with everything on, off, and in between.
"""

from ..core import options
from ..core.options import option, sized


class Options(options.Options):
    cell: str = option("rnn", "rnn, rnn_relu, lstm, gru or implicit_gru.")
    batch: int = sized(1000, 100, "Sequences.")
    size: int = sized(1000, 200, "Inputs, and units.")
    steps: int = option(10, "Steps of a sequence.")
    quick: bool = options.quick("A small layer: 1 to 2 minutes, most of it for compiling.")
    repeats: int = options.repeats(5)
