"""What `bench ranks` is to measure: its options, filled up, and what follows from them."""

from dataclasses import asdict
from typing import Any, NamedTuple

from ...errors import between
from ...tasks.settings import LanguageSettings
from . import Options


class Scale(NamedTuple):
    """Sizes that the options leave open, and how much is measured."""

    layers: int
    hidden: int
    steps: int
    words: int  # of a text that is made up
    sentences: int
    batches: int  # that one measurement goes over
    chosen: int  # batches that stand for an epoch
    trained: int  # steps in which the loss is watched
    more: tuple[int, ...]  # times the batch, where computation is varied
    units: tuple[float, ...]  # times the units


FULL = Scale(8, 400, 35, 10_000, 42_000, 2, 8, 60, (2, 4), (0.25, 0.5, 1.5))  # the second paper's
QUICK = Scale(4, 96, 20, 1_000, 1_500, 1, 2, 8, (2,), (0.5,))


class Order(Options):
    layers: int
    hidden: int
    embedding: int
    steps: int

    @classmethod
    def of(cls, options: Options) -> "Order":
        scale = QUICK if options.quick else FULL
        given = {name: value for name, value in asdict(options).items() if value is not None}
        filled = {"layers": scale.layers, "hidden": scale.hidden, "steps": scale.steps, **given}
        return cls(**{"embedding": max(1, filled["hidden"] // 2), **filled})

    def __post_init__(self) -> None:
        super().__post_init__()
        between("ranks", self.ranks, 2, 64)
        between("layers", self.layers, 2, 1000)
        between("batch", self.batch, self.ranks, 10**6)
        between("steps", self.steps, 2, 10**6)
        self.settings()  # checks the rest

    @property
    def scale(self) -> Scale:
        return QUICK if self.quick else FULL

    @property
    def variants(self) -> list[tuple[int, int]]:
        """Batches and units for which the speed-up of data ranks is measured: more computation, and less."""
        B, H = self.batch, self.hidden
        more, units = [(n * B, H) for n in self.scale.more], [(B, max(1, int(n * H))) for n in self.scale.units]
        return [(B, H), *more, *units]

    @property
    def global_batches(self) -> tuple[int, ...]:
        """For which the perplexity is compared."""
        return self.batch, 4 * self.batch, 16 * self.batch

    def settings(self, **changes: Any) -> LanguageSettings:
        """No gradient is as long as `clip`: its norm is computed, but nothing is scaled."""
        sizes = self.some("layers", "hidden", "embedding", "seed")
        return LanguageSettings(
            **{**sizes, "data": "text", "softmax": "full", "optimizer": "sgd", "clip": 5.0, **changes}
        )
