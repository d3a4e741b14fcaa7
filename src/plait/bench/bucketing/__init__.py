"""What does padding cost, and how much of that do buckets and ragged batches save? About 10 minutes.

Every scheme trains the same network on batches of its own epoch. A few batches stand for all of them: taken evenly from
the epoch's batches in the order of their size, and counted by the slots that they have.
"""

from ..core import options
from ..core.options import option, sized


class Options(options.Options):
    data: str | None = options.text_data()
    layers: str = sized("8,2", "2", "Layers, with commas.")
    hidden: int = sized(400, 100, "Units in a layer.")
    embedding: int = sized(200, 50, "Numbers that stand for a word.")
    batch: int = option(20, "Sentences in a batch.")
    sentences: int = sized(160, 60, "Sentences that are trained on in one measurement.")
    engine: str = options.engine()
    quick: bool = options.quick("A small network and few batches: 1 to 2 minutes.")
    picture: str | None = options.picture("Draw it there, as a PNG file.")
    repeats: int = options.repeats(5)
