"""What does a layer keep for its backward pass, with and without checkpoint=, and what is the price? About 15 minutes.

A training step of an LSTM over longer and longer sequences. Each contender is a process of its own; they take turns.
"""

from ..core import options
from ..core.options import option, sized


class Options(options.Options):
    cell: str = options.cell("lstm")
    batch: int = option(4, "Sequences.")
    inputs: int = option(64, "Inputs.")
    hidden: int = option(256, "Units.")
    checkpoint: str = option("auto", "After how many steps a state is kept; auto: about the root of all steps.")
    steps: str = sized("1024,4096,16384,65536,262144", "1024,4096,16384", "Steps of a sequence, with commas.")
    quick: bool = options.quick("Sequences of up to 16,384 steps: about a minute.")
    picture: str | None = options.picture("Draw the curves there, as a PNG file.")
    repeats: int = options.repeats(5)
