"""What can be set about each task, beside what can be set about training."""

from dataclasses import dataclass

from .. import cells
from ..errors import PlaitError, at_least, unknown
from ..training.settings import TrainSettings, option

DECODERS = ("recursive", "seq2seq")


@dataclass(frozen=True)
class ForecastSettings(TrainSettings):
    data: str | None = option(None, "A CSV file; without it, the airline passengers of 1949 to 1960.")
    column: str | None = option(None, "The column to forecast, if there are several.")
    missing: str = option("error", "What to do with cells that are not numbers: error or interpolate.")
    window: int = option(12, "How many steps the network sees.")
    horizon: int = option(12, "How many steps it forecasts at a time.")
    season: int | None = option(None, "Steps in a season, 1 if there is none.  (default: 12 for the airline, else 1)")
    scale: str = option("auto", "log, linear, or auto: log if every value is positive.")
    test: int | None = option(None, "Values held back at the end for the test.  (default: two horizons)")
    validation: int | None = option(None, "Values before those, for validation.  (default: one horizon)")
    cell: str = option("lstm", "rnn, rnn_relu, lstm, gru or implicit_gru.")
    hidden: int = option(32, "Units in a layer.")
    layers: int = option(1, "Layers.")
    dropout: float = option(0.0, "Dropout between layers.")
    decoder: str = option("recursive", "recursive (one step, fed back) or seq2seq (the whole horizon from a decoder).")
    engine: str = option("auto", "What runs the recurrence: see plait engines.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("window", "horizon", "season", "test", "validation", "hidden", "layers"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)
        if not 0 <= self.dropout < 1:
            raise PlaitError(f"dropout {self.dropout}: must be at least 0 and below 1.")
        if self.dropout and self.layers == 1:
            raise PlaitError(
                f"dropout {self.dropout} acts between layers, and there is one: use --layers 2, or leave it out."
            )
        if self.decoder not in DECODERS:
            raise unknown("decoder", self.decoder, DECODERS)
        if self.scale not in ("auto", "log", "linear"):
            raise unknown("scale", self.scale, ("auto", "log", "linear"))
        cells.get(self.cell)
        from .. import engines  # torch comes with it

        engines.check(self.engine)

    @property
    def steps_per_season(self) -> int:
        return self.season or (12 if self.data is None else 1)

    @property
    def test_size(self) -> int:
        return self.test or 2 * self.horizon

    @property
    def validation_size(self) -> int:
        return self.validation or self.horizon
