"""What does a layer cost on sentences as they come, beside torch's padded and packed ones?"""

from ..core import options
from ..core.options import option


class Options(options.Options):
    data: str | None = options.text_data()
    cells: str = options.cells("lstm,gru")
    batch: int = option(32, "Sentences in a batch.")
    hidden: int = option(200, "Units, and inputs.")
    draws: int = option(5, "Batches drawn, each measured by itself.")
    repeats: int = options.repeats(9)
