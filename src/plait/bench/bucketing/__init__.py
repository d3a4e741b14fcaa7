"""What does padding cost, and how much of that do buckets and ragged batches save? Takes some minutes.

Every scheme trains the same network on batches of its own epoch. A few batches stand for all of them: taken evenly from
the epoch's batches in the order of their size, and counted by the slots that they have.
"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    data: str | None = options.text_data()
    layers: str = option("8,2", "Layers, with commas.")
    hidden: int = option(400, "Units in a layer.")
    embedding: int = option(200, "Numbers that stand for a word.")
    batch: int = option(20, "Sentences in a batch.")
    sentences: int = option(160, "Sentences that are trained on in one measurement.")
    engine: str = options.engine()
    picture: str | None = options.picture("Draw it there, as a PNG file.")
    repeats: int = options.repeats(5)
