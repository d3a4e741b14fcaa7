"""What does each decision about the loops buy? With the default sizes it takes 20 to 30 minutes.

One training step with everything on, off, and in between.
"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    cell: str = option("rnn", "rnn, rnn_relu, lstm, gru or implicit_gru.")
    batch: int = option(1000, "Sequences.")
    size: int = option(1000, "Inputs, and units.")
    steps: int = option(10, "Steps of a sequence.")
    repeats: int = options.repeats(5)
