"""What do several processes bring, by data, by layers, or with a server? Up to an hour; with --quick under 3 minutes.

One job of --ranks processes, each with one thread, times the crews that `plait train` runs. They take turns step by
step, so what a speed-up compares ran within seconds.
"""

from typing import Any

from ...errors import between
from ...tasks.settings import LanguageSettings
from ..core import options
from ..core.options import option

SIZES = {"layers": 8, "hidden": 400, "steps": 35}  # the second paper's
QUICK = {"layers": 4, "hidden": 96, "steps": 20}


class Options(options.Options):
    data: str | None = options.text_data()
    layers: int = option(None, "Layers of LSTM.  (default: 8; 4 with --quick)")
    hidden: int = option(None, "Units in a layer.  (default: 400; 96 with --quick)")
    embedding: int = option(None, "Numbers that stand for a word.  (default: half of the units)")
    batch: int = option(20, "Streams, or sentences, in a step of all ranks together.")
    steps: int = option(None, "Steps of a stream.  (default: 35; 20 with --quick)")
    ranks: int = option(4, "Processes, at the most; each has one thread.")
    quick: bool = options.quick("A small network, few batches: all tables in under 3 minutes.")
    picture: str | None = options.picture("Draw the wavefront there, measured beside simulated, as a PNG file.")
    repeats: int = options.repeats(5)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (QUICK if self.quick else SIZES).items():
            self.fill(name, value)
        self.fill("embedding", max(1, self.hidden // 2))
        between("ranks", self.ranks, 2, 64)
        between("layers", self.layers, 2, 1000)
        between("batch", self.batch, self.ranks, 10**6)
        between("steps", self.steps, 2, 10**6)
        self.settings()  # checks the rest

    def fill(self, name: str, value: int) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def settings(self, **changes: Any) -> LanguageSettings:
        """No gradient is as long as `clip`: its norm is computed, but nothing is scaled."""
        sizes = self.some("layers", "hidden", "embedding", "seed")
        fixed = {"data": "text", "softmax": "full", "optimizer": "sgd", "clip": 5.0}
        return LanguageSettings(**{**sizes, **fixed, **changes})
