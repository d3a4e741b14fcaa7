"""What do public reports of slow recurrent layers measure on this machine, with torch's layers and with plait's?

Their scripts are written anew, from what they time.
"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    reports: str | None = option(None, "Of 149194, 4154 and 81634, with commas.  (default: all)")
    lengths: str | None = option(None, "Of 149194, some of its L from 10 to 4000, with commas.  (default: all)")
    sizes: str = option("32,64,64", "Batch, inputs and units for 149194, which does not give them.")
    malloc: str = option("both", "default, tuned (glibc is told to keep its memory), or both.")
    quick: bool = options.quick("Three lengths up to 500, malloc as it comes: a minute or two, not over an hour.")
    repeats: int = options.repeats(9)
