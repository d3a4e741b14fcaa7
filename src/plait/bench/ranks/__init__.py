"""What do several processes bring, by data, by layers, or with a server? Up to an hour; with --quick under 3 minutes.

One job of as many processes as --ranks says, each with one thread, measures everything (work.py): it times the crews
that `plait train` runs. They take turns step by step, so what a speed-up compares ran within seconds of each other.
"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    data: str | None = options.text_data()
    layers: int | None = option(None, "Layers of LSTM.  (default: 8; 4 with --quick)")
    hidden: int | None = option(None, "Units in a layer.  (default: 400; 96 with --quick)")
    embedding: int | None = option(None, "Numbers that stand for a word.  (default: half of the units)")
    batch: int = option(20, "Streams, or sentences, in a step of all ranks together.")
    steps: int | None = option(None, "Steps of a stream.  (default: 35; 20 with --quick)")
    ranks: int = option(4, "Processes, at the most; each has one thread.")
    quick: bool = options.quick("A small network, few batches: all tables in under 3 minutes.")
    picture: str | None = options.picture("Draw the wavefront there, measured beside simulated, as a PNG file.")
    repeats: int = options.repeats(5)
