"""What does cutting time bring, how far off is it, and where is one exact walk faster? With --quick under 3 minutes."""

from ..core import options
from ..core.options import option


class Options(options.Options):
    data: str | None = option(None, "Sequences with labels, such as UCI HAR.  (default: made up, as UCI HAR)")
    parts: str | None = options.parts()
    quick: bool = options.quick("Small networks and short sequences: all tables in under 3 minutes.")
    picture: str | None = options.picture()
    repeats: int = options.repeats(7)
