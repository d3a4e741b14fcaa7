"""How far is it from a sequential LSTM to a fast one? The first paper's climb, about 5 minutes."""

from ..core import options
from ..core.options import option


class Options(options.Options):
    parts: str | None = options.parts()
    hidden: int | None = option(None, "Units of the LSTM.  (default: 64; with --quick 8)")
    quick: bool = options.quick("A smaller LSTM and up to 16 times the data: about 2 minutes.")
    picture: str | None = options.picture()
    repeats: int = options.repeats(7)
