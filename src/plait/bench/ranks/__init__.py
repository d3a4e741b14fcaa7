"""What do several processes bring, by data, by layers, or with a server? Up to an hour; with --quick under 3 minutes.

One job of --ranks processes, each with one thread, times the crews that `plait train` runs. They take turns step by
step, so what a speed-up compares ran within seconds.
"""

from typing import Any

from ...errors import between
from ...tasks.settings import LanguageSettings
from ..core import options
from ..core.options import option, sized


class Options(options.Options):
    data: str | None = options.text_data()
    layers: int = sized(8, 4, "Layers of LSTM.")  # the second paper's, as the other sizes
    hidden: int = sized(400, 96, "Units in a layer.")
    embedding: int = option(None, "Numbers that stand for a word.  (default: half of the units)")
    batch: int = option(20, "Streams, or sentences, in a step of all ranks together.")
    steps: int = sized(35, 20, "Steps of a stream.")
    ranks: int = option(4, "Processes, at the most; each has one thread.")
    quick: bool = options.quick("A small network, few batches: all tables in under 3 minutes.")
    picture: str | None = options.picture("Draw the wavefront there, measured beside simulated, as a PNG file.")
    repeats: int = options.repeats(5)

    def __post_init__(self) -> None:
        super().__post_init__()
        if vars(self)["embedding"] is None:
            object.__setattr__(self, "embedding", max(1, self.hidden // 2))
        between("ranks", self.ranks, 2, 64)
        between("layers", self.layers, 2, 1000)
        between("batch", self.batch, self.ranks, 10**6)
        between("steps", self.steps, 2, 10**6)
        self.settings()  # checks the rest

    def settings(self, **changes: Any) -> LanguageSettings:
        """No gradient is as long as `clip`: its norm is computed, but nothing is scaled."""
        sizes = self.some("layers", "hidden", "embedding", "seed")
        fixed = {"data": "text", "softmax": "full", "optimizer": "sgd", "clip": 5.0}
        return LanguageSettings(**{**sizes, **fixed, **changes})
